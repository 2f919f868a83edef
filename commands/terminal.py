"""What commands share: who is at the terminal, the client, and the option for programs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..client import AgentClient

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def user() -> str:
    """Return who is at the terminal."""
    # Not getpass.getuser: it raises for a user without a name, as in many containers.
    return os.environ.get("USER") or f"uid {os.getuid()}"


async def connect() -> AgentClient:
    """Connect as the environment says; see `AgentClient.connect`."""
    from ..client import AgentClient

    return await AgentClient.connect()

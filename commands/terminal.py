"""What commands share: who is at the terminal, and the option for programs."""

from __future__ import annotations

import os
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def user() -> str:
    """Return who is at the terminal."""
    # Not getpass.getuser: it raises for a user without a name, as in many containers.
    return os.environ.get("USER") or f"uid {os.getuid()}"

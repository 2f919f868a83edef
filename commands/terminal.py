"""What commands share: who is at the terminal, the client, the ledger, the option for programs."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:  # for annotations alone: `--help` must not load Temporal and Postgres
    from ..client import AgentClient
    from ..ledger import ActionLedger

T = TypeVar("T")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def user() -> str:
    """Return who is at the terminal."""
    # Not getpass.getuser: it raises for a user without a name, as in many containers.
    return os.environ.get("USER") or f"uid {os.getuid()}"


async def connect() -> AgentClient:
    """Connect as the environment says; see `AgentClient.connect`."""
    from ..client import AgentClient

    return await AgentClient.connect()


async def with_ledger(work: Callable[[ActionLedger], Awaitable[T]]) -> T:
    """Do something with the ledger that the settings name; Temporal is not needed.

    Raises:
        ConfigurationError: No database is configured.
        LedgerUnavailable: It does not answer.
    """
    from ..config import Settings
    from ..ledger import ActionLedger, ledger_pool

    settings = Settings.load()
    async with ledger_pool(settings.require_database(), size=1) as pool:
        return await work(ActionLedger(pool, statement_seconds=settings.statement_seconds))

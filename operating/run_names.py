"""Which runs an operator means by an id: a run's key, or a workflow's id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..errors import RunNotFound
from ..identity import RunKey
from ..ledger import ActionLedger, Run

RUNS_AT_MOST: Final = 1_000
"""How many runs of one id are looked at, the newest. Only a conversation, and the outbox, have
so many."""


async def runs_named(ledger: ActionLedger, id: str) -> Sequence[Run]:
    """Return the run of a key, or those of a workflow's id, the newest first.

    Raises:
        RunNotFound: The ledger has none.
    """
    one = await ledger.runs.get(RunKey(id))
    found = [one] if one is not None else await ledger.runs.list(workflow_id=id, limit=RUNS_AT_MOST)
    if not found:
        raise RunNotFound(f"the ledger has no run {id!r}")
    return found


async def newest_named(ledger: ActionLedger, id: str) -> Run:
    """Return the run of a key, or the newest of a workflow's id.

    Raises:
        RunNotFound: The ledger has none.
    """
    return (await runs_named(ledger, id))[0]


async def run_key_named(ledger: ActionLedger, run: str | None) -> RunKey | None:
    """Return the key of the run that a list is narrowed to; None where it is not narrowed."""
    return None if run is None else (await newest_named(ledger, run)).run_key

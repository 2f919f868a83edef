"""What `commitline doctor` says of calls whose workflows have ended while they were under way.

A workflow of another framework closes no run. Where its worker is no relay, nobody parks what it
left, and only its workflow tells such a call from one that is made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from temporalio.client import Client
from temporalio.service import RPCError

from ..activities.runs.run_executions import RunExecutions
from ..config import Settings
from ..errors import ConfigurationError, LedgerUnavailable, SchemaMismatch
from ..identity import ActionKey, RunKey
from ..ledger import ActionLedger
from ..ledger.exits import calls_left
from .check import Check
from .command_client import command_temporal
from .connection import with_ledger

_LOOKED_AT: Final = 200
"""Calls, those that have waited longest."""
_NAMED: Final = 5


async def left_calls() -> Check:
    """Whether a call that is dispatched has a workflow that goes on."""
    settings = Settings.load()
    missing = Check("calls", "missing", "no ledger and Temporal to look at", needed=False)
    if not settings.database_url:
        return missing
    left: Sequence[ActionKey] = ()
    try:
        found = await calls_left(settings.database_url, limit=_LOOKED_AT)
        if found:
            temporal = await command_temporal(settings)
            left = await with_ledger(lambda ledger: _left(ledger, temporal, found))
    except (ConfigurationError, LedgerUnavailable, SchemaMismatch):
        return missing
    if found is None:
        return missing
    if not left:
        return Check("calls", "ok", "none was left by its workflow", needed=False)
    named = f"unknown, and their workflows have ended: {', '.join(left[:_NAMED])}"
    remedy = "look downstream, then `commitline actions settle KEY`"
    return Check("calls", "wrong", named, remedy, needed=False)


async def _left(
    ledger: ActionLedger, temporal: Client, found: Sequence[tuple[ActionKey, RunKey]]
) -> Sequence[ActionKey]:
    """Return those calls whose workflows have ended, as far as Temporal says."""
    executions = RunExecutions(temporal, ledger)
    ended: set[RunKey] = set()
    for key in dict.fromkeys(run_key for _, run_key in found):
        run = await ledger.runs.get(key)
        try:
            if run is not None and await executions.end_of(run) is not None:
                ended.add(key)
        except RPCError:
            continue
    return [key for key, run_key in found if run_key in ended]

"""What the rows do not show later, and so is looked at as soon as it may have gone wrong.

    sent_again     a call without a key was sent, although an earlier one like it was unknown
    relied_on      somebody was told that an action stands, and it was being undone
    left_by_end    a run has ended, and left something to nobody

Each is certain, whatever the others do meanwhile: it compares what this actor knew before its call
with what is in the ledger after it, and both can only be true if the call itself was wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, LiteralString

import psycopg

from commitline.identity import ActionKey, RunKey
from commitline.ledger import ActionLedger, ActionRequest, Run
from commitline.ledger.pool import Pool
from commitline.tests.fuzz.scene import Scene
from commitline.tests.integration.database import sql

_LIVE_UNDO: Final[LiteralString] = """
select key, dispatched_at from agent_actions
 where undoes = %(key)s and status = 'pending' and dispatched_at is not null"""
_LEFT_BY_END: Final[LiteralString] = """
select a.key from agent_actions a join agent_runs r using (run_key)
 where run_key = %(run_key)s and r.state = 'ended' and r.undo_began_at is null
   and a.status = 'pending' and a.parked_at is null and a.dispatched_at is not null
   and not a.relayed and a.claimed_by = a.key and a.attempt_at <= %(at)s
   and not exists (select from agent_relay q where q.key = a.key)"""


def known_unknown(scene: Scene, request: ActionRequest) -> Sequence[ActionKey]:
    """Return the equal calls, by other turns of the conversation, that were told as unknown."""
    if request.domain_key is not None or request.purpose != "forward":
        return []
    turn = (request.run_key, request.position.partition(".")[0])
    told = scene.unknown[_like(request)]
    return [one.key for one in told if (one.run_key, one.position.partition(".")[0]) != turn]


def tell_unknown(scene: Scene, request: ActionRequest) -> None:
    """Keep that the model has read that a call is unknown."""
    if request.domain_key is None:
        scene.unknown[_like(request)].append(request)


async def sent_again(
    scene: Scene, ledger: ActionLedger, request: ActionRequest, known: Sequence[ActionKey]
) -> None:
    """Look whether a call that is sent for the first time repeats one that is unknown.

    Args:
        scene: Where it is kept.
        ledger: The actor's own.
        request: The call.
        known: As `known_unknown` had it before the claim. What is pending after that was then, too.
    """
    for key in known:
        first = await ledger.get(key)
        if first is not None and first.status == "pending" and first.duplicate_of is None:
            scene.violation(request.key, f"is sent although {key}, the same call, is unknown")


async def relied_on(
    scene: Scene, ledger: ActionLedger, pool: Pool, key: ActionKey, *, since: datetime
) -> None:
    """Look whether an action that somebody relies on is being undone, as was known before.

    Args:
        scene: Where it is kept.
        ledger: The actor's own.
        pool: The same.
        key: The action.
        since: When somebody began to ask for it.
    """
    action = await ledger.get(key)
    if action is None or action.done_at is None or action.done_at > since:
        return
    if not action.effect_possible or action.undone_by is not None:
        return
    run = await ledger.runs.get(action.run_key)
    began = scene.undo_began.get(action.run_key)
    if run is not None and action.compensator and _is_undoing(run, began, since):
        scene.violation(key, "is relied on although its run is being undone")
    for undo in await _look(pool, _LIVE_UNDO, key=key):
        sent = scene.undo_sent.get(undo["key"])
        if sent is not None and undo["dispatched_at"] < sent < since:
            scene.violation(key, f"is relied on although {undo['key']} is undoing it")


async def left_by_end(scene: Scene, pool: Pool, run_key: RunKey, at: datetime) -> None:
    """Look whether a run that has just ended has left something dispatched to nobody."""
    for row in await _look(pool, _LEFT_BY_END, run_key=run_key, at=at):
        scene.violation(row["key"], "was dispatched when its run ended, and is left to nobody")


def now() -> datetime:
    """Return the present by the clock of the machine, which is the database's, too."""
    return datetime.now(UTC)


async def _look(pool: Pool, statement: LiteralString, **given: Any) -> Sequence[Mapping[str, Any]]:
    with suppress(psycopg.OperationalError):  # its session was ended: nothing is seen this time
        return await sql(pool, statement, **given)
    return []


def _is_undoing(run: Run, began: datetime | None, since: datetime) -> bool:
    """Whether an undo that had begun by then is still under way: without a break, for each
    beginning has its own moment."""
    if run.state != "undoing" or run.undo_began_at is None or began is None:
        return False
    return run.undo_began_at < began < since


def _like(request: ActionRequest) -> tuple[str, str, str]:
    return request.thread_id or request.run_key, request.tool, request.effective_digest

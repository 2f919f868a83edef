"""Recording how an action ended, by its call or by a person, and what follows from it.

One transaction writes the outcome and all that becomes known by it: the domain key is free again
where nothing happened, the calls that were answered with the action have its outcome, what it
undid is undone, and the relay gets what is to be undone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..identity import ActionKey
from .action_records import Action, Outcome
from .claim_results import Dispatched, HeldClaim
from .outcome_rules import fenced, judge_settlement, standing_outcome
from .run_records import Run
from .statements import Connection, execute, fetch, fetch_all, fetch_row, fetch_rows
from .transaction import transaction


async def record_outcome(
    connection: Connection, claim: Dispatched | HeldClaim, outcome: Outcome
) -> Outcome:
    """Commit the outcome of a call; return the one that stands. See `ActionLedger.record`."""
    releases = claim.domain_key is not None and not outcome.effect_possible
    parameters = {
        **_outcome_parameters(claim.key, outcome),
        "token": claim.token,
        "state_changes": outcome.state_changes,
    }
    if not releases and await execute(connection, "record", **parameters):
        return outcome
    if await _record_in_full(connection, claim, parameters, releases=releases):
        return outcome
    row = await fetch(connection, Action, "get_action", key=claim.key)
    return standing_outcome(claim, row)


async def _record_in_full(
    connection: Connection,
    claim: Dispatched | HeldClaim,
    parameters: dict[str, Any],
    *,
    releases: bool,
) -> bool:
    """Record what the common case does not: a key is released, or the action was parked."""
    async with transaction(connection):
        await _lock_around(connection, claim.key)
        if not await execute(connection, "record", **parameters):
            if not await execute(connection, "record_late", **parameters):
                return False
            repeats = await fetch_rows(connection, "settle_repeats", key=claim.key)
            await _write_consequences(connection, [claim.key, *(row["key"] for row in repeats)])
        if releases:
            await release(connection, claim.key, claim.domain_key)
        return True


async def settle_action(
    connection: Connection, key: ActionKey, outcome: Outcome, by: str
) -> Sequence[Action]:
    """Record a person's settlement, in the caller's transaction. See `ActionLedger.settle`."""
    await _lock_around(connection, key)
    found = await fetch(connection, Action, "lock_action", key=key)
    if found is not None and found.decided_by == by and found.recorded == outcome:
        return [found]  # settled before, by the same person: the answer was lost
    judged = judge_settlement(key, found, outcome)
    parameters = {**_outcome_parameters(key, outcome), "by": by}
    settled = await fetch_all(connection, Action, "settle", **parameters)
    if judged.domain_key is not None and not outcome.effect_possible:
        await release(connection, key, judged.domain_key)
    await _write_consequences(connection, [action.key for action in settled])
    return settled


async def park_action(
    connection: Connection,
    claim: Dispatched | HeldClaim,
    reason: str,
    *,
    over: bool,
    failures: int | None,
) -> Action:
    """Leave an action to a person; return its row. See `ActionLedger.park`."""
    given = {"token": claim.token, "reason": reason, "over": over, "failures": failures}
    parked = await fetch(connection, Action, "park", key=claim.key, **given)
    if parked is not None:
        return parked
    found = await fetch(connection, Action, "get_action", key=claim.key)
    if found is None or (found.status == "pending" and not found.parked):
        raise fenced(claim, found)
    return found


async def end_intent(connection: Connection, key: ActionKey, outcome: Outcome) -> bool:
    """End an intent of which nothing will be sent; return whether it was one.

    All that follows is written with it. Its domain key's row is locked. Safe to repeat.
    """
    row = await fetch_row(connection, "end_intent", key=key, result=outcome.result)
    return row is not None and bool(row["ended"])


async def give_up(connection: Connection, key: ActionKey, outcome: Outcome) -> bool:
    """The same of an intent that its run does not send any more.

    Unless somebody else relies on it: then the relay adopts it.
    """
    row = await fetch_row(connection, "give_up_intent", key=key, result=outcome.result)
    return row is not None and bool(row["ended"])


async def call_off(connection: Connection, key: ActionKey, outcome: Outcome) -> bool:
    """The same, in a transaction of its own."""
    async with transaction(connection):
        await lock_with_domain_key(connection, key)
        return await end_intent(connection, key, outcome)


async def release(connection: Connection, key: ActionKey, domain_key: str | None) -> None:
    """Free the domain key that an action without effect holds, if it has one."""
    if domain_key is not None:
        await execute(connection, "release_domain_key", domain_key=domain_key, key=key)


async def lock_with_domain_key(connection: Connection, key: ActionKey) -> Action | None:
    """Lock an action, and its domain key first, which is the lock order."""
    seen = await fetch(connection, Action, "get_action", key=key)
    if seen is not None and seen.domain_key is not None:
        await execute(connection, "lock_domain_key", domain_key=seen.domain_key)
    return await fetch(connection, Action, "lock_action", key=key)


def _outcome_parameters(key: ActionKey, outcome: Outcome) -> dict[str, Any]:
    return {
        "key": key,
        "outcome": outcome.kind,
        "effect_possible": outcome.effect_possible,
        "result": outcome.result,
    }


async def _lock_around(connection: Connection, key: ActionKey) -> None:
    """Lock what is written together with an action's outcome, in the lock order.

    Its run, whose end decides who undoes it, and under which both rows of an undo are written; the
    domain keys of the actions that it undoes, or that the calls undo which were answered with it;
    its own.
    """
    seen = await fetch(connection, Action, "get_action", key=key)
    if seen is None:
        return
    if seen.compensator is not None:
        # If the relay is to undo it, the run is written, too: a lock in share would be raised then.
        await fetch(connection, Run, "lock_run_to_fork", run_key=seen.run_key)
    elif seen.undoes is not None:
        await fetch(connection, Run, "lock_run", run_key=seen.run_key)
    undone = await fetch_rows(connection, "facts_undone_with", key=key)
    for domain_key in (*(row["domain_key"] for row in undone), seen.domain_key):
        if domain_key is not None:
            await execute(connection, "lock_domain_key", domain_key=domain_key)


async def mark_undone(connection: Connection, undos: Sequence[ActionKey]) -> None:
    """Mark what these undid as undone, and with it the calls that were answered with it."""
    await execute(connection, "mark_undone", keys=list(undos))
    await execute(connection, "mark_repeats_undone", keys=list(undos))


async def _write_consequences(connection: Connection, keys: Sequence[ActionKey]) -> None:
    """Write what follows from outcomes: another action is undone, or is to be."""
    await mark_undone(connection, keys)
    await execute(connection, "dequeue", keys=list(keys))
    for key in keys:
        await execute(connection, "release_undone", key=key)
        await execute(connection, "relay_undo", key=key)

"""Recording how an action ended, by the call itself or by a person, and what follows from it.

With the outcome is written, in one transaction, whatever else becomes known by it: the domain
key is free again where nothing happened, the calls that were answered with the action have its
outcome, what it undid is undone, and the relay is told of what is to be undone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import Fenced
from ..identity import ActionKey
from .calls import Connection, Row, execute, fetch, fetch_all
from .claim_rules import Dispatched, Owned, judge_settlement
from .records import Action, Outcome
from .sql import QUERIES


async def record_outcome(
    connection: Connection, claim: Dispatched | Owned, outcome: Outcome
) -> Outcome:
    """Commit the outcome of a call; return the one that stands. See `ActionLedger.record`."""
    releases = claim.domain_key is not None and not outcome.effect_possible
    parameters = {
        "key": claim.key,
        "token": claim.token,
        "outcome": outcome.kind,
        "effect_possible": outcome.effect_possible,
        "result": outcome.result,
        "state_changes": outcome.state_changes,
    }
    if not releases and await fetch(connection, "record", **parameters) is not None:
        return outcome
    if await _record_in_full(connection, claim, parameters, releases=releases):
        return outcome
    return _what_stands(await fetch(connection, "get_action", key=claim.key), claim)


async def _record_in_full(
    connection: Connection,
    claim: Dispatched | Owned,
    parameters: dict[str, Any],
    *,
    releases: bool,
) -> bool:
    """Record what the common case does not: a key is released, or the action was parked."""
    async with connection.transaction():
        await _lock_around(connection, await fetch(connection, "get_action", key=claim.key))
        recorded = await fetch(connection, "record", **parameters)
        if recorded is None:
            recorded = await fetch(connection, "record_late", **parameters)
            if recorded is None:
                return False
            repeats = await fetch_all(connection, "settle_repeats", **parameters)
            await _became_known(connection, [claim.key, *(row["key"] for row in repeats)])
        if releases:
            await connection.execute(
                QUERIES["release_domain_key"], {"domain_key": claim.domain_key, "key": claim.key}
            )
        return True


def _what_stands(row: Row | None, claim: Dispatched | Owned) -> Outcome:
    if row is None:
        raise Fenced(f"{claim.key} is gone: a failover lost it", lost=True)
    recorded = Action.from_row(row).recorded
    if recorded is None:
        raise Fenced(f"{claim.key} was taken over by another attempt")
    return recorded


async def settle_action(
    connection: Connection, key: ActionKey, outcome: Outcome, by: str
) -> Sequence[Action]:
    """Record a person's word, in the caller's transaction. See `ActionLedger.settle`."""
    await _lock_around(connection, await fetch(connection, "get_action", key=key))
    row = await fetch(connection, "lock_action", key=key)
    if row is not None and row["decided_by"] == by and Action.from_row(row).recorded == outcome:
        return [Action.from_row(row)]  # said before, by the same person: the answer was lost
    found = judge_settlement(key, None if row is None else Action.from_row(row), outcome)
    cursor = await connection.execute(
        QUERIES["settle"],
        {
            "key": key,
            "outcome": outcome.kind,
            "effect_possible": outcome.effect_possible,
            "result": outcome.result,
            "by": by,
        },
    )
    settled = [Action.from_row(row) for row in await cursor.fetchall()]
    if found.domain_key is not None and not outcome.effect_possible:
        await connection.execute(
            QUERIES["release_domain_key"], {"domain_key": found.domain_key, "key": key}
        )
    await _became_known(connection, [action.key for action in settled])
    return settled


async def _lock_around(connection: Connection, seen: Row | None) -> None:
    """Lock what is written with an action's outcome, in the lock order.

    Its run, where its end decides who undoes it, and writes both rows of an undo; the domain
    key of what it undoes; its own.
    """
    if seen is None:
        return
    if seen["compensator"] is not None or seen["undoes"] is not None:
        await fetch(connection, "lock_run", run_key=seen["run_key"])
    keys = [seen["domain_key"]]
    if seen["undoes"] is not None:
        undone = await fetch(connection, "get_action", key=seen["undoes"])
        keys.insert(0, undone and undone["domain_key"])
    for key in keys:
        if key is not None:
            await fetch(connection, "lock_domain_key", domain_key=key)


async def _became_known(connection: Connection, keys: Sequence[ActionKey]) -> None:
    """Write what follows from outcomes: another action is undone, or is to be."""
    await execute(connection, "mark_undone", keys=list(keys))
    await execute(connection, "leave_relay", keys=list(keys))
    for key in keys:
        await execute(connection, "release_undone", key=key)
        await execute(connection, "relay_undo", key=key)

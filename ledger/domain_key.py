"""Claiming a business fact: of all the actions with one domain key, one holds it at a time.

The key's row is locked before the holder's. Whoever finds the key free holds it from then on,
in its next generation; whoever finds it held gets the holder's receipt, waits, finishes what the
holder left, or is refused (`claims.judge_holder`). What was refused is kept as a row, too, so
that a replay finds the same.
"""

from __future__ import annotations

from typing import Final

from ..errors import IdempotencyKeyConflict
from ..identity import UNDO_PREFIX, ActionKey
from .action_rows import insert, insert_duplicate, insert_settled
from .calls import Connection, Row, execute, fetch, fetch_all
from .claim_rules import CONFLICT, FORWARD, AlreadyDone, Claim, Parked, Verdict, judge_holder
from .question_rules import Question
from .questions import close_expired
from .records import NEVER_SENT, Action, ActionRequest, Attempt, Outcome
from .reliance import Reliance, judge_reliance
from .sql import QUERIES
from .taking import carry_out

WAITS: Final = "WaitsForAnswer"
"""The kind of the error that a call ends with whose business fact waits for a person."""
MAY_BE_UNDONE: Final = "MayBeUndone"
"""The kind of the error that a call ends with whose business fact stands, or does not."""

_WAITS: Final = (
    "not executed: {} is at it, and waits for a person's answer; what becomes of it is told there"
)
_MAY_BE_UNDONE: Final = (
    "not executed: {} had done it, and was perhaps undone since; whether it stands is unknown "
    "until its undo is settled. Do not assume either."
)


async def claim_domain_key(
    connection: Connection, request: ActionRequest, attempt: Attempt
) -> Claim:
    """Claim what has no row yet, by its domain key: take the key, or go by who holds it."""
    held = await fetch(connection, "lock_domain_key", domain_key=request.domain_key)
    assert held is not None, "the key's row is made if there is none"
    holder = held["held_by"]
    if holder is None or holder == request.key:
        # Free; or ours, from a row that a failover lost: the same key again, not the next one.
        generation = held["generation"] + (1 if holder is None else 0)
        return await _hold_and_insert(connection, request, attempt, generation)
    row = await fetch(connection, "lock_action", key=holder)
    if row is None:
        error = IdempotencyKeyConflict(
            f"{request.domain_key!r} is held by {holder}, whose record is gone", existing=holder
        )
        return await _refuse(connection, request, error)
    found = Action.from_row(row)
    question = await _open_question(connection, found)
    if question is not None and question.state == "expired":
        await close_expired(connection, found, question)
        found = Action.from_row(await _locked(connection, found.key))
    if found.state == "intent" and not await _is_sent(connection, found):
        await fetch(connection, "void_intent", key=found.key, result=NEVER_SENT.result)
        await execute(connection, "leave_relay", keys=[found.key])
        found = Action.from_row(await _locked(connection, found.key))
    if found.state == "error" and not found.effect_possible:
        # It was an intent until now: nothing was sent, and the key is free.
        return await _hold_and_insert(connection, request, attempt, held["generation"] + 1)
    return await _claim_held(connection, request, attempt, found, question)


async def _claim_held(
    connection: Connection,
    request: ActionRequest,
    attempt: Attempt,
    found: Action,
    question: Question | None,
) -> Claim:
    """Claim what another action holds the domain key of, and perhaps asks a person about."""
    try:
        await _check_undoes_the_same(connection, found, request)
        reliance = await judge_reliance(connection, found, request)
        waits = reliance is Reliance.UNDOING
        verdict = Verdict.WAIT if waits else judge_holder(found, request, attempt)
    except IdempotencyKeyConflict as error:
        return await _refuse(connection, request, error)
    if reliance is Reliance.PERHAPS_UNDONE:
        return await _turn_away(
            connection, request, MAY_BE_UNDONE, _MAY_BE_UNDONE.format(found.key)
        )
    if question is not None and question.state == "waiting" and verdict in FORWARD:
        # It may take days, so it is not waited for here; and what a person is asked about is
        # carried out by whoever asked, or not at all.
        return await _turn_away(connection, request, WAITS, _WAITS.format(question.key))
    claim = await carry_out(connection, verdict, found, request, attempt)
    if isinstance(claim, AlreadyDone | Parked):
        return await insert_duplicate(connection, request, claim.action)
    return claim


async def _locked(connection: Connection, key: ActionKey) -> Row:
    row = await fetch(connection, "lock_action", key=key)
    assert row is not None, "the row is locked"
    return row


async def _hold_and_insert(
    connection: Connection, request: ActionRequest, attempt: Attempt, generation: int
) -> Claim:
    await connection.execute(
        QUERIES["hold_domain_key"],
        {"domain_key": request.domain_key, "key": request.key, "generation": generation},
    )
    return await insert(connection, request, attempt, generation=generation)


async def _refuse(
    connection: Connection, request: ActionRequest, error: IdempotencyKeyConflict
) -> Claim:
    """Record a conflict, so that a replay refuses it too, whatever became of the holder."""
    refused = Outcome.error(kind=CONFLICT, message=error.message, effect_possible=False)
    return AlreadyDone(
        await insert_settled(
            connection,
            request,
            duplicate_of=error.existing,
            generation=1,
            outcome=refused,
            parked_reason=None,
        )
    )


async def _turn_away(
    connection: Connection, request: ActionRequest, kind: str, message: str
) -> Claim:
    """End a call whose business fact another action has in hand: it does, and holds, nothing."""
    away = Outcome.error(kind=kind, message=message, effect_possible=False)
    return AlreadyDone(
        await insert_settled(
            connection,
            request,
            duplicate_of=None,
            generation=1,
            outcome=away,
            parked_reason=None,
        )
    )


async def _open_question(connection: Connection, holder: Action) -> Question | None:
    """Return what the holder has asked a person and has no answer to; locked."""
    if holder.status == "done" or holder.parked:
        return None
    rows = await fetch_all(connection, "lock_questions", key=holder.key)
    return next((Question.from_row(row) for row in rows if row["answer"] is None), None)


async def _check_undoes_the_same(
    connection: Connection, holder: Action, request: ActionRequest
) -> None:
    """Refuse an undo whose domain key was used for what undid another action, or came before.

    That receipt would say of something that stands that it is undone.
    """
    if request.undoes is None:
        return
    undone = await fetch(connection, "get_action", key=request.undoes)
    at = None if undone is None else undone["dispatched_at"]
    # An intent can be named by what undoes it, and be sent only after that.
    after = at is None or holder.dispatched_at is None or holder.dispatched_at >= at
    if not (after and holder.undoes in (None, request.undoes)):
        raise IdempotencyKeyConflict(
            f"{request.domain_key!r} was used by {holder.key}, which did not undo "
            f"{request.undoes}: what tells two calls apart has to tell their undos apart",
            existing=holder.key,
        )


async def _is_sent(connection: Connection, holder: Action) -> bool:
    """Whether somebody may still send the holder; not locked: that would be a deadlock.

    That is its run, while it runs, or is undone; of what the relay sends, the relay, unless the
    run was stopped. A run that is opened again at this very moment finds its intent void, or has
    claimed it.
    """
    run = await fetch(connection, "get_run", run_key=holder.run_key)
    if run is None:
        return False
    if holder.position.startswith(UNDO_PREFIX):
        return bool(run["state"] == "undoing")
    relayed = holder.relayed and run["state"] == "ended" and run["stopped_at"] is None
    return run["state"] == "running" or relayed

"""The rows that claims write: dispatched, intended, or settled from the start.

Each is written in the claim's own transaction. A row that is there already is taken as it is
(`taking`); what a claimant gets of either is put together here.
"""

from __future__ import annotations

from typing import Any

from ..idempotency_key import default_idempotency_key, with_generation
from ..identity import epoch_of, step_of
from .calls import Connection, execute, fetch
from .claim_rules import AlreadyDone, Claim, Dispatched, Intended, Parked, key_life
from .question_rules import Question
from .records import Action, ActionRequest, Attempt, Outcome


async def insert(
    connection: Connection, request: ActionRequest, attempt: Attempt, *, generation: int
) -> Claim:
    """Write the action: dispatched, or as an intent that the relay sends."""
    if request.detached:
        return await _insert_intent(connection, request, generation=generation)
    return await _insert_dispatched(connection, request, attempt, generation=generation)


async def _insert_intent(
    connection: Connection, request: ActionRequest, *, generation: int
) -> Intended:
    key = request.domain_key and with_generation(request.domain_key, generation)
    parameters = request_parameters(request) | {"idempotency_key": key or first_key(request)}
    row = await fetch(connection, "insert_intent", generation=generation, **parameters)
    assert row is not None, "an insert without a conflict clause returns its row"
    await fetch(connection, "queue_intent", key=request.key, tool=request.tool)
    return Intended(Action.from_row(row))


async def _insert_dispatched(
    connection: Connection, request: ActionRequest, attempt: Attempt, *, generation: int
) -> Claim:
    key = request.domain_key and with_generation(request.domain_key, generation)
    parameters = request_parameters(request) | attempt_parameters(attempt)
    parameters["idempotency_key"] = key or first_key(request)
    row = await fetch(connection, "insert_dispatched", generation=generation, **parameters)
    assert row is not None, "an insert without a conflict clause returns its row"
    return dispatched(Action.from_row(row), request, attempt, taken_over=False)


async def insert_duplicate(
    connection: Connection, request: ActionRequest, original: Action
) -> Claim:
    """Give the claimant a row of its own that says whose receipt it has."""
    done = original.recorded is not None
    row = await insert_settled(
        connection,
        request,
        duplicate_of=original.key,
        generation=original.generation,
        outcome=original.recorded,
        parked_reason=None if done else f"the same as {original.key}, which is unknown",
    )
    if done and request.undoes is not None:
        await execute(connection, "mark_undone", keys=[row.key])
    return AlreadyDone(row) if done else Parked(row)


async def insert_settled(
    connection: Connection,
    request: ActionRequest,
    *,
    duplicate_of: str | None,
    generation: int,
    outcome: Outcome | None,
    parked_reason: str | None,
) -> Action:
    """Write an action that ends as it is claimed: nothing is ever sent for it."""
    row = await fetch(
        connection,
        "insert_settled",
        **request_parameters(request),
        idempotency_key=None,
        generation=generation,
        duplicate_of=duplicate_of,
        status="pending" if outcome is None else "done",
        outcome=outcome and outcome.kind,
        effect_possible=outcome and outcome.effect_possible,
        result=outcome and outcome.result,
        parked_reason=parked_reason,
    )
    assert row is not None, "an insert without a conflict clause returns its row"
    return Action.from_row(row)


def dispatched(
    row: Action,
    request: ActionRequest,
    attempt: Attempt,
    *,
    taken_over: bool,
    asked: tuple[Question, ...] = (),
) -> Dispatched:
    """Return what its attempt gets of a row that is dispatched."""
    assert row.idempotency_key is not None, "agent_actions_dispatch_is_complete"
    return Dispatched(
        key=row.key,
        tool=row.tool,
        args=row.args,
        idempotency_key=row.idempotency_key,
        domain_key=row.domain_key,
        attempt=attempt,
        effect=row.effect,
        taken_over=taken_over,
        settles_for=None if row.key == request.key else request.key,
        failures=row.failures,
        key_life=key_life(row) if taken_over else None,
        can_look_up=request.can_look_up,
        asked=asked,
    )


def dispatched_new(request: ActionRequest, attempt: Attempt) -> Dispatched:
    """Return the same of a row that has just been written, without reading it back."""
    return Dispatched(
        key=request.key,
        tool=request.tool,
        args=request.args,
        idempotency_key=first_key(request),
        domain_key=request.domain_key,
        attempt=attempt,
        effect=request.effect,
        can_look_up=request.can_look_up,
    )


def first_key(request: ActionRequest) -> str:
    """Return the idempotency key of an action whose business fact nothing has held before."""
    return request.domain_key or default_idempotency_key(request.key)


def request_parameters(request: ActionRequest) -> dict[str, Any]:
    """Return what the queries are told of a request."""
    return {
        **vars(request),
        "key": request.key,
        "thread": request.thread_id or request.run_key,
        "epoch": epoch_of(request.position),
        "step": step_of(request.position) or 0,
    }


def attempt_parameters(attempt: Attempt) -> dict[str, Any]:
    """Return what the queries are told of an attempt: whose the row is, and for how long."""
    return {
        "attempt_at": attempt.started_at,
        "token": attempt.token,
        "lease": attempt.lease,
        "deadline": attempt.lease if attempt.deadline is None else attempt.deadline,
    }

"""Claiming an action: one statement where nothing stands in the way, else by what is found.

The rows are locked in one order: the run, the action's own if it has one; else the domain key of
what it undoes, its own domain key (`domain_keys`), and the action that holds that. What may be
done about them is not decided here: see `run_rules` for the run and `claims` for the actions.
"""

from __future__ import annotations

from dataclasses import replace

from psycopg import errors as pg

from ..errors import RunNotRunning
from ..idempotency_key import undo_key
from .action_rows import (
    attempt_parameters,
    dispatched_new,
    first_key,
    insert,
    insert_duplicate,
    request_parameters,
)
from .calls import Connection, fetch
from .claim_rules import FORWARD, Claim, Verdict, judge_own
from .domain_key import claim_domain_key
from .records import Action, ActionRequest, Attempt
from .run_rules import is_the_relays, may_start
from .taking import carry_out


async def claim_action(connection: Connection, request: ActionRequest, attempt: Attempt) -> Claim:
    """Claim an action, in transactions of its own. See `ActionLedger.claim`."""
    if await _claim_new(connection, request, attempt):
        return dispatched_new(request, attempt)
    claim = await _claim_as_found(connection, request, attempt)
    if claim is None and request.purpose == "forward":
        # The run has ended: go on with it if this execution is younger than its end.
        await fetch(
            connection,
            "reopen_run",
            run_key=request.run_key,
            attempt_at=attempt.started_at,
        )
        claim = await _claim_as_found(connection, request, attempt)
    if claim is None:
        raise RunNotRunning(f"the run {request.run_key} has ended")
    return claim


async def _claim_new(connection: Connection, request: ActionRequest, attempt: Attempt) -> bool:
    if request.purpose != "forward" or request.undoes_domain_key is not None or request.detached:
        return False  # what undoes another is linked to it, under that one's lock
    parameters = request_parameters(request) | attempt_parameters(attempt)
    parameters["idempotency_key"] = first_key(request)
    try:
        return await fetch(connection, "claim_new", **parameters) is not None
    except pg.UniqueViolation:
        # Somebody took the domain key between our look and our insert: the row is there now.
        return False


async def _claim_as_found(
    connection: Connection, request: ActionRequest, attempt: Attempt
) -> Claim | None:
    try:
        return await _claim_found(connection, request, attempt)
    except pg.UniqueViolation:
        # Another attempt of this action wrote its row meanwhile: it is there now.
        return await _claim_found(connection, request, attempt)


async def _claim_found(
    connection: Connection, request: ActionRequest, attempt: Attempt
) -> Claim | None:
    """Claim by the rules of `claims`, rows locked. None: the run has ended, nothing is written."""
    async with connection.transaction():
        run = await fetch(connection, "lock_run", run_key=request.run_key)
        if run is None:
            raise RunNotRunning(f"the run {request.run_key} is not in the ledger", known=False)
        own = await fetch(connection, "lock_action", key=request.key)
        if own is not None:
            found = Action.from_row(own)
            verdict = judge_own(found, request, attempt)
            asks = request.lookup_only and verdict is Verdict.LOOK_UP
            if request.purpose == "relay" and not is_the_relays(run, found):
                raise RunNotRunning(f"the run {request.run_key} goes on, and sees to it itself")
            if verdict in FORWARD and not asks and not may_start(run, request):
                return None
            return await carry_out(connection, verdict, found, request, attempt)
        if not may_start(run, request):
            return None
        return await _claim_unwritten(connection, request, attempt)


async def _claim_unwritten(
    connection: Connection, request: ActionRequest, attempt: Attempt
) -> Claim:
    """Claim what has no row yet."""
    if request.undoes_domain_key is not None:
        request = await _link(connection, request)
    if request.undoes is not None and request.domain_key is not None:
        # A receipt of it frees the other one's key, which is locked first.
        undone = await fetch(connection, "get_action", key=request.undoes)
        if undone is not None and undone["domain_key"] is not None:
            await fetch(connection, "lock_domain_key", domain_key=undone["domain_key"])
    if request.domain_key is not None:
        return await claim_domain_key(connection, request, attempt)
    if request.purpose == "forward":  # two undos are of two actions, however equal
        unknown = await fetch(connection, "open_unknown", **request_parameters(request))
        if unknown is not None:
            return await insert_duplicate(connection, request, Action.from_row(unknown))
    return await insert(connection, request, attempt, generation=1)


async def _link(connection: Connection, request: ActionRequest) -> ActionRequest:
    """Name the action that a call undoes, by whichever holds the business fact now.

    That one's domain key is locked first, wherever both are.
    """
    held = await fetch(connection, "lock_domain_key", domain_key=request.undoes_domain_key)
    assert held is not None, "the key's row is made if there is none"
    own = request.domain_key
    if own is not None and held["generation"] > 1:
        own = undo_key(own, held["generation"])
    return replace(request, undoes=held["held_by"], domain_key=own)

"""What a guarded call claims, fixed before anything is claimed.

Its arguments are checked, its keys made, the state that it is given is read. What an earlier
attempt wrote at its position counts for more than what newer code makes of the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from ...canonical import parse
from ...errors import (
    ActionError,
    ArgumentsChanged,
    Fenced,
    InvalidArguments,
    LedgerUnavailable,
    StateUnusable,
)
from ...idempotency_key import undo_key
from ...identity import ActionKey, action_key
from ...ledger import Action, ActionLedger, ActionRequest
from ...ledger.result_codec import error_text
from ..app.state_copy import GivenState
from ..app.tool_context import UndoneAction
from ..contract.encoding import raw_text
from ..contract.sizes import MAX_STATE
from .guarded_call import GuardedCall
from .stored_inputs import with_inputs


@dataclass(frozen=True)
class Prepared:
    """A call that can be claimed."""

    request: ActionRequest
    undoes: UndoneAction | None = None
    """What the tool may know of the action that it undoes."""
    state: GivenState | None = None
    """What the tool is given of its conversation."""


class RequestReader:
    """Prepares one call. It only reads, so it is safe to repeat."""

    def __init__(self, ledger: ActionLedger, call: GuardedCall) -> None:
        self._ledger = ledger
        self._call = call
        self._key = action_key(call.header.run_key, call.header.position)

    async def read(self, args: Sequence[Any]) -> Prepared | ActionError:
        """Return the call, or why it is refused.

        Raises:
            ApplicationError: The ledger is away; nothing was called.
            Fenced: The ledger has lost what the call is about.
        """
        header, guarded = self._call.header, self._call.guarded
        undone = None if header.undoes is None else await self._stored(header.undoes)
        undoes = None if undone is None else _undoes(undone)
        if (row := await self._row_that_counts()) is not None:
            return Prepared(self._as_it_stands(row), undoes)
        try:
            request = guarded.request(await self._whole(args, undone), header)
        except ApplicationError:
            raise  # the ledger is away
        except Exception as err:
            # An application's validator may raise anything, on every attempt.
            refusal = err if isinstance(err, ActionError) else _unfit(err)
            return await self._row_or(self._changed(refusal), undoes)
        if undone is not None and request.domain_key is not None:
            # The key of *this* action's undo, and not of an earlier generation's.
            own = undo_key(request.domain_key, undone.generation)
            return Prepared(replace(request, domain_key=own), undoes)
        if guarded.state is None:
            return Prepared(request, undoes)
        try:
            return Prepared(request, undoes, await self._given_state())
        except StateUnusable as err:
            return await self._begun_or(err)

    async def _whole(self, args: Sequence[Any], undone: Action | None) -> Sequence[Any]:
        """Return the arguments with what did not travel: an undo's, or a plan's large results."""
        guarded, inputs = self._call.guarded, self._call.header.inputs
        if undone is not None:
            return guarded.stored_args(guarded.undo_args(undone))
        if self._call.header.approved:
            return guarded.stored_args(await self._approved())
        if not inputs:
            return args
        try:
            text = await with_inputs(self._ledger, raw_text(args[0]), inputs)
        except LedgerUnavailable as err:
            raise self._call.not_started(err.message) from err
        return guarded.stored_args(text)

    async def _approved(self) -> str:
        """Return the arguments with which the call was begun, or else those that were approved."""
        begun = await self._get(self._key)
        if begun is not None:
            return begun.args
        try:
            approval = await self._ledger.approvals.get(self._key)
        except LedgerUnavailable as err:
            raise self._call.not_started(err.message) from err
        if approval is None:
            raise ArgumentsChanged(f"the approval of {self._key} is gone: it is requested again")
        return approval.approved_args

    async def _row_that_counts(self) -> Action | None:
        """Return the row of a call that no run planned, whatever newer code makes of it.

        Only an undo may have none yet.
        """
        match self._call.header.purpose:
            case "forward":
                return None
            case "undo":
                return await self._get(self._key)
        return await self._stored(self._key)

    async def begun_before(self) -> ActionRequest | None:
        """Return the request that stands at the position of a READ, if there is one.

        Newer code may take a tool for a READ. What the row says counts then.
        """
        return None if self._call.nothing_written_before else await self._begun()

    async def _begun(self) -> ActionRequest | None:
        """Return the request that stands at this position, if an earlier attempt may have sent it.

        What the row says counts then: "not run" would be false.
        """
        found = await self._get(self._key)
        if found is None or found.only_intended:
            return None  # nothing was sent, so a refusal is true
        return self._as_it_stands(found)

    async def _begun_or(self, refusal: ActionError) -> Prepared | ActionError:
        """Return the refusal, unless the call was begun: the ledger says so, no sign of Temporal's.

        It is asked only here, so a call that is accepted costs no look.
        """
        begun = await self._begun()
        return refusal if begun is None else Prepared(begun)

    async def _row_or(
        self, refusal: ActionError, undoes: UndoneAction | None
    ) -> Prepared | ActionError:
        """Return the refusal of arguments, unless the call has a row: then that one counts.

        Arguments that were valid once may be refused later (a date that must lie ahead, a
        stricter validator). A call that was begun goes on by its row. An intent is called with
        what is stored, or ends: it would hold its business fact for nothing.
        """
        if self._call.guarded.state is not None:
            return await self._begun_or(refusal)  # such an intent cannot be called without a state
        found = await self._get(self._key)
        return refusal if found is None else Prepared(self._as_it_stands(found), undoes)

    def _changed(self, refusal: ActionError) -> ActionError:
        """Say that it is the tool that has changed, where these arguments were judged before."""
        if self._call.header.judged is None or isinstance(refusal, ArgumentsChanged):
            return refusal
        return ArgumentsChanged(refusal.message)

    async def _given_state(self) -> GivenState:
        """Return the state as the turn left it that requested the call: equal for every attempt.

        Read before the claim, so that a ledger that is away costs no dispatch.
        """
        header, guarded = self._call.header, self._call.guarded
        if header.thread_version is None:
            raise StateUnusable(f"{guarded.name}: the run keeps no state")
        try:
            text = await self._ledger.threads.state(
                header.thread_id or header.run_key, header.thread_version
            )
        except LedgerUnavailable as err:
            raise self._call.not_started(err.message) from err
        given = GivenState(text, header.changes_limit or MAX_STATE)
        assert guarded.state is not None
        guarded.state.check(given)
        return given

    async def _stored(self, key: ActionKey) -> Action:
        found = await self._get(key)
        if found is None:
            raise Fenced(f"{key} is gone: a failover lost it", lost=True)
        return found

    async def _get(self, key: ActionKey) -> Action | None:
        try:
            return await self._ledger.get(key)
        except LedgerUnavailable as err:
            raise self._call.not_started(err.message) from err

    def _as_it_stands(self, found: Action) -> ActionRequest:
        header, guarded = self._call.header, self._call.guarded
        return ActionRequest(
            run_key=header.run_key,
            position=header.position,
            tool=guarded.name,
            args=found.args,
            effect=found.effect,
            requested_digest=header.requested_digest,
            effective_digest=found.effective_digest,
            domain_key=found.domain_key,
            key_ttl=found.key_ttl,
            thread_id=found.thread_id,
            can_look_up=guarded.lookup is not None,
            settles_after=guarded.lookup.settles_after if guarded.lookup else timedelta(),
            undoes=found.undoes,
            purpose=header.purpose,
            lookup_only=header.lookup_only,
            owner=activity.info().workflow_id,
        )


def _undoes(undone: Action) -> UndoneAction:
    return UndoneAction(
        undone.key,
        undone.tool,
        parse(undone.args),
        undone.recorded.value if undone.outcome == "ok" and undone.recorded else None,
        undone.idempotency_key,
    )


def _unfit(error: Exception) -> InvalidArguments:
    return InvalidArguments(
        f"the arguments could not be checked: {type(error).__name__}: {error_text(error)[:300]}"
    )

"""What a guarded call asks of the ledger, fixed before anything is claimed.

Its arguments are checked, its keys made, the state that it is given is read. What an earlier
attempt has written at its position counts for more than what newer code makes of the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from ...canonical import parse
from ...errors import ActionError, Fenced, InvalidArguments, LedgerUnavailable, StateUnusable
from ...idempotency_key import undo_key
from ...identity import ActionKey, action_key
from ...ledger import Action, ActionLedger, ActionRequest
from ...ledger.codec import error_text
from ..app.state_copy import GivenState
from ..app.tool_context import UndoneAction
from ..contract.activity_failure import as_failure
from ..contract.sizes import MAX_STATE
from .incoming_call import IncomingCall


@dataclass(frozen=True)
class Prepared:
    """A call that can be claimed."""

    request: ActionRequest
    undoes: UndoneAction | None = None
    """What the tool is told of the action that it undoes."""
    state: GivenState | None = None
    """What the tool is given of its conversation."""


class Preparing:
    """Prepares one call. It only reads, so it is safe to repeat."""

    def __init__(self, ledger: ActionLedger, call: IncomingCall) -> None:
        self._ledger = ledger
        self._call = call

    async def prepare(self, args: Sequence[Any]) -> Prepared | ActionError:
        """Return the call, or why it is refused.

        Raises:
            ApplicationError: The ledger is away, or has lost what the call is about.
        """
        header, guarded = self._call.header, self._call.guarded
        if header.purpose in ("settle", "relay"):
            # What stands there counts, whatever newer code makes of its arguments.
            return Prepared(self._as_it_stands(await self._surely_standing()))
        undone = None if header.undoes is None else await self._undone(header.undoes)
        undoes = None if undone is None else _told_of(undone)
        try:
            request = guarded.prepare(args, header)
        except Exception as err:
            # Whatever it is: a validator of the application may raise anything, again and again.
            refusal = err if isinstance(err, ActionError) else _unfit(err)
            return await self._begun_or(refusal, undoes)
        if undone is not None and request.domain_key is not None:
            # The key of *this* action's undo.
            own = undo_key(request.domain_key, undone.generation)
            return Prepared(replace(request, domain_key=own), undoes)
        if not guarded.takes_state:
            return Prepared(request, undoes)
        try:
            return Prepared(request, undoes, await self._state_to_give())
        except StateUnusable as err:
            return await self._begun_or(err, undoes)

    async def begun_before(self) -> ActionRequest | None:
        """Return the request that stands at this position, if an earlier attempt wrote one.

        Arguments that were good once may be refused later (a date that must lie ahead, a
        stricter validator), and newer code may take a tool for a READ: what the row says
        counts then, and "not run" would be a lie.
        """
        if self._call.is_first:
            return None
        found = await self._standing()
        if found is None:
            return None
        if found.status == "pending" and found.dispatched_at is None and not found.relayed:
            return None
        return self._as_it_stands(found)

    async def _begun_or(
        self, refusal: ActionError, undoes: UndoneAction | None
    ) -> Prepared | ActionError:
        begun = await self.begun_before()
        return refusal if begun is None else Prepared(begun, undoes)

    async def _undone(self, key: ActionKey) -> Action:
        """Return the action that this call undoes."""
        undone = await self._from_ledger(key)
        if undone is None:
            raise _lost(key)
        return undone

    async def _state_to_give(self) -> GivenState:
        """Return the state as the turn left it that asked for the call: every attempt's is equal.

        Read before the claim: a ledger that is away costs no dispatch.
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
        guarded.check_state(given)
        return given

    async def _surely_standing(self) -> Action:
        standing = await self._standing()
        if standing is None:
            raise _lost(self._key)
        return standing

    async def _standing(self) -> Action | None:
        return await self._from_ledger(self._key)

    @property
    def _key(self) -> ActionKey:
        return action_key(self._call.header.run_key, self._call.header.position)

    async def _from_ledger(self, key: ActionKey) -> Action | None:
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
            can_look_up=guarded.can_look_up,
            settles_after=guarded.settles_after,
            undoes=found.undoes,
            purpose=header.purpose,
            lookup_only=header.lookup_only,
            owner=activity.info().workflow_id,
        )


def _told_of(undone: Action) -> UndoneAction:
    return UndoneAction(
        undone.key,
        undone.tool,
        parse(undone.args),
        undone.recorded.value if undone.outcome == "ok" and undone.recorded else None,
        undone.idempotency_key,
    )


def _lost(key: ActionKey) -> ApplicationError:
    """Return the failure of what is about a row that a failover lost; final."""
    return as_failure(Fenced(f"{key} is gone: a failover lost it", lost=True))


def _unfit(error: Exception) -> InvalidArguments:
    return InvalidArguments(
        f"the arguments could not be checked: {type(error).__name__}: {error_text(error)[:300]}"
    )

"""One attempt at one guarded call: claim, call at most once, and what follows from the end.

    ended with                    READ        IDEMPOTENT    LOOKUP       AT_MOST_ONCE
    ---------------------------   ----------  ------------  -----------  ------------
    a value                       ok          ok            ok           ok
    declined: nothing happened    error       error *       error *      error *
    not attempted                 again       again         again        again
    ... `tries` used up           error       error *       error *      error *
    still in progress             again, until the node's deadline; then as below
    transient, time-out           again       again, same   ask, then    unknown
                                              key           again
    ... `tries` used up           error       unknown       ask **       unknown
    anything else                 error       unknown       unknown      unknown
    a question to a person        the call waits as an intent, and is made again with the answer

    ** found: ok; surely never happened: error without effect; no time to know it: unknown.
    * unknown, where an earlier attempt may have sent something: a refusal or a failed connection
      speaks for its own call, and a tool's own check ("charged already") refuses *because* an
      earlier one went through.

"Again" is another attempt of Temporal's, after a while: it claims anew, and the row says what
it may do. Temporal's attempts are not limited. What the tool failed is counted on the row, so
that a dead worker or an outage of the ledger uses up none of its tries.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, Protocol, TypeAlias, TypeVar
from uuid import uuid4

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from ..canonical import parse, scrub
from ..crash import crash_point
from ..errors import (
    ActionError,
    CommitlineError,
    Fenced,
    IdempotencyKeyConflict,
    InvalidArguments,
    LedgerUnavailable,
    NodeTimeout,
    NotAttempted,
    RunNotRunning,
    StateUnusable,
    ToolTimeout,
)
from ..identity import ActionKey, action_key, parent_of, split_action_key, undo_key
from ..ledger import (
    Action,
    ActionLedger,
    ActionRequest,
    AlreadyDone,
    Ask,
    Attempt,
    Busy,
    Claim,
    Dispatched,
    Effect,
    Intended,
    Outcome,
    Parked,
    Question,
    QuestionRequest,
)
from ..ledger.codec import error_text
from .asking import Asking, is_pause
from .bounded_call import (
    End,
    LeftBehind,
    OnLate,
    Raised,
    Returned,
    call_within,
    ignore,
    see_through,
)
from .failures import Failure, Kind
from .heartbeat import failed_so_far
from .limits import CallLimits
from .origin import Origin, first_of_all
from .replies import Unrecorded
from .state import MAX_STATE, GivenState, current_state
from .tool import NEVER_HAPPENED, ToolContext, Undoes
from .tool_runner import raise_tamed

T = TypeVar("T")

log = structlog.get_logger("commitline")

LEASE_GRACE: Final = timedelta(seconds=30)
"""Beyond an attempt's deadline: clocks, a slow record."""
MAX_LEASE: Final = timedelta(hours=24)
NOT_STARTED: Final = "NotStarted"
"""The type of the failure of a call that was not dispatched: the run waits, and starts it
afresh, with a fresh clock."""

STOPPING: Final = "stopping"
"""In the details of a failure: the run is being stopped, and its cancellation follows."""

_CLAIM_SECONDS: Final = 10.0
"""How long one attempt waits for its claim; then the call starts afresh."""
_SLOW_CLAIM: Final = timedelta(seconds=5)
"""How long a claim may be under way and still be called by. Within that, the time that it took
is not taken from the tool; the row says that the attempt may send for so much longer."""
_BUSY_SECONDS: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""How long a claim waits, time after time, for another action that is at work on its key."""
_UNAVAILABLE_SECONDS: Final = 0.5
_SAME_CALL: Final = 50
"""Up to which attempt a call of the relay's is tried again, and not started afresh."""
_SAME_CALL_DELAY: Final = timedelta(seconds=2)
_BENIGN: Final = ApplicationErrorCategory.BENIGN
"""Of what is tried again by design: the SDK need not log a traceback of it."""
_FIRST_RETRY: Final = timedelta(seconds=0.5)
_LAST_RETRY: Final = timedelta(seconds=30)
_LAST_RELAYED: Final = timedelta(minutes=10)
"""Of what nobody waits for."""
_ASK_AGAIN: Final = timedelta(seconds=10)
"""How long between two questions to the downstream system, at most."""

current_call: ContextVar[ToolContext] = ContextVar("commitline_call")
"""The guarded call that the running code belongs to."""
_ends_at: ContextVar[float | None] = ContextVar("commitline_ends_at", default=None)


def still_in_time() -> None:
    """Raise where the call is past its deadline before it has begun: its process was frozen.

    Called by what calls the tool, as the last thing before it.

    Raises:
        NotAttempted: Nothing was sent, and by now the row may be another attempt's.
    """
    ends_at = _ends_at.get()
    if ends_at is not None and _now() > ends_at:
        raise NotAttempted("woken up after its deadline, before the call")


class Guarded(Protocol):
    """An activity type under guard."""

    @property
    def name(self) -> str:
        """The activity type."""
        ...

    @property
    def effect(self) -> Effect:
        """What repeating it would do."""
        ...

    @property
    def tries(self) -> int:
        """How often the tool may fail a call."""
        ...

    @property
    def can_ask(self) -> bool:
        """Whether the downstream system can be asked what became of a call."""
        ...

    @property
    def settles_after(self) -> timedelta:
        """How long after a call its effect may still be invisible to who asks."""
        ...

    @property
    def surely_ends(self) -> bool:
        """Whether a call that was cancelled and ended is really over (no thread goes on)."""
        ...

    @property
    def takes_state(self) -> bool:
        """Whether a call is given the state of its conversation."""
        ...

    def check_state(self, given: GivenState) -> None:
        """Refuse a state that a call cannot be given. Raises StateUnusable."""
        ...

    @property
    def may_ask(self) -> bool:
        """Whether it can ask a person midway."""
        ...

    @property
    def answer_expires(self) -> timedelta | None:
        """How long such a question waits; None is for ever."""
        ...

    def limits(self, origin: Origin) -> CallLimits:
        """Return what the running attempt may take."""
        ...

    def failure(self, error: BaseException) -> Failure:
        """Say what an exception of it means."""
        ...

    def prepare(self, args: Sequence[Any], origin: Origin) -> ActionRequest:
        """Validate and fix the arguments. Raises ActionError: told, and nothing is written."""
        ...

    def stored_args(self, request_args: str) -> Sequence[Any]:
        """Return the activity's arguments, made from the stored text."""
        ...

    async def ask(self, context: ToolContext, request_args: str) -> Any:
        """Ask the downstream system: the result, or `NEVER_HAPPENED`."""
        ...

    def encode(self, value: Any) -> Outcome:
        """Return the outcome of a call that returned ``value``; never raises."""
        ...

    def reply_done(
        self, key: str, outcome: Outcome, duplicate_of: str | None, limit: int | None
    ) -> Any:
        """Return, or raise, what the workflow gets for a recorded outcome.

        Of a result that is over the limit (characters) it may get a view.
        """
        ...

    def reply_raised(self, failure: Failure, error: BaseException | None) -> Any:
        """Return, or raise, what the workflow gets for a READ that failed."""
        ...

    def reply_unknown(self, action: Action) -> Any:
        """Return, or raise, what the workflow gets for an unknown outcome."""
        ...

    def reply_accepted(self, action: Action, *, own: bool) -> Any:
        """Return what the workflow gets for an action that the relay carries out.

        The same whatever became of it since. ``own``: it is of this conversation.
        """
        ...

    def reply_refused(self, error: ActionError | IdempotencyKeyConflict, key: str) -> Any:
        """Return, or raise, what the workflow gets for a call that was never made."""
        ...

    def records_later(self, unrecorded: Unrecorded) -> bool:
        """Whether the workflow can record how a call ended, where its attempt cannot."""
        ...

    def reply_unrecorded(self, unrecorded: Unrecorded) -> Any:
        """Return what has the workflow record it."""
        ...

    def reply_asked(self, question: Question) -> Any:
        """Return what has the workflow wait for an answer, and call again."""
        ...

    def not_started(self, reason: str) -> ApplicationError:
        """Return the failure of a call that could not be dispatched."""
        ...


Ended: TypeAlias = Outcome | Action | Unrecorded | Question
"""How a call ended: the outcome that stands, its row (parked, or known after all), what the
workflow is to record, or what it asks a person first."""


class GuardedCall:
    """One attempt at one guarded call; see the module."""

    def __init__(
        self,
        ledger: ActionLedger,
        guarded: Guarded,
        origin: Origin,
        invoke: Callable[[Sequence[Any]], Coroutine[Any, Any, Any]],
    ) -> None:
        info = activity.info()
        self._ledger = ledger
        self._guarded = guarded
        self._origin = origin
        self._invoke = invoke
        self._tries = origin.tries or guarded.tries
        self._undoes: Undoes | None = None
        self._limits = guarded.limits(origin)
        self._began = _now()
        self._asked_at = self._claimed_at = self._began
        nearest = self._limits.nearest
        bound = info.start_to_close_timeout if nearest is None else timedelta(seconds=nearest)
        self._attempt = Attempt(
            started_at=info.started_time,
            token=uuid4(),
            lease=min((bound or MAX_LEASE) + LEASE_GRACE, MAX_LEASE),
            deadline=min((bound or MAX_LEASE) + _SLOW_CLAIM, MAX_LEASE),
            scheduled_at=info.scheduled_time,
        )
        self._waited = 0
        self._request: ActionRequest | None = None
        self._state: GivenState | None = None
        self._log = log.bind(
            run_key=origin.run_key,
            position=origin.position,
            tool=guarded.name,
            attempt=info.attempt,
        )

    async def run(self, args: Sequence[Any]) -> Any:
        """Carry the call out, or find out what became of it; return what the workflow gets."""
        request = await self._prepare(args)
        if isinstance(request, ActionError):
            self._log.info("tool.call_refused", code=request.code)
            return self._guarded.reply_refused(request, "")
        if self._guarded.effect is Effect.READ:
            standing = await self._begun_before()
            if standing is None:
                return await self._read(request)
            request = standing  # an older worker took it for something else: its row counts
        self._request = request
        while True:
            try:
                claim = await self._claim(request)
            except IdempotencyKeyConflict as err:
                self._log.info("ledger.key_conflict", existing=err.existing)
                return self._guarded.reply_refused(err, request.key)
            if isinstance(claim, AlreadyDone | Parked | Intended):
                return self._tell_found(claim)
            call = claim.call if isinstance(claim, Ask) else claim
            ended = await (
                self._ask(request, claim) if isinstance(claim, Ask) else self._call(call)
            )
            if call.settles_for is None:
                return self._tell(call.key, ended)
            # That was another action's row; now claim again and get its receipt.

    # --- before the call ------------------------------------------------------------------

    async def _prepare(self, args: Sequence[Any]) -> ActionRequest | ActionError:
        if self._origin.purpose in ("settle", "relay"):
            # What stands there counts, whatever newer code makes of its arguments.
            standing = await self._standing()
            if standing is None:
                raise _lost(action_key(self._origin.run_key, self._origin.position))
            return self._as_it_stands(standing)
        undone = await self._undone() if self._origin.undoes is not None else None
        try:
            request = self._guarded.prepare(args, self._origin)
        except Exception as err:
            # Whatever it is: a validator of the application may raise anything, again and again.
            refusal = err if isinstance(err, ActionError) else _unfit(err)
            return await self._begun_before() or refusal
        if undone is not None and request.domain_key is not None:
            # The key of *this* action's undo.
            own = undo_key(request.domain_key, undone.generation)
            return replace(request, domain_key=own)
        if self._guarded.takes_state:
            try:
                self._state = await self._state_to_give()
            except StateUnusable as err:
                return await self._begun_before() or err
        return request

    async def _undone(self) -> Action:
        """Return the action that this call undoes, and have the tool told of it."""
        assert self._origin.undoes is not None, "asked before"
        undone = await self._from_ledger(self._origin.undoes)
        if undone is None:
            raise _lost(self._origin.undoes)
        self._undoes = Undoes(
            undone.key,
            undone.tool,
            parse(undone.args),
            undone.recorded.value if undone.outcome == "ok" and undone.recorded else None,
            undone.idempotency_key,
        )
        return undone

    async def _state_to_give(self) -> GivenState:
        """Return the state as the turn left it that asked for the call: every attempt's is equal.

        Read before the claim: a ledger that is away costs no dispatch.
        """
        origin = self._origin
        if origin.thread_version is None:
            raise StateUnusable(f"{self._guarded.name}: the run keeps no state")
        try:
            text = await self._ledger.threads.state(
                origin.thread_id or origin.run_key, origin.thread_version
            )
        except LedgerUnavailable as err:
            raise self._not_started(err.message) from err
        given = GivenState(text, origin.changes_limit or MAX_STATE)
        self._guarded.check_state(given)
        return given

    async def _begun_before(self) -> ActionRequest | None:
        """Return the request that stands at this position, if an earlier attempt wrote one.

        Arguments that were good once may be refused later (a date that must lie ahead, a
        stricter validator), and newer code may take a tool for a READ: what the row says
        counts then, and "not run" would be a lie.
        """
        if first_of_all(self._origin.run_key) and not self._origin.again:
            return None
        found = await self._standing()
        if found is None:
            return None
        if found.status == "pending" and found.dispatched_at is None and not found.relayed:
            return None
        return self._as_it_stands(found)

    async def _standing(self) -> Action | None:
        return await self._from_ledger(action_key(self._origin.run_key, self._origin.position))

    async def _from_ledger(self, key: ActionKey) -> Action | None:
        try:
            return await self._ledger.get(key)
        except LedgerUnavailable as err:
            raise self._not_started(err.message) from err

    def _as_it_stands(self, found: Action) -> ActionRequest:
        return ActionRequest(
            run_key=self._origin.run_key,
            position=self._origin.position,
            tool=self._guarded.name,
            args=found.args,
            effect=found.effect,
            requested_digest=self._origin.requested_digest,
            effective_digest=found.effective_digest,
            domain_key=found.domain_key,
            key_ttl=found.key_ttl,
            thread_id=found.thread_id,
            can_ask=self._guarded.can_ask,
            settles_after=self._guarded.settles_after,
            undoes=found.undoes,
            purpose=self._origin.purpose,
            only_asks=self._origin.only_asks,
            owner=activity.info().workflow_id,
        )

    async def _claim(
        self, request: ActionRequest
    ) -> Dispatched | Ask | AlreadyDone | Parked | Intended:
        crash_point("before_claim", tool=request.tool)
        try:
            claim = await self._claim_when_free(request)
        except asyncio.CancelledError:
            # The claim was seen through, and we know that nothing has been sent.
            # If that is not answered, the next attempt finds it dispatched, which is safe too.
            await self._hand_back(request)
            raise
        crash_point("after_claim", tool=request.tool)
        call = claim.call if isinstance(claim, Ask) else claim
        if isinstance(call, Dispatched) and call.taken_over:
            count("commitline_takeovers", call.tool)
            self._log.info("ledger.action_taken_over", action_key=call.key)
        if _now() - self._began > 1.5 * _CLAIM_SECONDS and isinstance(claim, Dispatched):
            await self._hand_back(claim)
            raise self._not_started("the ledger took too long")
        return claim

    async def _claim_when_free(
        self, request: ActionRequest
    ) -> Dispatched | Ask | AlreadyDone | Parked | Intended:
        """Claim; wait a while for a ledger that is away, and for another action's live attempt.

        The claim is repeated within this attempt, whose token tells a claim of ours that was
        committed without an answer from one that an earlier attempt left. One that surely was
        not committed need not be waited for here.
        """
        committed_perhaps = False
        while True:
            if not committed_perhaps:
                self._asked_at = _now()
            try:
                claim = await self._claim_in_open_run(request)
                self._claimed_at = _now()
            except LedgerUnavailable as err:
                committed_perhaps = committed_perhaps or err.reached
                self._log.warning("ledger.unavailable", reason=err.message)
                if not committed_perhaps or self._is_over():
                    raise self._not_started(err.message) from err
                await asyncio.sleep(_UNAVAILABLE_SECONDS)
                continue
            if not isinstance(claim, Busy):
                return claim
            await self._wait_for(claim.holder)

    async def _claim_in_open_run(self, request: ActionRequest) -> Claim:
        try:
            return await self._ledger.claim(request, self._attempt)
        except RunNotRunning as err:
            if err.known:
                raise
            await self._open_run()
            return await self._ledger.claim(request, self._attempt)

    async def _open_run(self) -> None:
        """Register a run that no activity of ours has opened (or that a failover lost)."""
        info = activity.info()
        await self._ledger.open_run(
            run_key=self._origin.run_key,
            workflow_id=info.workflow_id or "",
            agent=info.workflow_type or "",
            input_digest="",
            attempt_at=info.started_time,
            namespace=info.namespace,
        )

    async def _wait_for(self, holder: str) -> None:
        """Wait a while for another action that is at work on the same business fact."""
        self._log.info("ledger.key_busy", holder=holder)
        if activity.is_worker_shutdown() or _now() - self._began > _CLAIM_SECONDS:
            # Nothing has begun here, and the wait must not use up the time of the call.
            raise self._not_started(f"{holder} is at work on the same business fact")
        delay = _BUSY_SECONDS[min(self._waited, len(_BUSY_SECONDS) - 1)]
        self._waited += 1
        await asyncio.sleep(delay)

    async def _hand_back(self, row: ActionRequest | Dispatched, *, failures: int = 0) -> bool:
        """Make the row an intent again, where nothing was sent; return whether it is one."""
        with suppress(LedgerUnavailable):
            return await see_through(self._ledger.hand_back(row, self._attempt, failures=failures))
        return False

    def _not_started(self, reason: str) -> ApplicationError:
        """Return the failure of a call that could not be dispatched.

        The relay must wait for whoever else has the row, for as long as that one's lease. A call
        that is started afresh could not tell an earlier attempt of its own from somebody else's,
        so it is this one that is tried again, for a while.
        """
        if self._origin.purpose == "relay" and activity.info().attempt < _SAME_CALL:
            return ApplicationError(
                scrub(reason), type=NOT_STARTED, next_retry_delay=_SAME_CALL_DELAY, category=_BENIGN
            )
        return self._guarded.not_started(reason)

    def _is_over(self) -> bool:
        """Whether the server will soon give this attempt up."""
        assert self._attempt.deadline is not None
        return _now() - self._began > self._attempt.deadline.total_seconds() + _CLAIM_SECONDS

    # --- the call -------------------------------------------------------------------------

    async def _read(self, request: ActionRequest) -> Any:
        """Call without the ledger: repeating a READ harms nobody."""
        context = self._context(
            request.key,
            f"read-{request.position}",
            taken_over=False,
            asked=await self._asked_before(request),
        )
        end = await self._within_limits(context, request.args, None)
        if self._asks(end):
            paused = await self._pause(end, context, None)
            assert isinstance(paused, Question), "it has no row"
            return self._guarded.reply_asked(paused)
        if isinstance(end.how, Returned):
            outcome = self._guarded.encode(end.how.value)
            key = request.key if await self._keep(request, outcome) else ""
            return self._guarded.reply_done(key, outcome, None, self._origin.content_limit)
        if end.stopped_by == "caller":
            raise asyncio.CancelledError
        failure = self._failure_of(end)
        failed = failed_so_far() + (failure.kind is not Kind.IN_PROGRESS)
        if failure.kind not in (Kind.REFUSED, Kind.OTHER) and failed < self._tries:
            delay = self._delay(failure, max(failed, activity.info().attempt))
            if self._time_for(delay):
                activity.heartbeat(failed)
                raise _again(failure, delay)
        error = end.how.error if isinstance(end.how, Raised) else None
        return self._guarded.reply_raised(failure, error)

    async def _asked_before(self, request: ActionRequest) -> Sequence[Question]:
        """Return what earlier attempts of a READ have asked, where there may have been some."""
        first = first_of_all(self._origin.run_key) and not self._origin.again
        if first or not self._guarded.may_ask:
            return ()
        try:
            return await self._ledger.questions.asked(request.key)
        except LedgerUnavailable as err:
            raise self._not_started(err.message) from err

    async def _keep(self, request: ActionRequest, outcome: Outcome) -> bool:
        """Keep a read's result that is too large to travel; return whether that was so."""
        limit = self._origin.content_limit
        if limit is None or len(outcome.result) <= limit:
            return False
        kept = self._ledger.put_value(
            request.key, request.thread_id or request.run_key, outcome.result
        )
        try:
            await kept
        except LedgerUnavailable as err:
            # It can be read again, so it may be called again.
            raise self._not_started(err.message) from err
        return True

    async def _call(self, claim: Dispatched, *, again: bool = False) -> Ended:
        """Call, and record how it ended.

        Args:
            claim: By which it is called.
            again: It was called before, surely without effect.
        """
        left = self._seconds_left(claim.key_life)
        late = _now() - self._asked_at > _SLOW_CLAIM.total_seconds()
        if late or (left is not None and left <= 0):
            return await self._not_called(claim, late=late)
        context = self._context(
            claim.key,
            claim.idempotency_key,
            taken_over=claim.taken_over or again,
            asked=claim.asked,
        )
        end = await self._within_limits(
            context, claim.args, claim.key_life, on_late=lambda late: self._late(claim, late)
        )
        if isinstance(end.how, Returned):
            return await self._record(claim, self._outcome(claim, end.how))
        if self._asks(end):
            return await self._pause(end, context, claim)
        left_behind = isinstance(end.how, LeftBehind)
        if end.stopped_by == "caller":
            return await self._stopped(claim, over=not left_behind)
        return await self._failed(claim, self._failure_of(end), left_behind=left_behind)

    async def _failed(self, claim: Dispatched, failure: Failure, *, left_behind: bool) -> Ended:
        """Try again, or record what a call that failed leaves: no effect, or that it is unknown."""
        retry = await self._try_again(claim, failure, left_behind=left_behind)
        if retry is not None:
            raise retry
        if failure.kind is Kind.NOT_ATTEMPTED and self._origin.purpose == "relay":
            return await self._leave_unsent(claim, failure)
        if failure.kind in (Kind.REFUSED, Kind.NOT_ATTEMPTED) and not claim.taken_over:
            return await self._record(claim, failure.without_effect)
        why = self._why_unknown(claim, failure)
        failed = claim.failures + (failure.kind is not Kind.IN_PROGRESS)
        return await self._park(claim, why, over=not left_behind, failures=failed)

    async def _leave_unsent(self, claim: Dispatched, failure: Failure) -> Ended:
        """Leave what the relay could not send to a person: it is wanted, and can be tried again."""
        reason = f"tried {claim.failures + 1} times; the last: {failure.told}"
        if not await self._hand_back(claim, failures=claim.failures + 1):
            return await self._park(claim, reason, over=True, failures=claim.failures + 1)
        return await persist(lambda: self._ledger.park_unsent(claim.key, f"not sent: {reason}"))

    def _outcome(self, claim: Dispatched, end: Returned) -> Outcome:
        """Return the outcome of a call that returned.

        What it changed in the state counts only where the row's own call had the same copy:
        not in another run's conversation, and not a turn later.
        """
        outcome = self._guarded.encode(end.value)
        run, at = split_action_key(claim.key)
        here = (self._origin.run_key, self._origin.position.rpartition(".")[0])
        if claim.settles_for is None or here == (run, at.rpartition(".")[0]):
            return outcome
        return replace(outcome, state_changes=None)

    async def _not_called(self, claim: Dispatched, *, late: bool) -> Ended:
        """Make nothing of a claim: it is older than it may be, or its time is up.

        The claim was slow to come, or this process was frozen since: what the row gives this
        attempt is not what is left, and by now it may be another attempt's.
        """
        handed_back = await self._hand_back(claim)
        if late or handed_back:
            raise self._not_started("the claim is older than it may be")
        # Earlier attempts may have sent something, and there is no time to find out.
        return await self._park(claim, self._no_time(claim), over=False)

    async def _ask(self, request: ActionRequest, claim: Ask) -> Ended:
        """Ask whether an earlier attempt had its effect; call only if it surely had none."""
        call = claim.call
        context = self._context(call.key, call.idempotency_key, taken_over=True)
        end = await call_within(self._seconds_left(None), self._guarded.ask(context, call.args))
        if end.stopped_by == "caller":
            return await self._stopped(call, over=False)
        if isinstance(end.how, Returned):
            if end.how.value is not NEVER_HAPPENED:
                self._log.info("ledger.action_found", action_key=call.key)
                return await self._record(call, self._guarded.encode(end.how.value))
            left = claim.settles_in - timedelta(seconds=_now() - self._claimed_at)
            if left <= timedelta() and (request.only_asks or call.failures >= self._tries):
                told = f"tried {call.failures} times, and it never happened, as was asked"
                return await self._record(call, _never(told))
            if left <= timedelta():
                self._log.info("ledger.action_never_happened", action_key=call.key)
                self._asked_at = _now()
                await self._ledger.send_after_asking(request, call)
                self._claimed_at = _now()
                never = replace(call, taken_over=False, key_life=None)
                return await self._call(never, again=True)
            failure = Failure(
                Kind.TRANSIENT,
                "NotFoundYet",
                f"not found; that counts in {left.total_seconds():.1f} s",
            )
            delay = min(left + timedelta(seconds=0.1), _ASK_AGAIN)
        else:
            failure = self._failure_of(end)
            delay = self._delay(failure, activity.info().attempt)
        if failure.kind is not Kind.OTHER and self._time_for(delay):
            raise _again(failure, delay)
        return await self._park(call, f"asked what became of it: {failure.told}", over=False)

    async def _within_limits(
        self,
        context: ToolContext,
        args: str,
        key_life: timedelta | None,
        *,
        on_late: OnLate = ignore,
    ) -> End:
        seconds = self._seconds_left(key_life)

        async def work() -> Any:
            token = current_call.set(context)
            current_state.set(self._state)
            _ends_at.set(None if seconds is None else began + seconds)
            try:
                return await self._invoke(self._guarded.stored_args(args))
            except BaseException as err:
                raise_tamed(self._guarded.name, err)
            finally:
                current_call.reset(token)

        began = _now()
        end = await call_within(seconds, work(), on_late=on_late)
        if end.stopped_by == "deadline":
            count("commitline_tool_timeouts", self._guarded.name)
            self._log.warning(
                "tool.timed_out",
                seconds=self._limits.nearest,
                left_behind=isinstance(end.how, LeftBehind),
            )
        elif self._asks(end):
            pass  # the tool is well
        elif end.stopped_by is None and isinstance(end.how, Raised):
            count("commitline_tool_errors", self._guarded.name)
            self._log.info("tool.raised", error=type(end.how.error).__name__)
        return end

    def _seconds_left(self, key_life: timedelta | None) -> float | None:
        """Return the time for a call, counted from its claim, by which the row counts too."""
        spent = _now() - self._claimed_at
        given = [
            self._limits.nearest,
            None if key_life is None else key_life.total_seconds(),
        ]
        return min((one - spent for one in given if one is not None), default=None)

    # --- a question -----------------------------------------------------------------------

    @staticmethod
    def _asks(end: End) -> bool:
        """Whether the call ended with its question; past its deadline it timed out."""
        asks = isinstance(end.how, Raised) and is_pause(end.how.error)
        return asks and end.stopped_by != "deadline"

    async def _pause(
        self, end: End, context: ToolContext, claim: Dispatched | None
    ) -> Question | Action:
        """Write the question down and hand the row back, in one; the call is made again.

        Held by this attempt while the ledger is away: the row must not be taken for lost.
        """
        wanted = None if context.asking is None else context.asking.wanted
        assert wanted is not None, "nobody else raises it"
        own = context.run_key == self._origin.run_key
        request = QuestionRequest(
            run_key=context.run_key,
            position=context.position,
            thread_id=(self._origin.thread_id if own else None) or context.run_key,
            tool=self._guarded.name,
            index=wanted.index,
            message=wanted.message,
            payload=wanted.payload,
            expires_after=self._guarded.answer_expires,
        )

        async def ask() -> tuple[Question, Action | None]:
            # A lost attempt before this one may still send, until its own time is up.
            over = claim is None or not claim.taken_over
            return await self._ledger.questions.ask(
                request, claim, attempt_at=self._attempt.started_at, over=over
            )

        crash_point("before_record", tool=self._guarded.name)
        try:
            question, ended = await see_through(ask())
        except LedgerUnavailable:
            question, ended = await persist(ask)
        self._log.info(
            "question.asked",
            action_key=question.key,
            number=question.number,
            state=question.state,
            expires=question.expires_at,
        )
        if end.stopped_by == "caller" and _run_was_cancelled():
            raise asyncio.CancelledError
        return question if ended is None else ended

    # --- how it ended ---------------------------------------------------------------------

    def _failure_of(self, end: End) -> Failure:
        if end.stopped_by == "deadline":
            return self._timed_out()
        assert isinstance(end.how, Raised)
        if isinstance(end.how.error, asyncio.CancelledError):
            return Failure(Kind.OTHER, "CancelledError", "the tool cancelled itself")
        return self._guarded.failure(end.how.error)

    def _timed_out(self) -> Failure:
        node, nearest = self._limits.node_seconds, self._limits.nearest
        if node is not None and nearest == node:
            count("commitline_node_timeouts", self._guarded.name)
            text = f"no answer until the node's time was up [{NodeTimeout.code}]"
            return Failure(Kind.OTHER, NodeTimeout.__name__, text)
        error = ToolTimeout(f"no answer within {nearest or 0:g} s")
        failure = self._guarded.failure(error)
        # What a tool declares of exceptions speaks for those it raises. This one is ours, and
        # means that it may have happened, however wide its `refused_on`.
        kind = failure.kind if failure.kind is Kind.TRANSIENT else Kind.OTHER
        return replace(failure, kind=kind, message=f"{error.message} [{error.code}]")

    async def _try_again(
        self, claim: Dispatched, failure: Failure, *, left_behind: bool
    ) -> ApplicationError | None:
        """Return the failure that Temporal retries, where the table says "again"."""
        in_progress = failure.kind is Kind.IN_PROGRESS
        not_attempted = failure.kind is Kind.NOT_ATTEMPTED
        repeatable = failure.kind is Kind.TRANSIENT and claim.effect is not Effect.AT_MOST_ONCE
        failed = claim.failures + (not in_progress)
        delay = self._delay(failure, activity.info().attempt if in_progress else failed)
        if not (in_progress or not_attempted or repeatable) or not self._time_for(delay):
            return None
        # Not while its tool goes on: "it never happened" would be said too soon.
        asks = claim.effect is Effect.LOOKUP and repeatable and claim.can_ask and not left_behind
        if failed >= self._tries and not (in_progress or asks):
            return None
        if not_attempted and await self._hand_back(claim, failures=failed):
            return _again(failure, delay)
        if not_attempted and claim.effect is Effect.AT_MOST_ONCE:
            return None  # the next attempt could not tell it from one that was lost
        try:
            await see_through(
                self._ledger.fail_try(
                    claim,
                    in_progress=in_progress,
                    # A lost attempt before this one may still send, until its own time is up.
                    over=not left_behind and not claim.taken_over,
                )
            )
        except LedgerUnavailable as err:
            # Not counted. Nothing is called while the ledger is away, so not without end either.
            self._log.warning("ledger.unavailable", reason=err.message)
        return _again(failure, delay)

    def _why_unknown(self, claim: Dispatched, failure: Failure) -> str:
        if failure.kind in (Kind.REFUSED, Kind.NOT_ATTEMPTED):
            return f"an earlier attempt may have happened; now {failure.told}"
        in_progress = failure.kind is Kind.IN_PROGRESS
        if failure.kind is Kind.OTHER or (claim.effect is Effect.AT_MOST_ONCE and not in_progress):
            return failure.told
        if claim.failures + 1 >= self._tries and not in_progress:
            return f"tried {claim.failures + 1} times; the last: {failure.told}"
        return f"{self._no_time(claim)}; the last: {failure.told}"

    def _no_time(self, claim: Dispatched) -> str:
        count("commitline_node_timeouts", claim.tool)
        self._log.warning("tool.node_timed_out", action_key=claim.key)
        return f"no time for another try [{NodeTimeout.code}]"

    async def _stopped(self, claim: Dispatched, *, over: bool) -> Ended:
        """Leave the row so that somebody finds out: a person, or the next attempt."""
        if not _run_was_cancelled():
            # The worker goes: the next attempt finds the row and takes over.
            raise asyncio.CancelledError
        if await self._overtaken():
            # Its parent was reset: the workflow that carries the run out now takes over.
            raise asyncio.CancelledError
        reason = "the run was cancelled while the tool was at work"
        parked = await self._park(claim, reason, over=over and self._guarded.surely_ends)
        if isinstance(parked, Action) and parked.recorded is None:
            raise asyncio.CancelledError
        return parked

    async def _overtaken(self) -> bool:
        """Whether another workflow carries this sub-agent's run out by now."""
        run_key = self._origin.run_key
        if parent_of(run_key) is None:
            return False
        with suppress(LedgerUnavailable):
            run = await see_through(self._ledger.get_run(run_key))
            # A stop is for good: nobody takes over then.
            return run is not None and run.stopped_at is None and not run.is_of(_workflow_id())
        return False

    async def _late(self, claim: Dispatched, end: Returned | Raised) -> None:
        """Record what a tool that was left behind ended with, on its row, if it is still open."""
        if isinstance(end, Returned):
            outcome = self._outcome(claim, end)
        else:
            failure = self._guarded.failure(end.error)
            self._log.info("tool.ended_late", action_key=claim.key, error=failure.type)
            if failure.kind is not Kind.REFUSED or claim.taken_over:
                return
            outcome = failure.without_effect
        try:
            stands = await persist(lambda: self._ledger.record(claim, outcome))
        except Fenced:
            count("commitline_fenced_records", claim.tool)
            self._log.warning("ledger.late_record_fenced", action_key=claim.key)
        else:
            count("commitline_late_records", claim.tool)
            self._log.info("ledger.late_recorded", action_key=claim.key, outcome=stands.kind)
            self._compare(claim, stands, outcome)

    # --- the record -----------------------------------------------------------------------

    async def _record(self, claim: Dispatched, outcome: Outcome) -> Ended:
        """Record the outcome, whoever is cancelled meanwhile; return the one that stands."""
        crash_point("before_record", tool=claim.tool)
        try:
            stands = await see_through(self._recorded(claim, outcome))
        except LedgerUnavailable as err:
            handed_over = self._hand_over(claim, Unrecorded.of(claim, outcome), err)
            if handed_over is not None:
                return handed_over
            stands = await persist(lambda: self._ledger.record(claim, outcome))
        crash_point("after_record", tool=claim.tool)
        self._log.info(
            "ledger.action_recorded",
            action_key=claim.key,
            outcome=stands.kind,
            taken_over=claim.taken_over,
            adopted=stands != outcome,
        )
        self._compare(claim, stands, outcome)
        return stands

    def _compare(self, claim: Dispatched, stands: Outcome, ended: Outcome) -> None:
        """Say aloud what two attempts, or an attempt and a person, say differently."""
        if stands != ended and "ok" in (stands.kind, ended.kind):
            self._log.error(
                "ledger.outcomes_differ",
                action_key=claim.key,
                stands=stands.kind,
                ended=ended.kind,
            )

    async def _recorded(self, claim: Dispatched, outcome: Outcome) -> Outcome:
        try:
            return await self._ledger.record(claim, outcome)
        except Fenced as err:
            if not err.lost or claim.settles_for is not None or self._request is None:
                count("commitline_fenced_records", claim.tool)
                raise
            # A failover lost the row, and we know how the call ended: write it anew.
            self._log.error("ledger.row_lost", action_key=claim.key)
            anew = await self._claim_in_open_run(self._request)
            if not isinstance(anew, Dispatched):
                raise
            return await self._ledger.record(anew, outcome)

    async def _park(
        self, claim: Dispatched, reason: str, *, over: bool, failures: int | None = None
    ) -> Ended:
        """Leave it unknown; return the row, which may be known after all."""
        crash_point("before_record", tool=claim.tool)
        try:
            action = await see_through(
                self._ledger.park(claim, reason, over=over, failures=failures)
            )
        except LedgerUnavailable as err:
            unknown = Unrecorded.unknown(claim, reason, over=over)
            handed_over = self._hand_over(claim, unknown, err)
            if handed_over is not None:
                return handed_over
            action = await persist(lambda: self._ledger.park(claim, reason, over=over))
        crash_point("after_record", tool=claim.tool)
        if action.recorded is None:
            count("commitline_parks", claim.tool)
            self._log.warning("ledger.action_parked", action_key=claim.key, reason=reason)
        return action

    def _hand_over(
        self, claim: Dispatched, unrecorded: Unrecorded, error: LedgerUnavailable
    ) -> Unrecorded | None:
        """Leave the record to the workflow; None where it cannot, and this attempt has to."""
        count("commitline_unrecorded_outcomes", claim.tool)
        if claim.settles_for is None and self._guarded.records_later(unrecorded):
            self._log.error(
                "ledger.outcome_handed_over", action_key=claim.key, reason=error.message
            )
            return unrecorded
        self._log.error("ledger.outcome_held", action_key=claim.key, reason=error.message)
        return None

    # --- the answer -----------------------------------------------------------------------

    def _tell(self, key: ActionKey, ended: Ended) -> Any:
        if isinstance(ended, Unrecorded):
            return self._guarded.reply_unrecorded(ended)
        if isinstance(ended, Outcome):
            return self._guarded.reply_done(key, ended, None, self._origin.content_limit)
        if isinstance(ended, Question):
            return self._guarded.reply_asked(ended)
        if ended.recorded is not None:
            return self._tell_done(ended)
        return self._guarded.reply_unknown(ended)

    def _tell_found(self, claim: AlreadyDone | Parked | Intended) -> Any:
        match claim:
            case AlreadyDone(action):
                return self._tell_done(action)
            case Parked(action):
                return self._tell_unknown(action)
            case Intended(action):
                return self._tell_accepted(action)

    def _tell_done(self, action: Action) -> Any:
        count("commitline_replays", action.tool)
        self._log.info(
            "ledger.action_replayed", action_key=action.key, duplicate_of=action.duplicate_of
        )
        assert action.recorded is not None, "agent_actions_done_is_complete"
        return self._guarded.reply_done(
            action.key, action.recorded, action.duplicate_of, self._origin.content_limit
        )

    def _tell_accepted(self, action: Action) -> Any:
        self._log.info("ledger.action_intended", action_key=action.key, state=action.state)
        assert self._request is not None, "claimed by it"
        conversation = self._request.thread_id
        ours = conversation is not None and action.thread_id == conversation
        own = ours or action.run_key == self._origin.run_key
        return self._guarded.reply_accepted(action, own=own)

    def _tell_unknown(self, action: Action) -> Any:
        self._log.warning(
            "ledger.action_unknown", action_key=action.key, reason=action.parked_reason
        )
        return self._guarded.reply_unknown(action)

    def _context(
        self,
        key: ActionKey,
        idempotency_key: str,
        *,
        taken_over: bool,
        asked: Sequence[Question] = (),
    ) -> ToolContext:
        run, position = split_action_key(key)
        may_ask = self._guarded.may_ask and self._origin.purpose == "forward"
        return ToolContext(
            idempotency_key=idempotency_key,
            action_key=key,
            run_key=run,
            position=position,
            tool=self._guarded.name,
            taken_over=taken_over,
            seconds_left=self._seconds_left(None),
            undoes=self._undoes,
            asking=Asking(asked) if may_ask else None,
        )

    def _delay(self, failure: Failure, failed: int) -> timedelta:
        if failure.retry_after is not None:
            return failure.retry_after
        last = _LAST_RELAYED if self._origin.purpose == "relay" else _LAST_RETRY
        return min(_FIRST_RETRY * (1 << min(max(failed - 1, 0), 20)), last)

    def _time_for(self, delay: timedelta) -> bool:
        """Whether another attempt may come after ``delay``, as far as anybody limits them."""
        info = activity.info()
        most = info.retry_policy.maximum_attempts if info.retry_policy else 0
        if most and info.attempt >= most:
            return False
        node = self._limits.node_seconds
        return node is None or node - (_now() - self._began) > delay.total_seconds()


def _now() -> float:
    """Return seconds that go on while the machine sleeps, or this process is frozen."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if _HAS_BOOTTIME else time.monotonic()


_HAS_BOOTTIME: Final = hasattr(time, "CLOCK_BOOTTIME")


def _lost(key: ActionKey) -> ApplicationError:
    """Return the failure of what is about a row that a failover lost; final."""
    return as_failure(Fenced(f"{key} is gone: a failover lost it", lost=True))


def _never(told: str) -> Outcome:
    return Outcome.error(kind="NeverHappened", message=told, effect_possible=False)


def _again(failure: Failure, delay: timedelta) -> ApplicationError:
    return ApplicationError(
        failure.told, type=failure.type, next_retry_delay=delay, category=_BENIGN
    )


def _unfit(error: Exception) -> InvalidArguments:
    return InvalidArguments(
        f"the arguments could not be checked: {type(error).__name__}: {error_text(error)[:300]}"
    )


def as_failure(error: CommitlineError) -> ApplicationError:
    """Return the failure that Temporal retries, or does not, as the error says of itself."""
    details = (STOPPING,) if isinstance(error, RunNotRunning) and error.stopping else ()
    return ApplicationError(
        scrub(str(error)),
        *details,
        type=type(error).__name__,
        non_retryable=not error.retryable,
        next_retry_delay=timedelta(seconds=1) if isinstance(error, LedgerUnavailable) else None,
        category=_BENIGN if error.retryable else ApplicationErrorCategory.UNSPECIFIED,
    )


def not_started(reason: str) -> ApplicationError:
    """Return the failure by which the workflow of ours starts a call afresh."""
    return ApplicationError(scrub(reason), type=NOT_STARTED, non_retryable=True, category=_BENIGN)


async def persist(ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat a *ledger call* until the ledger answers; never the tool or the model."""
    while True:
        try:
            return await ask()
        except LedgerUnavailable as err:
            log.warning("ledger.unavailable", reason=err.message)
            await asyncio.sleep(_UNAVAILABLE_SECONDS)


def count(name: str, subject: str, *, of: str = "tool") -> None:
    """Count an event in the SDK's metrics, which go wherever the worker's runtime sends them."""
    meter = activity.metric_meter().with_additional_attributes({of: subject})
    meter.create_counter(name).add(1)


def _workflow_id() -> str:
    return activity.info().workflow_id or ""


def _run_was_cancelled() -> bool:
    details = activity.cancellation_details()
    return details is not None and details.cancel_requested

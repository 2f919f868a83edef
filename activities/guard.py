"""The guard: one activity interceptor between Temporal and everything that has an effect.

    header -> prepare -> claim -> call -> record -> reply

It is the same for an agent's tools and for any other activity; what differs (how arguments
and results are written, how an outcome is told) is behind `Guarded`. The order is the whole
point: nothing is called before its intent is committed, and nothing (no hook, no log line,
no metric) comes between the call's return and its record.

Safe to repeat, from any point: a retry finds the row and does what `ledger.claims` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar
from uuid import uuid4

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
)

from ..canonical import scrub
from ..crash import crash_point
from ..errors import (
    ActionError,
    CommitlineError,
    IdempotencyKeyConflict,
    InvalidArguments,
    LedgerError,
    LedgerUnavailable,
    PlanDivergence,
    RunNotRunning,
    ToolRefused,
)
from ..identity import action_key
from ..ledger import (
    Action,
    ActionLedger,
    ActionRequest,
    AlreadyDone,
    Attempt,
    Busy,
    Claim,
    Dispatched,
    Effect,
    Outcome,
    Parked,
)
from ..ledger.codec import encode_error, error_text
from .heartbeat import Heartbeats, beating
from .origin import Origin
from .tool import ToolContext

T = TypeVar("T")

log = structlog.get_logger("commitline")

LEASE_GRACE: Final = timedelta(seconds=30)
"""Beyond an attempt's deadline: clocks, a slow record."""
MAX_LEASE: Final = timedelta(hours=24)
_BUSY_SECONDS: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""How long a claim waits, time after time, for another action that is at work on its key."""

_UNAVAILABLE_SECONDS: Final = 0.5

current_call: ContextVar[ToolContext] = ContextVar("commitline_call")
"""The guarded call that the running code belongs to."""


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

    def prepare(self, args: Sequence[Any], origin: Origin) -> ActionRequest:
        """Validate and fix the arguments. Raises ActionError: told, and nothing is written."""
        ...

    def stored_args(self, request_args: str) -> Sequence[Any]:
        """Return the activity's arguments, made from the stored text."""
        ...

    def encode(self, value: Any) -> Outcome:
        """Return the outcome of a call that returned ``value``; never raises."""
        ...

    def reply_done(self, key: str, outcome: Outcome, duplicate_of: str | None) -> Any:
        """Return, or raise, what the workflow gets for a recorded outcome."""
        ...

    def reply_raised(self, error: BaseException) -> Any:
        """Return, or raise, what the workflow gets for an exception of a READ."""
        ...

    def reply_unknown(self, action: Action) -> Any:
        """Return, or raise, what the workflow gets for an unknown outcome."""
        ...

    def reply_refused(self, error: ActionError | IdempotencyKeyConflict, key: str) -> Any:
        """Return, or raise, what the workflow gets for a call that was never made."""
        ...


class GuardInterceptor(Interceptor):
    """Puts the guard around the activities that it is told of; leaves all others alone."""

    def __init__(self, ledger: ActionLedger, guarded: Mapping[str, Guarded]) -> None:
        self._ledger = ledger
        self._guarded = guarded

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See base class."""
        return _Guard(next, self._ledger, self._guarded)


class _Guard(ActivityInboundInterceptor):
    def __init__(
        self,
        next: ActivityInboundInterceptor,
        ledger: ActionLedger,
        guarded: Mapping[str, Guarded],
    ) -> None:
        super().__init__(next)
        self._ledger = ledger
        self._guarded = guarded

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        self._heartbeats = Heartbeats(outbound)
        super().init(self._heartbeats)

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        guarded = self._guarded.get(activity.info().activity_type)
        if guarded is None:
            return await super().execute_activity(input)

        async def invoke(args: Sequence[Any]) -> Any:
            return await super(_Guard, self).execute_activity(replace(input, args=args))

        try:
            origin = Origin.read(input.headers, activity=guarded.name)
            async with beating(self._heartbeats.again):
                return await _GuardedCall(self._ledger, guarded, origin, invoke).run(input.args)
        except LedgerError as err:
            if isinstance(err, PlanDivergence):
                _count("commitline_divergences", guarded.name)
                log.error("ledger.plan_diverged", tool=guarded.name, reason=err.message)
            raise as_failure(err) from err


class _GuardedCall:
    """One attempt at one guarded call."""

    def __init__(
        self,
        ledger: ActionLedger,
        guarded: Guarded,
        origin: Origin,
        invoke: Callable[[Sequence[Any]], Awaitable[Any]],
    ) -> None:
        info = activity.info()
        deadline = info.start_to_close_timeout or MAX_LEASE
        self._ledger = ledger
        self._guarded = guarded
        self._origin = origin
        self._invoke = invoke
        self._attempt = Attempt(
            started_at=info.started_time,
            token=uuid4(),
            lease=min(deadline + LEASE_GRACE, MAX_LEASE),
        )
        self._waited = 0
        self._log = log.bind(
            run_key=origin.run_key,
            position=origin.position,
            tool=guarded.name,
            attempt=info.attempt,
        )

    async def run(self, args: Sequence[Any]) -> Any:
        request = await self._prepare(args)
        if isinstance(request, ActionError):
            self._log.info("tool.call_refused", code=request.code)
            return self._guarded.reply_refused(request, "")
        if self._guarded.effect is Effect.READ:
            return await self._read(request)
        while True:
            try:
                claim = await self._claim(request)
            except IdempotencyKeyConflict as err:
                self._log.info("ledger.key_conflict", existing=err.existing)
                return self._guarded.reply_refused(err, request.key)
            match claim:
                case AlreadyDone(action):
                    return self._tell_done(action)
                case Parked(action):
                    return self._tell_unknown(action)
                case Busy(holder):
                    await self._wait_for(holder)
                case Dispatched():
                    ended = await self._call(claim)
                    if claim.settles_for is None:
                        return self._tell(claim.key, ended)
                    # That was another action's row; now claim again and get its receipt.

    async def _prepare(self, args: Sequence[Any]) -> ActionRequest | ActionError:
        try:
            return self._guarded.prepare(args, self._origin)
        except Exception as err:
            # Whatever it is: a validator of the application may raise anything, again and again.
            refusal = err if isinstance(err, ActionError) else _unfit(err)
            return await self._begun_before() or refusal

    async def _begun_before(self) -> ActionRequest | None:
        """Return the request that stands at this position, if an earlier attempt wrote one.

        Arguments that were good once may be refused later (a date that must lie ahead, a
        stricter validator): what the row says counts then, and "not run" would be a lie.
        """
        if self._guarded.effect is Effect.READ:
            return None
        key = action_key(self._origin.run_key, self._origin.position)
        found = await persist(lambda: self._ledger.get(key))
        if found is None or (found.status == "pending" and found.dispatched_at is None):
            return None
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
        )

    async def _read(self, request: ActionRequest) -> Any:
        """Call without the ledger: repeating a READ harms nobody."""
        try:
            context = self._context(request.key, f"read-{request.position}", taken_over=False)
            value = await self._in_context(context, request.args)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as err:
            if isinstance(err, asyncio.CancelledError) and _told_to_stop():
                raise
            return self._guarded.reply_raised(err)
        return self._guarded.reply_done("", self._guarded.encode(value), None)

    async def _claim(self, request: ActionRequest) -> Claim:
        crash_point("before_claim", tool=request.tool)
        try:
            # Repeated within this attempt, whose token tells a claim of ours that was
            # committed without an answer from one that an earlier attempt left.
            claim = await persist(lambda: self._claim_in_open_run(request))
        except asyncio.CancelledError:
            # The claim was seen through, and we know that nothing has been sent.
            # If that is not answered, the next attempt finds it dispatched, which is safe too.
            with suppress(LedgerUnavailable):
                await self._ledger.hand_back(request, self._attempt)
            raise
        crash_point("after_claim", tool=request.tool)
        return claim

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
        )

    async def _call(self, claim: Dispatched) -> Outcome | Action:
        """Call and record; return the outcome that stands, or the row that is unknown."""
        try:
            context = self._context(claim.key, claim.idempotency_key, taken_over=claim.taken_over)
            value = await self._in_context(context, claim.args)
        except ToolRefused as err:
            if claim.taken_over:
                # A refusal speaks for its own call, not for the lost one before it: a check of
                # the tool's own ("already charged") refuses *because* that one went through.
                return await self._park(claim, f"an earlier attempt was lost; now {_told(err)}")
            return await self._record(claim, encode_error(err, effect_possible=False))
        except asyncio.CancelledError:
            if not _told_to_stop():
                return await self._park(claim, "the tool cancelled itself")
            if _run_was_cancelled():
                reason = "the run was cancelled while the tool was at work"
                # A plain function's thread may go on: nobody settles the row before its lease.
                await self._park(claim, reason, over=False)
            # Otherwise the worker goes: the next attempt finds the row and takes over.
            raise
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as err:
            # SystemExit too, and whatever else a library derives from BaseException.
            return await self._park(claim, _told(err))
        return await self._record(claim, self._guarded.encode(value))

    async def _record(self, claim: Dispatched, outcome: Outcome) -> Outcome:
        crash_point("before_record", tool=claim.tool)
        stands = await persist(lambda: self._ledger.record(claim, outcome))
        crash_point("after_record", tool=claim.tool)
        if claim.taken_over:
            _count("commitline_takeovers", claim.tool)
        self._log.info(
            "ledger.action_recorded",
            action_key=claim.key,
            outcome=stands.kind,
            taken_over=claim.taken_over,
            adopted=stands != outcome,
        )
        return stands

    async def _park(self, claim: Dispatched, reason: str, *, over: bool = True) -> Outcome | Action:
        crash_point("before_record", tool=claim.tool)
        action = await persist(lambda: self._ledger.park(claim, reason, over=over))
        crash_point("after_record", tool=claim.tool)
        if action.recorded is not None:
            return action.recorded
        _count("commitline_parks", claim.tool)
        self._log.warning("ledger.action_parked", action_key=claim.key, reason=reason)
        return action

    def _tell(self, key: str, ended: Outcome | Action) -> Any:
        if isinstance(ended, Outcome):
            return self._guarded.reply_done(key, ended, None)
        return self._guarded.reply_unknown(ended)

    def _tell_done(self, action: Action) -> Any:
        _count("commitline_replays", action.tool)
        self._log.info(
            "ledger.action_replayed", action_key=action.key, duplicate_of=action.duplicate_of
        )
        assert action.recorded is not None, "agent_actions_done_is_complete"
        return self._guarded.reply_done(action.key, action.recorded, action.duplicate_of)

    def _tell_unknown(self, action: Action) -> Any:
        self._log.warning(
            "ledger.action_unknown", action_key=action.key, reason=action.parked_reason
        )
        return self._guarded.reply_unknown(action)

    async def _wait_for(self, holder: str) -> None:
        """Wait a while for another action that is at work on the same business fact.

        Within the attempt: nothing was tried, so none of the caller's attempts is used up.
        """
        delay = _BUSY_SECONDS[min(self._waited, len(_BUSY_SECONDS) - 1)]
        self._waited += 1
        self._log.info("ledger.key_busy", holder=holder)
        if activity.is_worker_shutdown():
            # Nothing has begun here: another worker may wait, and this one need not stay for it.
            raise ApplicationError(f"{holder} is at work on the same business fact", type="Busy")
        await asyncio.sleep(delay)

    def _context(self, key: Any, idempotency_key: str, *, taken_over: bool) -> ToolContext:
        return ToolContext(
            idempotency_key=idempotency_key,
            action_key=key,
            run_key=self._origin.run_key,
            position=self._origin.position,
            tool=self._guarded.name,
            taken_over=taken_over,
        )

    async def _in_context(self, context: ToolContext, args: str) -> Any:
        token = current_call.set(context)
        try:
            return await self._invoke(self._guarded.stored_args(args))
        finally:
            current_call.reset(token)


def _told(error: BaseException) -> str:
    return scrub(f"{type(error).__name__}: {error_text(error)}", limit=1_000)


def _unfit(error: Exception) -> InvalidArguments:
    return InvalidArguments(
        f"the arguments could not be checked: {type(error).__name__}: {error_text(error)[:300]}"
    )


def as_failure(error: CommitlineError) -> ApplicationError:
    """Return the failure that Temporal retries, or does not, as the error says of itself."""
    return ApplicationError(
        scrub(str(error)),
        type=type(error).__name__,
        non_retryable=not error.retryable,
        next_retry_delay=timedelta(seconds=1) if isinstance(error, LedgerUnavailable) else None,
    )


async def persist(ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat a *ledger call* until the ledger answers; never the tool or the model."""
    while True:
        try:
            return await ask()
        except LedgerUnavailable as err:
            log.warning("ledger.unavailable", reason=err.message)
            await asyncio.sleep(_UNAVAILABLE_SECONDS)


def _count(name: str, tool: str) -> None:
    """Count an event in the SDK's metrics, which go wherever the worker's runtime sends them."""
    meter = activity.metric_meter().with_additional_attributes({"tool": tool})
    meter.create_counter(name).add(1)


def _told_to_stop() -> bool:
    return activity.cancellation_details() is not None


def _run_was_cancelled() -> bool:
    details = activity.cancellation_details()
    return details is not None and details.cancel_requested

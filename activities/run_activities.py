"""The run's own activities: open it, ask the model, close it.

Each is safe to repeat: the run key, and the model turn within it, make one row of each.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

import structlog
from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from ..canonical import parse, scrub
from ..crash import crash_point
from ..errors import (
    CommitlineError,
    ConfigurationError,
    Fenced,
    LedgerError,
    LedgerUnavailable,
    ModelRejected,
    ModelUnavailable,
    NodeTimeout,
    RunNotRunning,
    UnrepresentableValue,
)
from ..identity import ActionKey, RunKey
from ..ledger import Action, ActionLedger, Outcome, Owned
from ..ledger.codec import error_text
from . import replies
from .agent import Agent, AgentSpec, App
from .bounded_call import Raised, Returned, call_within, see_through
from .conversation import Completion, Message
from .guarded_call import as_failure, count, not_started, persist
from .heartbeat import beating, failed_so_far
from .limits import RunLimits
from .model import ModelRequest, examine
from .origin import first_of_all
from .replies import Reply, Unrecorded
from .tool_runner import raise_tamed
from .wire import from_plain, pack, to_text, unpack

log = structlog.get_logger("commitline")

OPEN_RUN: Final = "commitline.open_run"
CALL_MODEL: Final = "commitline.call_model"
CLOSE_RUN: Final = "commitline.close_run"
STOP_RUN: Final = "commitline.stop_run"
RECORD_OUTCOME: Final = "commitline.record_outcome"
RECORD_COMPLETION: Final = "commitline.record_completion"
SETTLE_TIMED_OUT: Final = "commitline.settle_timed_out"

_AGENT_TRIES: Final = 5
"""How often, a second apart, a worker is looked for that serves the run's agent."""

MAX_COMPLETION: Final = 1024 * 1024
"""Characters of a completion as JSON. Temporal refuses a payload over 2 MiB."""


@dataclass(frozen=True)
class OpenRun:
    """What registers a run."""

    run_key: RunKey
    agent: str
    input_digest: str
    limits: RunLimits = field(default_factory=RunLimits)


@dataclass(frozen=True)
class CallModel:
    """One model turn of a run."""

    run_key: RunKey
    step: int
    spec: AgentSpec
    messages: list[Message]


@dataclass(frozen=True)
class CloseRun:
    """What ends a run."""

    run_key: RunKey


@dataclass(frozen=True)
class StopRun:
    """What stops a run from within."""

    run_key: RunKey
    reason: str


@dataclass(frozen=True)
class RecordCompletion:
    """A completion that the ledger did not take when the model gave it."""

    run_key: RunKey
    step: int
    completion: Completion


@dataclass(frozen=True)
class SettleTimedOut:
    """A call that the server gave up, time after time."""

    key: ActionKey


class RunActivities:
    """The activities of `AgentRun` besides the tools."""

    def __init__(self, app: App, ledger: ActionLedger, *, heartbeat_seconds: float) -> None:
        self._app = app
        self._ledger = ledger
        self._heartbeat_seconds = heartbeat_seconds

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers."""
        return (
            self.open_run,
            self.call_model,
            self.close_run,
            self.stop_run,
            self.record_outcome,
            self.record_completion,
            self.settle_timed_out,
        )

    @activity.defn(name=OPEN_RUN)
    async def open_run(self, raw: RawValue) -> RawValue:
        """Register the run and return its agent's spec, which the run keeps. Safe to repeat."""
        request = unpack(OpenRun, raw)
        info = activity.info()
        try:
            agent = self._agent(request.agent)
            run = await persist(
                lambda: self._ledger.open_run(
                    run_key=request.run_key,
                    workflow_id=info.workflow_id or "",
                    agent=request.agent,
                    input_digest=request.input_digest,
                    attempt_at=info.started_time,
                )
            )
            if run.stopped_at is not None:
                raise RunNotRunning(f"the run {run.run_key} was stopped: {run.stop_reason}")
        except (ConfigurationError, LedgerError) as err:
            raise as_failure(err) from err
        return pack(
            agent.spec(
                heartbeat_seconds=self._heartbeat_seconds,
                limits=request.limits,
                spent=run.now - run.created_at,
            )
        )

    @activity.defn(name=CALL_MODEL)
    async def call_model(self, raw: RawValue) -> RawValue:
        """Return this turn's completion: the recorded one, or a new one, recorded first.

        Safe to repeat: the first completion of a turn stands.
        """
        request = unpack(CallModel, raw)
        async with beating():
            try:
                return pack(await self._completion(request))
            except LedgerUnavailable as err:
                # The model was not asked: the run waits, and asks with a fresh clock.
                raise not_started(err.message) from err
            except (ConfigurationError, LedgerError, ModelRejected) as err:
                raise as_failure(err) from err

    @activity.defn(name=CLOSE_RUN)
    async def close_run(self, raw: RawValue) -> None:
        """Mark the run as ended: no older attempt claims any more. Safe to repeat."""
        request = unpack(CloseRun, raw)
        started = activity.info().started_time
        try:
            await persist(lambda: self._ledger.end_run(request.run_key, attempt_at=started))
        except LedgerError as err:
            raise as_failure(err) from err

    @activity.defn(name=STOP_RUN)
    async def stop_run(self, raw: RawValue) -> None:
        """Commit that the run stops: it starts nothing any more. Safe to repeat."""
        request = unpack(StopRun, raw)
        info = activity.info()
        await persist(
            lambda: self._ledger.stop_run(
                request.run_key,
                workflow_id=info.workflow_id or "",
                agent="",
                reason=request.reason,
                attempt_at=info.started_time,
            )
        )

    @activity.defn(name=RECORD_OUTCOME)
    async def record_outcome(self, raw: RawValue) -> RawValue:
        """Record how a call ended, which its own attempt could not; return what stands.

        Safe to repeat: the first record stands. A ledger that is away fails the attempt, and
        Temporal tries again without end.
        """
        ended = unpack(Unrecorded, raw)
        owned = ended.owned
        try:
            if ended.known is None:
                return pack(_told(await self._ledger.park(owned, ended.reason, over=ended.over)))
            stands = await self._ledger.record(owned, ended.known)
        except Fenced as err:
            return pack(await self._overtaken(owned.key, ended.known, err))
        except LedgerError as err:
            raise as_failure(err) from err
        log.info("ledger.outcome_recorded", action_key=ended.key, outcome=stands.kind)
        return pack(replies.done(ended.key, stands))

    async def _overtaken(self, key: ActionKey, known: Outcome | None, fenced: Fenced) -> Reply:
        """Return what to tell where the row is no longer the attempt's whose outcome this is."""
        try:
            found = await self._ledger.get(key)
            if found is not None and found.state == "dispatched":
                if found.leased:
                    raise as_failure(fenced)  # a live attempt is at work on it: wait for it
                found = await self._park(found, "an attempt that had taken it over was lost")
        except LedgerError as err:
            raise as_failure(err) from err
        if found is not None and found.state != "intent":
            return _told(found)
        # A failover lost the row while its outcome was here: what happened is still true.
        log.error("ledger.row_lost", action_key=key)
        if known is None:
            raise as_failure(fenced)
        return replies.done(key, known)

    @activity.defn(name=RECORD_COMPLETION)
    async def record_completion(self, raw: RawValue) -> RawValue:
        """Record a completion that its own attempt could not; return the one that stands.

        Safe to repeat: the first completion of a turn stands.
        """
        request = unpack(RecordCompletion, raw)
        text = _as_text(request.completion)
        try:
            stands = await self._ledger.record_completion(request.run_key, request.step, text)
        except LedgerError as err:
            raise as_failure(err) from err
        return pack(from_plain(Completion, stands))

    @activity.defn(name=SETTLE_TIMED_OUT)
    async def settle_timed_out(self, raw: RawValue) -> RawValue:
        """Return what is known of a call that the server gave up; park it if nothing is.

        Safe to repeat. Returns a reply without action key where nothing was dispatched so far:
        it may be started afresh, and an attempt that wakes up late may still dispatch it.
        """
        request = unpack(SettleTimedOut, raw)
        try:
            found = await self._ledger.get(request.key)
            if found is not None and found.state == "dispatched":
                why = f"its attempts were lost until its time was up [{NodeTimeout.code}]"
                found = await self._park(found, why)
        except LedgerError as err:
            raise as_failure(err) from err
        if found is None or found.state == "intent":
            return pack(replies.node_timed_out())
        return pack(_told(found))

    async def _park(self, found: Action, why: str) -> Action:
        """Leave a dispatched row unknown, whoever's attempt was lost; it may yet be at work."""
        assert found.claim_token is not None, "agent_actions_dispatch_is_complete"
        holder = Owned(found.key, found.claim_token, found.domain_key)
        return await self._ledger.park(holder, why, over=False)

    def _agent(self, name: str) -> Agent:
        """Return an agent; if this worker has none of that name, let others try for a while.

        During a deploy, or with two apps on one task queue, another worker may have it.
        """
        try:
            return self._app.agent(name)
        except ConfigurationError as err:
            log.warning("run.agent_not_served", agent=name)
            raise ApplicationError(
                scrub(f"{err.message}; give each app a task queue of its own [{err.code}]"),
                type=type(err).__name__,
                non_retryable=activity.info().attempt >= _AGENT_TRIES,
                next_retry_delay=timedelta(seconds=1),
            ) from err

    async def _completion(self, request: CallModel) -> Completion:
        at = (request.run_key, request.step)
        recorded = None
        if not first_of_all(request.run_key):
            recorded = await self._ledger.get_completion(*at)
        if recorded is not None:
            log.info("model.completion_replayed", run_key=request.run_key, step=request.step)
            return from_plain(Completion, recorded)
        notices = await self._notices(request)
        completion = replace(await self._ask(request, notices), notices=notices)
        crash_point("after_completion")
        text = _as_text(completion)
        if len(text) > MAX_COMPLETION:
            raise ModelRejected(f"the completion has {len(text)} characters, over {MAX_COMPLETION}")
        try:
            stands = await see_through(self._ledger.record_completion(*at, text))
        except LedgerUnavailable as err:
            # Paid for, and not to be asked for again: the run records it before it acts on it.
            log.error("model.completion_handed_over", run_key=at[0], step=at[1], reason=err.message)
            return replace(completion, unrecorded=True)
        crash_point("completion_recorded")
        log.info(
            "model.completion_recorded",
            run_key=request.run_key,
            step=request.step,
            calls=len(completion.calls),
            input_tokens=completion.usage.input_tokens,
            output_tokens=completion.usage.output_tokens,
        )
        return from_plain(Completion, stands)

    async def _notices(self, request: CallModel) -> list[str]:
        """Return what this turn tells the model of: what was unknown to it, and is settled."""
        told = (result.status for message in request.messages for result in message.results)
        if "unknown" not in told:
            return []
        settled = await self._ledger.take_notices(request.run_key, request.step)
        return [replies.notice(action) for action in settled]

    async def _ask(self, request: CallModel, notices: list[str]) -> Completion:
        spec = request.spec
        self._agent(spec.name)
        model = self._app.model(agent=spec.name, name=spec.model)
        limits = spec.model_limits.left
        began = time.monotonic()
        given = ModelRequest(
            model=spec.model,
            instructions=spec.instructions,
            tools=[found.definition for found in spec.tools],
            messages=[*request.messages, *(Message.user(notice) for notice in notices)],
        )

        async def ask() -> Completion:
            try:
                return examine(await model.complete(given))
            except BaseException as err:
                raise_tamed(spec.model, err)

        end = await call_within(limits.nearest, ask())
        if isinstance(end.how, Returned):
            return end.how.value  # type: ignore[no-any-return]
        if end.stopped_by == "caller":
            raise asyncio.CancelledError
        if end.stopped_by == "deadline":
            count("commitline_model_timeouts", spec.model, of="model")
            error: BaseException = ModelUnavailable(f"no answer within {limits.nearest:g} s")
        else:
            assert isinstance(end.how, Raised)
            error = end.how.error
        if isinstance(error, ModelUnavailable):
            raise _model_failure(
                error,
                limit=spec.model_tries,
                node_seconds=limits.node_seconds,
                spent=time.monotonic() - began,
            ) from error
        if isinstance(error, ConfigurationError | ModelRejected) or not isinstance(
            error, Exception
        ):
            raise error
        # A fault of the model's own code, which Temporal would pay for again and again.
        raise ModelRejected(
            f"{spec.model} raised {type(error).__name__}: {error_text(error)[:500]}"
        ) from error


def _told(action: Action) -> Reply:
    if action.recorded is not None:
        return replies.done(action.key, action.recorded, duplicate_of=action.duplicate_of)
    return replies.unknown(action)


def _as_text(completion: Completion) -> str:
    """Write a completion, sure that it can be read again: a row that cannot wedges the run."""
    try:
        text = to_text(completion)
        parse(text)
    except (UnrepresentableValue, TypeError, ValueError, RecursionError) as err:
        raise ModelRejected(f"the completion has no JSON form: {error_text(err)[:500]}") from err
    return text


def _model_failure(
    error: ModelUnavailable, *, limit: int, node_seconds: float | None, spent: float
) -> ApplicationError:
    """Count the request that failed, on the heartbeat, which the next attempt reads.

    Temporal's own attempts are not counted: a dead worker or an outage of the ledger is not
    the model's failure and must not use up its tries.
    """
    tries = failed_so_far() + 1
    activity.heartbeat(tries)
    delay = error.retry_after or timedelta(seconds=min(2.0 ** (tries - 1), 30.0))
    told: CommitlineError = error
    final = tries >= limit
    if not final and node_seconds is not None and spent + delay.total_seconds() > node_seconds:
        final = True
        told = NodeTimeout(f"no time for another try of the model; the last: {error.message}")
    return ApplicationError(
        scrub(f"model request {tries} of {limit}: {told}"),
        type=type(told).__name__,
        non_retryable=final,
        next_retry_delay=delay,
    )

"""`AgentRun`: the loop of an agent as a Temporal workflow.

    open the run
    repeat: ask the model; run the calls of its message side by side
    until a message has no calls; close the run

It decides and does nothing else: every effect is an activity, every activity is recorded in
history, and every call passes the guard. A replay takes the same way because the completion
of each turn is recorded before it is acted on, and read back by a retry and a reset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, TypeVar

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    is_cancelled_exception,
)
from temporalio.exceptions import TimeoutError as TimedOutError

with workflow.unsafe.imports_passed_through():
    from ..activities import replies
    from ..activities.agent import AgentSpec, ToolSpec
    from ..activities.conversation import (
        Completion,
        FinishReason,
        Message,
        ToolCall,
        ToolResult,
    )
    from ..activities.guarded_call import NOT_STARTED, STOPPING
    from ..activities.limits import CallLimits, RunLimits
    from ..activities.replies import Reply, Unrecorded
    from ..activities.run_activities import (
        CALL_MODEL,
        CLOSE_RUN,
        OPEN_RUN,
        RECORD_COMPLETION,
        RECORD_OUTCOME,
        SETTLE_TIMED_OUT,
        STOP_RUN,
        CallModel,
        CloseRun,
        OpenRun,
        RecordCompletion,
        SettleTimedOut,
        StopRun,
    )
    from ..activities.wire import pack, pack_text, to_text, unpack
    from ..canonical import digest, dumps, parse, scrub
    from ..errors import (
        ConversationTooLarge,
        MaxStepsExceeded,
        ModelUnavailable,
        NodeTimeout,
        RunDeadlineExceeded,
        ScheduleUnsupported,
    )
    from ..identity import Position, action_key, position
    from ..ledger.actions import Effect
    from .action_headers import this_run
    from .progress import CallState, Progress, summarise

T = TypeVar("T")

AGENT_RUN: Final = "AgentRun"

_LEDGER_ATTEMPT: Final = timedelta(seconds=15)
"""The same for an activity that only talks to the ledger: it does not heartbeat, so this is how
long a run waits for one whose worker died in it."""

MAX_CONVERSATION: Final = 1_500_000
"""Characters of a model request. A payload over 2 MiB would wedge the workflow task for ever."""

# Attempts are not limited: a dead worker or an outage of the ledger must not use them up.
# What ends a call is decided by the guard and the model activity.
_RETRY: Final = RetryPolicy(
    initial_interval=timedelta(milliseconds=100), maximum_interval=timedelta(seconds=10)
)

_AFRESH: Final = (1, 2, 4, 8, 15, 30)
"""Seconds before a call that could not be dispatched is started afresh, time after time."""
_GIVEN_UP: Final = 2
"""How often the server may give a call up (its workers died, or none was there) before what
became of it is settled from the ledger."""
_STOP_WAIT: Final = timedelta(seconds=60)
"""How long a run that may start nothing waits for the cancellation that follows a stop."""


@dataclass(frozen=True)
class RunInput:
    """What a run is started with."""

    agent: str
    prompt: str
    limits: RunLimits = field(default_factory=RunLimits)

    @property
    def digest(self) -> str:
        """By which a second start of the same id is known to be the same.

        Deadlines do not count: a deploy that changes them must not keep a lost reply from being
        answered by starting again. The run keeps those that it was first started with.
        """
        return digest({"agent": self.agent, "prompt": self.prompt})


@dataclass(frozen=True)
class RunResult:
    """How a run ended well."""

    output: str
    """The model's last text."""
    steps: int
    """Model turns."""
    finish_reason: FinishReason = "stop"
    """``length``: the last text was cut off at the model's output limit."""


@workflow.defn(name=AGENT_RUN)
class AgentRun:
    """One run of one agent; see the module."""

    def __init__(self) -> None:
        self._progress = Progress(agent="", prompt="")

    @workflow.run
    async def run(self, raw: RawValue) -> RawValue:
        """Run the agent; input `RunInput`, result `RunResult`, both as JSON."""
        given = _read_input(raw)
        if workflow.info().cron_schedule:
            raise _failure(
                ScheduleUnsupported(f"{workflow.info().workflow_id} has a cron schedule")
            )
        self._progress = Progress(agent=given.agent, prompt=given.prompt)
        self._show("starting")
        try:
            result = await self._opened(await self._open(given), given)
        except ActivityError as err:
            if is_cancelled_exception(err) or _cancelled():
                raise asyncio.CancelledError from err
            if isinstance(err.cause, ApplicationError) and STOPPING in err.cause.details:
                # A stop is committed before the cancellation is sent: it is on its way.
                await workflow.sleep(_STOP_WAIT)
            raise _run_failure(err) from err
        self._show("done")
        return pack(result)

    @workflow.query(name="status")
    def status(self) -> RawValue:
        """Return the run's `Progress` as JSON."""
        return pack(self._progress)

    async def _opened(self, spec: AgentSpec, given: RunInput) -> RunResult:
        """Run the loop and close the run in the ledger, however the loop ends."""
        try:
            return await self._within_deadline(spec, self._loop(spec, given))
        finally:
            if _cancelled():
                self._show("stopping")
            await _see_through(_ask_ledger(CLOSE_RUN, CloseRun(this_run()), "Close the run"))

    async def _within_deadline(
        self, spec: AgentSpec, loop: Coroutine[Any, Any, RunResult]
    ) -> RunResult:
        """Run the loop within the run's deadline, which is a stop from within."""
        if spec.deadline_seconds is None:
            return await loop
        running = asyncio.ensure_future(loop)
        try:
            await workflow.wait([running], timeout=max(spec.deadline_seconds, 0.001))
        except asyncio.CancelledError:
            running.cancel()
        reason = "its run_deadline has passed"
        passed = not running.done() and not _cancelled()
        if passed:
            await _see_through(
                _ask_ledger(STOP_RUN, StopRun(this_run(), reason), "Stop: the deadline has passed")
            )
            running.cancel()
        await _see_through(_ended(running))
        if passed:
            raise _failure(RunDeadlineExceeded(reason))
        return running.result()

    async def _loop(self, spec: AgentSpec, given: RunInput) -> RunResult:
        messages = [Message.user(given.prompt)]
        for step in range(spec.max_steps):
            _stop_here_if_cancelled()
            self._progress.steps = step + 1
            self._show(f"step {step + 1}: asking the model")
            completion = await self._ask(spec, step, messages)
            _stop_here_if_cancelled()
            if not completion.calls:
                return RunResult(completion.text, step + 1, completion.finish_reason)
            self._show(f"step {step + 1}: {len(completion.calls)} calls")
            results = await self._run_calls(spec, step, completion.calls)
            messages += [Message.user(notice) for notice in completion.notices]
            messages += [Message.assistant(completion), Message.tool(results)]
        raise _failure(MaxStepsExceeded(f"no answer within {spec.max_steps} model turns"))

    async def _open(self, given: RunInput) -> AgentSpec:
        request = OpenRun(this_run(), given.agent, given.digest, given.limits)
        summary = scrub(f"Open the run for {given.agent}", limit=150)
        spec = unpack(AgentSpec, await _ask_ledger(OPEN_RUN, request, summary))
        self._progress.model = spec.model
        return spec

    async def _ask(self, spec: AgentSpec, step: int, messages: list[Message]) -> Completion:
        request = to_text(CallModel(this_run(), step, spec, messages))
        if len(request) > MAX_CONVERSATION:
            raise _failure(
                ConversationTooLarge(f"at turn {step + 1} the run has {len(request)} characters")
            )
        answer = await _carry_out(
            spec,
            CALL_MODEL,
            pack_text(request),
            at=f"{step}.model",
            limits=spec.model_limits,
            summary=scrub(f"Ask {spec.model}, turn {step + 1}", limit=150),
        )
        if answer is None:
            raise _failure(NodeTimeout(f"turn {step + 1}: the model's attempts were lost"))
        completion = unpack(Completion, answer)
        if not completion.unrecorded:
            return completion
        known = RecordCompletion(this_run(), step, replace(completion, unrecorded=False))
        recorded = _ask_ledger(RECORD_COMPLETION, known, "Record what the model answered")
        return unpack(Completion, await _see_through(recorded))

    async def _run_calls(
        self, spec: AgentSpec, step: int, calls: list[ToolCall]
    ) -> list[ToolResult]:
        """Run the calls of one message side by side; each settles on its own, in order."""
        settled = await asyncio.gather(
            *(self._run_call(spec, step, index, call) for index, call in enumerate(calls)),
            return_exceptions=True,
        )
        results = []
        for one in settled:
            # Only what ends the run is raised, and only after the siblings have settled.
            if isinstance(one, BaseException):
                raise one
            results.append(one)
        return results

    async def _run_call(self, spec: AgentSpec, step: int, index: int, call: ToolCall) -> ToolResult:
        at = position(step, index)
        known = {found.definition.name: found for found in spec.tools}
        if call.name not in known:
            reply = replies.not_run(
                "UnknownTool",
                f"there is no tool {scrub(call.name, limit=80)!r}; "
                f"the tools are: {', '.join(known) or 'none'}",
            )
        elif call.problem is not None:
            reply = replies.not_run("InvalidArguments", f"not run: {call.problem}")
        else:
            reply = await self._run_tool(spec, known[call.name], at, call)
        return ToolResult(at, call.id, call.name, reply.status, replies.content_text(reply))

    async def _run_tool(
        self, spec: AgentSpec, tool: ToolSpec, at: Position, call: ToolCall
    ) -> Reply:
        name = tool.definition.name
        arguments = parse(call.arguments)
        summary = summarise(name, tool.summary, arguments)
        shown = self._progress.begin(at, summary)
        self._show(self._progress.state)
        reply = await self._reply(spec, tool, at, pack_text(dumps(arguments)), summary)
        shown.state = _state(reply)
        self._show(self._progress.state)
        return reply

    async def _reply(
        self, spec: AgentSpec, tool: ToolSpec, at: Position, arguments: RawValue, summary: str
    ) -> Reply:
        """Carry a call out until it is known what to tell, recorded, or surely unknown."""
        while True:
            _stop_here_if_cancelled()
            answer = await _carry_out(
                spec, tool.definition.name, arguments, at=at, limits=tool.limits, summary=summary
            )
            if answer is not None:
                reply = unpack(Reply, answer)
                return reply if reply.unrecorded is None else await _record(reply.unrecorded)
            if tool.effect is Effect.READ:
                return replies.node_timed_out()
            given_up = SettleTimedOut(action_key(this_run(), at))
            settled = await _see_through(
                _ask_ledger(SETTLE_TIMED_OUT, given_up, f"Settle {at}, which was given up")
            )
            reply = unpack(Reply, settled)
            if reply.action_key is not None:
                return reply

    def _show(self, state: str) -> None:
        self._progress.state = state
        workflow.set_current_details(self._progress.markdown())


async def _carry_out(
    spec: AgentSpec, activity: str, argument: RawValue, *, at: str, limits: CallLimits, summary: str
) -> RawValue | None:
    """Run one activity of a turn; None where the server gave it up, time after time.

    What could not be dispatched (no ledger, a key that another action is at work on) is
    started afresh, with a fresh clock: an outage ends no run.
    """
    afresh = given_up = 0
    while True:
        try:
            answer: RawValue = await workflow.execute_activity(
                activity,
                argument,
                result_type=RawValue,
                activity_id=at,
                start_to_close_timeout=min(limits.start_to_close, limits.schedule_to_close),
                schedule_to_close_timeout=limits.schedule_to_close,
                heartbeat_timeout=timedelta(seconds=spec.heartbeat_seconds),
                retry_policy=_RETRY,
                # The default would report the run as cancelled while its tool still works.
                cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
                summary=summary,
            )
            return answer
        except ActivityError as err:
            if _cancelled():
                raise
            if _type_of(err) == NOT_STARTED:
                await workflow.sleep(_AFRESH[min(afresh, len(_AFRESH) - 1)])
                afresh += 1
            elif isinstance(err.cause, TimedOutError):
                given_up += 1
                if given_up == _GIVEN_UP:
                    return None
            else:
                raise


async def _record(ended: Unrecorded) -> Reply:
    """Have an outcome recorded that its attempt could not; return the reply that stands."""
    return unpack(
        Reply, await _see_through(_ask_ledger(RECORD_OUTCOME, ended, "Record how a call ended"))
    )


async def _ask_ledger(activity: str, request: Any, summary: str) -> RawValue:
    """Run an activity that only talks to the ledger, until it answers."""
    answer: RawValue = await workflow.execute_activity(
        activity,
        pack(request),
        result_type=RawValue,
        start_to_close_timeout=_LEDGER_ATTEMPT,
        retry_policy=_RETRY,
        summary=summary,
    )
    return answer


async def _see_through(work: Coroutine[Any, Any, T]) -> T:
    """Wait for ``work`` even where the run is cancelled meanwhile; that stands all the same."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await workflow.wait([task])
        except asyncio.CancelledError:
            continue
    return task.result()


async def _ended(running: asyncio.Future[Any]) -> None:
    await workflow.wait([running])


def _cancelled() -> bool:
    """Whether the run was cancelled, whatever its activities made of that."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _stop_here_if_cancelled() -> None:
    """Go no further in a run that was cancelled while it saw something through."""
    if _cancelled():
        raise asyncio.CancelledError


def _read_input(raw: RawValue) -> RunInput:
    try:
        return unpack(RunInput, raw)
    except Exception as err:
        # An input that cannot be read never can be: fail the run, do not retry the task.
        raise ApplicationError(
            scrub(f"not the input of an {AGENT_RUN}: {err}"),
            type="InvalidInput",
            non_retryable=True,
        ) from err


def _run_failure(error: ActivityError) -> BaseException:
    """Return what the run ends with: the activity's own failure, by its type.

    Final, but for a model that could not answer: a retry policy of the workflow mends that,
    and finds everything before that turn recorded.
    """
    cause = error.cause
    if not isinstance(cause, ApplicationError):
        return cause or error
    final = cause.type not in (ModelUnavailable.__name__, NodeTimeout.__name__)
    return ApplicationError(cause.message, type=cause.type, non_retryable=final)


def _type_of(error: ActivityError) -> str | None:
    return error.cause.type if isinstance(error.cause, ApplicationError) else None


def _failure(error: Any) -> ApplicationError:
    return ApplicationError(scrub(str(error)), type=type(error).__name__, non_retryable=True)


def _state(reply: Reply) -> CallState:
    if reply.status == "ok":
        return "existing" if reply.existing else "ok"
    return "happened" if reply.status == "error" and reply.effect_possible else reply.status

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
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

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
    from ..activities.replies import Reply
    from ..activities.run_activities import (
        CALL_MODEL,
        CLOSE_RUN,
        OPEN_RUN,
        CallModel,
        CloseRun,
        OpenRun,
    )
    from ..activities.wire import pack, pack_text, to_text, unpack
    from ..canonical import digest, dumps, parse, scrub
    from ..errors import (
        ConversationTooLarge,
        MaxStepsExceeded,
        ModelUnavailable,
        ScheduleUnsupported,
    )
    from ..identity import position
    from .action_headers import this_run
    from .progress import CallState, Progress, summarise

AGENT_RUN: Final = "AgentRun"

_ATTEMPT: Final = timedelta(minutes=15)
"""Start-to-close of one attempt of a tool or a model request."""
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


@dataclass(frozen=True)
class RunInput:
    """What a run is started with."""

    agent: str
    prompt: str

    @property
    def digest(self) -> str:
        """By which a second start of the same id is known to be the same."""
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
            if is_cancelled_exception(err):
                raise
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
            return await self._loop(spec, given)
        finally:
            await workflow.execute_activity(
                CLOSE_RUN,
                pack(CloseRun(this_run())),
                start_to_close_timeout=_LEDGER_ATTEMPT,
                retry_policy=_RETRY,
                summary="Close the run",
            )

    async def _loop(self, spec: AgentSpec, given: RunInput) -> RunResult:
        messages = [Message.user(given.prompt)]
        for step in range(spec.max_steps):
            self._progress.steps = step + 1
            self._show(f"step {step + 1}: asking the model")
            completion = await self._ask(spec, step, messages)
            if not completion.calls:
                return RunResult(completion.text, step + 1, completion.finish_reason)
            self._show(f"step {step + 1}: {len(completion.calls)} calls")
            results = await self._run_calls(spec, step, completion.calls)
            messages += [Message.assistant(completion), Message.tool(results)]
        raise _failure(MaxStepsExceeded(f"no answer within {spec.max_steps} model turns"))

    async def _open(self, given: RunInput) -> AgentSpec:
        opened = await workflow.execute_activity(
            OPEN_RUN,
            pack(OpenRun(this_run(), given.agent, given.digest)),
            result_type=RawValue,
            start_to_close_timeout=_LEDGER_ATTEMPT,
            retry_policy=_RETRY,
            summary=scrub(f"Open the run for {given.agent}", limit=150),
        )
        spec = unpack(AgentSpec, opened)
        self._progress.model = spec.model
        return spec

    async def _ask(self, spec: AgentSpec, step: int, messages: list[Message]) -> Completion:
        request = to_text(CallModel(this_run(), step, spec, messages))
        if len(request) > MAX_CONVERSATION:
            raise _failure(
                ConversationTooLarge(f"at turn {step + 1} the run has {len(request)} characters")
            )
        answer = await workflow.execute_activity(
            CALL_MODEL,
            pack_text(request),
            result_type=RawValue,
            activity_id=f"{step}.model",
            start_to_close_timeout=_ATTEMPT,
            heartbeat_timeout=timedelta(seconds=spec.heartbeat_seconds),
            retry_policy=_RETRY,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=scrub(f"Ask {spec.model}, turn {step + 1}", limit=150),
        )
        return unpack(Completion, answer)

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

    async def _run_tool(self, spec: AgentSpec, tool: ToolSpec, at: str, call: ToolCall) -> Reply:
        name = tool.definition.name
        arguments = parse(call.arguments)
        summary = summarise(name, tool.summary, arguments)
        shown = self._progress.begin(at, summary)
        self._show(self._progress.state)
        answer = await workflow.execute_activity(
            name,
            pack_text(dumps(arguments)),
            result_type=RawValue,
            activity_id=at,
            start_to_close_timeout=_ATTEMPT,
            heartbeat_timeout=timedelta(seconds=spec.heartbeat_seconds),
            retry_policy=_RETRY,
            # The default would report the run as cancelled while its tool still works.
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=summary,
        )
        reply = unpack(Reply, answer)
        shown.state = _state(reply)
        self._show(self._progress.state)
        return reply

    def _show(self, state: str) -> None:
        self._progress.state = state
        workflow.set_current_details(self._progress.markdown())


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
    final = cause.type != ModelUnavailable.__name__
    return ApplicationError(cause.message, type=cause.type, non_retryable=final)


def _failure(error: Any) -> ApplicationError:
    return ApplicationError(scrub(str(error)), type=type(error).__name__, non_retryable=True)


def _state(reply: Reply) -> CallState:
    if reply.status == "ok":
        return "existing" if reply.existing else "ok"
    return "happened" if reply.status == "error" and reply.effect_possible else reply.status

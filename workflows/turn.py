"""The turns of a run: request the model, run the calls of its message side by side, keep results.

What is new since the conversation's version (`new_messages`, `new_results`) travels with the next
model turn, which commits it together with the completion. A result that the ledger has is only
named: the turn reads it there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from temporalio import workflow
from temporalio.exceptions import ActivityError

from ..activities.contract.conversation import (
    Completion,
    Message,
    RunResult,
    ToolCall,
)
from ..activities.contract.encoding import pack_text, to_text
from ..activities.contract.final_result import FINAL_RESULT, OUTPUT_REQUEST
from ..activities.contract.reply import Reply
from ..activities.contract.runs import OPEN_RUN, Opened, OpenRun
from ..activities.contract.sizes import (
    MAX_STATE,
    MAX_STEP,
    SHORT_CONTENT,
    SHOWN_CONTENT,
    changes_share,
    result_share,
)
from ..activities.contract.spec import AgentSpec, ToolSpec
from ..activities.contract.turns import (
    CALL_MODEL,
    RECORD_TURN,
    RESULTS_LOST,
    RUN_LOST,
    CallModel,
    CallResult,
    TurnResult,
)
from ..activities.replies import call_reply
from ..activities.replies.reply_content import content_text
from ..canonical import scrub
from ..errors import ConversationTooLarge, EndedByOperator
from ..identity import Position, action_key, position
from ..ledger.action_records import Effect
from ..shown import markdown_line
from .action_headers import Surroundings, surroundings, this_run
from .activity_calls import (
    ENDED_BY_OPERATORS,
    despite_cancellation,
    failure,
    raise_if_cancelled,
    run_activity,
    run_ledger_activity,
    side_by_side,
    type_of,
)
from .list_state import show
from .progress import Progress
from .run_input import OpenRequest, RunInput
from .tool_calls import ToolCalls

MAX_CONVERSATION: Final = 1_700_000
"""Characters of a model turn's input. A payload over 2 MiB would wedge the workflow task for ever.
The results of one turn are bounded well below (`MAX_TURN`)."""


class AgentTurns:
    """Takes the turns of a run, and knows where it is in its conversation.

    Args:
        spec: What the run keeps of its agent.
        version: The conversation's version.
        given: The run's input.
        progress: Shows the run to people.
    """

    def __init__(self, spec: AgentSpec, version: int, given: RunInput, progress: Progress) -> None:
        self.spec = spec
        self.step = 0
        """Model turns so far."""
        self.version = version
        self.epoch = 0
        self.new_messages: list[Message] = [] if given.thread_id else [Message.user(given.prompt)]
        self.new_results: list[CallResult] = []
        """What the conversation does not have yet."""
        self.unusable = 0
        """Turns in a row in which the model gave nothing usable."""
        self._outcomes = ""
        """How the calls of the last turn ended, for people."""
        self.problem = ""
        """What was wrong with the last of them."""
        self.calls = ToolCalls(
            heartbeat_seconds=spec.heartbeat_seconds,
            thread_id=given.thread_id,
            progress=progress,
            limits=given.limits,
        )
        self.ends_at = None if spec.deadline_seconds is None else _from_now(spec.deadline_seconds)
        """When its run_deadline passes, by the workflow's clock."""
        self._given = given
        self._thread_id = given.thread_id
        self._progress = progress
        progress.model = spec.model

    @classmethod
    def opened(cls, opened: Opened, given: RunInput, progress: Progress) -> AgentTurns:
        """Begin, or go on, with what opening the run returned."""
        turns = cls(opened.spec, opened.version, given, progress)
        if given.carried is not None:
            carried = given.carried
            turns.step, turns.version, turns.epoch = carried.step, carried.version, carried.epoch
            turns.new_messages = list(carried.new_messages)
            turns.new_results, turns.unusable = list(carried.new_results), carried.unusable
        return turns

    async def take(self, request: OpenRequest) -> RunResult | None:
        """Take one turn to answer a request; return its result if that was the last turn."""
        self._progress.steps = self.step + 1
        self._show(f"step {self.step + 1}: waiting for the model")
        answer = await self._request_model(request)
        raise_if_cancelled()
        self.version, self.new_messages, self.new_results = answer.version, [], []
        if answer.replied is not None:
            # Another run has answered it, perhaps at this very moment: go on from there.
            return answer.replied
        completion = answer.completion
        self.epoch = answer.epoch
        self._progress.usage = answer.usage
        result = self._result(request, answer)
        if result is None:
            await self._continue(completion)
        self.step += 1
        return result

    def _result(self, request: OpenRequest, answer: TurnResult) -> RunResult | None:
        completion = answer.completion
        if not self.spec.ends_with(completion):
            return None
        text = completion.text if completion.output is None else completion.output
        steps = self.step - request.step + 1
        return RunResult(text, steps, completion.finish_reason, answer.usage)

    async def _continue(self, completion: Completion) -> None:
        """Run the calls of the completion; keep what the model reads next."""
        problems = [call.problem for call in completion.calls if call.problem is not None]
        usable = len(completion.calls) > len(problems)
        self.unusable = 0 if usable else self.unusable + 1
        if not usable:
            self.problem = scrub(problems[0], limit=300) if problems else _no_output(completion)
        if not completion.calls:
            self.new_messages.append(Message.user(OUTPUT_REQUEST))
            return
        self._show(f"step {self.step + 1}: {len(completion.calls)} calls")
        before = self._progress.begun
        self.new_results = await self._run_calls(completion.calls)
        self._outcomes = self._progress.outcomes(latest=self._progress.begun - before)

    async def _request_model(self, request: OpenRequest) -> TurnResult:
        """Take the turn; what the ledger has lost, by a failover, it gets again from history."""
        lost: set[str | None] = set()
        while True:
            results = self.new_results
            if RESULTS_LOST not in lost:
                results = [one.reference for one in results]
            try:
                answer = await self._run_model_activity(self._call(request, results))
                break
            except ActivityError as err:
                what = type_of(err)
                if what not in (RUN_LOST, RESULTS_LOST) or what in lost:
                    raise
                lost.add(what)
                if what == RUN_LOST:
                    await self._open_again()
        if answer.unrecorded is None:
            return answer
        recording = run_ledger_activity(
            TurnResult, RECORD_TURN, answer.unrecorded, "Record the completion"
        )
        return await despite_cancellation(recording)

    async def _open_again(self) -> None:
        run = self._given
        again = OpenRun(this_run(), run.agent, run.digest, run.limits, run.thread_id, self.spec)
        await run_ledger_activity(
            Opened, OPEN_RUN, again, "Open the run again, which the ledger has lost"
        )

    def _call(self, request: OpenRequest, results: list[CallResult]) -> str:
        call = to_text(
            CallModel(
                this_run(),
                self.step,
                version=self.version,
                thread=self._thread_id,
                epoch=self.epoch,
                messages=self.new_messages,
                results=results,
                request_id=request.request_id,
                request_step=request.step,
            )
        )
        if len(call) > MAX_CONVERSATION:
            raise failure(
                ConversationTooLarge(f"turn {self.step + 1} has {len(call)} characters of input")
            )
        return call

    async def _run_model_activity(self, call: str) -> TurnResult:
        """Take the turn; again where an operator ended it: a recorded completion is read back."""
        turn = f"{self.spec.model}, turn {self.step + 1}"
        for _ in range(ENDED_BY_OPERATORS):
            answer = await run_activity(
                TurnResult,
                CALL_MODEL,
                pack_text(call),
                at=f"{self.step}.model",
                limits=self.spec.model_limits,
                heartbeat_seconds=self.spec.heartbeat_seconds,
                summary=markdown_line("; ".join(filter(None, (turn, self._outcomes)))),
                local=self.spec.local,
            )
            if answer is not None:
                return answer
        raise failure(EndedByOperator(f"turn {self.step + 1}: the model's activity gave no answer"))

    async def _run_calls(self, calls: list[ToolCall]) -> list[CallResult]:
        """Run the calls of one message side by side; each settles on its own, in order."""
        changes = changes_share(len(calls))
        surroundings.set(
            Surroundings(
                self._thread_id,
                calls_tools=True,
                thread_version=self.version,
                changes_limit=changes if changes < MAX_STATE else None,
            )
        )
        share = result_share(len(calls), limit=self.spec.result_limit)
        return await side_by_side(
            self._run_call(position(self.step, index, epoch=self.epoch), call, share)
            for index, call in enumerate(calls)
        )

    async def _run_call(self, at: Position, call: ToolCall, share: int) -> CallResult:
        """Run one call; the model reads ``share`` characters of its result."""
        known = {found.definition.name: found for found in self.spec.tools}
        if call.problem is not None and call.name in {*known, FINAL_RESULT}:
            reply = call_reply.not_run("InvalidArguments", f"not run: {call.problem}")
        elif call.name not in known:
            reply = call_reply.not_run(
                "UnknownTool",
                f"there is no tool {scrub(call.name, limit=80)!r}; "
                f"the tools are: {', '.join(known) or 'none'}",
            )
        else:
            tool = known[call.name]
            surroundings.set(replace(surroundings.get(), content_limit=_travels(tool, share)))
            reply = await self.calls.run(tool, at, call.arguments)
        return _result(reply, at, content_text(reply, limit=share))

    def _show(self, state: str) -> None:
        self._progress.state = state
        show(self._progress)


def _travels(tool: ToolSpec, share: int) -> int:
    """Return how many characters of a call's result travel; the ledger keeps what is longer."""
    if tool.agent:
        return share  # the ledger does not have it as one result
    return min(share, MAX_STEP if tool.effect is Effect.READ else SHOWN_CONTENT)


def _result(reply: Reply, at: Position, content: str) -> CallResult:
    """Return what a call's reply says, and whether the ledger has it for the next turn."""
    recorded = (
        reply.status == "ok"
        and not reply.accepted
        and reply.action_key == action_key(this_run(), at)
    )
    short = len(content) <= SHORT_CONTENT and reply.changes is None
    kept = recorded and (reply.partial or not short)
    return CallResult(at, reply.status, content, reply.changes, kept, partial=reply.partial)


def _no_output(completion: Completion) -> str:
    """Say why a message has no output, in the words of a model that refused to give one."""
    if completion.finish_reason != "refusal":
        return f"no output was given ({completion.finish_reason})"
    return f"no output was given; the model refused: {scrub(completion.text, limit=300)}"


def _from_now(seconds: float) -> float:
    return workflow.time() + seconds

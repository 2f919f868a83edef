"""The turns of a run: ask the model, run the calls of its message side by side, keep the results.

What is new since the conversation's version (`fresh`) goes with the next model call, which
commits it together with the model's answer.
"""

from __future__ import annotations

from typing import Final

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from ..activities.contract.conversation import (
        Completion,
        Message,
        RunResult,
        ToolCall,
        ToolResult,
    )
    from ..activities.contract.final_result import FINAL_RESULT, OUTPUT_REQUEST
    from ..activities.contract.runs import OPEN_RUN, Opened, OpenRun
    from ..activities.contract.sizes import changes_share, result_share
    from ..activities.contract.spec import AgentSpec
    from ..activities.contract.turns import CALL_MODEL, RECORD_TURN, RUN_LOST, CallModel, TurnResult
    from ..activities.contract.wire import pack_text, to_text, unpack
    from ..activities.replies import call_reply
    from ..activities.replies.reply_content import content_text
    from ..canonical import scrub
    from ..errors import ConversationTooLarge, NodeTimeout
    from ..identity import position
    from .action_headers import Surroundings, surroundings, this_run
    from .activity_calls import (
        call_ledger,
        carry_out,
        failure,
        see_through,
        side_by_side,
        stop_here_if_cancelled,
        type_of,
    )
    from .progress import Progress
    from .run_input import RunInput, Task
    from .tool_calls import Calls, content_share

MAX_CONVERSATION: Final = 1_700_000
"""Characters of a model call's input. A payload over 2 MiB would wedge the workflow task for
ever; what results of a turn travel with is bounded well below (`MAX_TURN`)."""


class Turns:
    """Where a run is in its conversation.

    Args:
        spec: What the run keeps of its agent.
        version: Of its conversation.
        given: What it was started with.
        progress: What it shows.
    """

    def __init__(self, spec: AgentSpec, version: int, given: RunInput, progress: Progress) -> None:
        self.spec = spec
        self.step = 0
        """Model turns so far."""
        self.version = version
        self.epoch = 0
        self.fresh: list[Message] = [] if given.thread_id else [Message.user(given.prompt)]
        """What the conversation does not have yet."""
        self.unusable = 0
        """Turns in a row in which the model gave nothing usable."""
        self.problem = ""
        """What was wrong with the last one."""
        self.calls = Calls(
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
    def opened(cls, opened: Opened, given: RunInput, progress: Progress) -> Turns:
        """Begin, or go on, with what opening the run returned."""
        turns = cls(opened.spec, opened.version, given, progress)
        if given.carried is not None:
            carried = given.carried
            turns.step, turns.version, turns.epoch = carried.step, carried.version, carried.epoch
            turns.fresh, turns.unusable = list(carried.fresh), carried.unusable
        return turns

    async def take(self, task: Task) -> RunResult | None:
        """Take one turn for a task; return its result if that was the last one."""
        self._progress.steps = self.step + 1
        self._show(f"step {self.step + 1}: asking the model")
        answer = await self._ask(task)
        stop_here_if_cancelled()
        self.version, self.fresh = answer.version, []
        if answer.replied is not None:
            # By another run, perhaps at this very moment: go on from there.
            return answer.replied
        completion = answer.completion
        self.epoch = answer.epoch
        self._progress.usage = answer.usage
        result = self._result(task, answer)
        if result is None:
            await self._go_on(completion)
        self.step += 1
        return result

    def _result(self, task: Task, answer: TurnResult) -> RunResult | None:
        completion = answer.completion
        if not self.spec.ends_with(completion):
            return None
        text = completion.text if completion.output is None else completion.output
        steps = self.step - task.step + 1
        return RunResult(text, steps, completion.finish_reason, answer.usage)

    async def _go_on(self, completion: Completion) -> None:
        """Do what the model asks for, and take down what it is to read next."""
        problems = [call.problem for call in completion.calls if call.problem is not None]
        usable = len(completion.calls) > len(problems)
        self.unusable = 0 if usable else self.unusable + 1
        if not usable:
            self.problem = scrub(problems[0], limit=300) if problems else "no output was given"
        if not completion.calls:
            self.fresh.append(Message.user(OUTPUT_REQUEST))
            return
        self._show(f"step {self.step + 1}: {len(completion.calls)} calls")
        self.fresh.append(Message.tool(await self._run_calls(completion.calls)))

    async def _ask(self, task: Task) -> TurnResult:
        request = to_text(
            CallModel(
                this_run(),
                self.step,
                thread_id=self._thread_id or this_run(),
                version=self.version,
                epoch=self.epoch,
                messages=self.fresh,
                request_id=task.request_id,
                request_step=task.step,
            )
        )
        if len(request) > MAX_CONVERSATION:
            raise failure(
                ConversationTooLarge(f"turn {self.step + 1} has {len(request)} characters of input")
            )
        try:
            raw = await self._carry_out_turn(request)
        except ActivityError as err:
            if type_of(err) != RUN_LOST:
                raise
            run = self._given
            again = OpenRun(this_run(), run.agent, run.digest, run.limits, run.thread_id, self.spec)
            await call_ledger(OPEN_RUN, again, "Open the run again, which the ledger has lost")
            raw = await self._carry_out_turn(request)
        if raw is None:
            raise failure(NodeTimeout(f"turn {self.step + 1}: the model's attempts were lost"))
        return await self._recorded(raw)

    async def _carry_out_turn(self, request: str) -> RawValue | None:
        return await carry_out(
            CALL_MODEL,
            pack_text(request),
            at=f"{self.step}.model",
            limits=self.spec.model_limits,
            heartbeat_seconds=self.spec.heartbeat_seconds,
            summary=scrub(f"Ask {self.spec.model}, turn {self.step + 1}", limit=150),
        )

    async def _recorded(self, raw: RawValue) -> TurnResult:
        """Return the answer that is on record; have it recorded, if its attempt could not."""
        answer = unpack(TurnResult, raw)
        if answer.unrecorded is None:
            return answer
        recording = call_ledger(RECORD_TURN, answer.unrecorded, "Record what the model answered")
        return unpack(TurnResult, await see_through(recording))

    async def _run_calls(self, calls: list[ToolCall]) -> list[ToolResult]:
        """Run the calls of one message side by side; each settles on its own, in order."""
        surroundings.set(
            Surroundings(
                self._thread_id,
                result_share(len(calls), limit=self.spec.result_limit),
                calls_tools=True,
                thread_version=self.version,
                changes_limit=changes_share(len(calls)),
            )
        )
        return await side_by_side(self._run_call(index, call) for index, call in enumerate(calls))

    async def _run_call(self, index: int, call: ToolCall) -> ToolResult:
        at = position(self.step, index, epoch=self.epoch)
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
            reply = await self.calls.run(known[call.name], at, call.arguments)
        content = content_text(reply, limit=content_share())
        return ToolResult(at, call.id, call.name, reply.status, content, reply.changes)

    def _show(self, state: str) -> None:
        self._progress.state = state
        workflow.set_current_details(self._progress.markdown())


def _from_now(seconds: float) -> float:
    return workflow.time() + seconds

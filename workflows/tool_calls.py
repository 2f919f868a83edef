"""The tool calls of a run, of an agent's turns and of a plan's steps alike.

a sub-agent carries it out, as a child workflow
or: wait for the approval if a person must give it -> make the call
    -> the tool asked a question: wait for the answer, and make the call again
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from temporalio import workflow
from temporalio.common import RawValue

from ..activities.contract.action_header import inputs_meaning
from ..activities.contract.approvals import CHECK_APPROVAL, ApprovalState, CheckApproval
from ..activities.contract.deadlines import RunLimits
from ..activities.contract.encoding import pack_text
from ..activities.contract.questions import CHECK_QUESTION, CheckQuestion, QuestionState
from ..activities.contract.reply import CallQuestion, Reply
from ..activities.contract.spec import ToolSpec
from ..canonical import digest, dumps, parse
from ..identity import Position, action_key
from ..ledger.action_records import Effect
from ..shown import markdown_line
from .action_headers import calling, surroundings, this_run
from .activity_calls import raise_if_cancelled, run_ledger_activity
from .approval_wait import CHECK_AGAIN, CHECK_DAILY, wait_for_approval
from .finished_call import content_share, settled_reply, show_end
from .list_state import show
from .progress import CallProgress, Progress, summarise
from .sub_agent import run_sub_agent

_JUDGE_AGAIN: Final = 30
"""Seconds at most before a call is judged again whose tool has changed; at first it is one."""


class ToolCalls:
    """Makes the calls of one run.

    Args:
        heartbeat_seconds: How soon Temporal notices a dead worker.
        thread_id: The conversation that the calls belong to; None is the run's own.
        progress: Shows them to people.
        limits: The limits that the run was started with; its sub-agents get them too.
    """

    def __init__(
        self,
        *,
        heartbeat_seconds: float,
        thread_id: str | None,
        progress: Progress,
        limits: RunLimits | None = None,
    ) -> None:
        self.decided: set[Position] = set()
        """Calls that a person has decided about since the run read the ledger."""
        self.settled: set[tuple[Position, int]] = set()
        """Calls that were approved, rejected or expired when this execution came to them, with the
        generation of the approval."""
        self.answered: set[tuple[Position, int]] = set()
        """Questions of calls, by number, that a person has answered in this execution."""
        self._heartbeat_seconds = heartbeat_seconds
        self._thread_id = thread_id
        self._progress = progress
        self._limits = limits or RunLimits()

    def look(self) -> None:
        """Have each call that waits for a person look into the ledger now."""
        waits = ("awaiting_approval", "awaiting_answer")
        calls = [one for one in self._progress.calls if one.state in waits]
        self.decided |= {Position(one.position) for one in calls}

    async def run(self, tool: ToolSpec, at: Position, requested: str) -> Reply:
        """Make a call, with the arguments (JSON text) as the plan has them; return its reply."""
        name = tool.definition.name
        arguments = parse(requested)
        call = self._progress.begin(at, summarise(name, tool.summary, arguments))
        self._show()
        if tool.agent:
            reply = await self._sub_agent_reply(tool, at, requested, call)
        else:
            reply = await self._approved_reply(tool, at, dumps(arguments), call)
        show_end(call, reply)
        self._show()
        return reply

    async def _sub_agent_reply(
        self, tool: ToolSpec, at: Position, requested: str, call: CallProgress
    ) -> Reply:
        def started(workflow_id: str) -> None:
            call.workflow_id = workflow_id
            self._show()

        return await run_sub_agent(
            tool,
            at,
            requested,
            limits=self._limits,
            content_limit=content_share(),
            started=started,
        )

    async def _approved_reply(
        self, tool: ToolSpec, at: Position, arguments: str, call: CallProgress
    ) -> Reply:
        """Make a call, after a person has approved it if one must.

        The call is made with what was approved. Where a deploy has changed the tool since, so that
        it would get other arguments, that is found out before anything is called, and whether it
        may be called is judged anew.
        """
        if not tool.gated:
            return await self._reply(tool, at, pack_text(arguments), call)
        judged_again = 0
        while True:
            approval = await self._wait_for_approval(tool, at, arguments, call)
            if approval.reply is not None:
                return approval.reply
            made = approval.arguments or arguments
            inputs = surroundings.get().inputs if approval.as_requested else []
            call.summary = summarise(tool.definition.name, tool.summary, parse(made))
            with calling(judged=approval.judged, inputs=inputs, approved=approval.stored):
                reply = await self._reply(tool, at, pack_text(made), call)
            if not reply.judge_again:
                return reply
            # During a deploy the workers that judge and those that call may differ for a while.
            await workflow.sleep(min(2**judged_again, _JUDGE_AGAIN))
            judged_again += 1

    async def _wait_for_approval(
        self, tool: ToolSpec, at: Position, arguments: str, call: CallProgress
    ) -> ApprovalState:
        """Wait until a call is approved or not; no worker slot is taken meanwhile."""
        name, inputs = tool.definition.name, surroundings.get().inputs
        request = CheckApproval(
            this_run(),
            at,
            self._thread_id or this_run(),
            name,
            arguments,
            digest([parse(arguments), inputs_meaning(inputs)] if inputs else parse(arguments)),
            inputs,
        )

        def on_wait() -> None:
            call.state = "awaiting_approval"
            self._show()

        approval = await wait_for_approval(
            lambda: run_ledger_activity(
                ApprovalState, CHECK_APPROVAL, request, markdown_line(f"May {name} be called?")
            ),
            at=at,
            tool=name,
            decided=self.decided,
            on_wait=on_wait,
        )
        call.state = "running"
        self.settled.add((at, approval.generation))
        return approval

    async def _reply(
        self, tool: ToolSpec, at: Position, arguments: RawValue, call: CallProgress
    ) -> Reply:
        """Make a call until it has ended.

        A call whose tool asked a question starts again, with a fresh clock, after the answer.
        """
        while True:
            reply = await settled_reply(
                tool.definition.name,
                arguments,
                at=at,
                key=None if tool.effect is Effect.READ else action_key(this_run(), at),
                limits=tool.limits,
                heartbeat_seconds=self._heartbeat_seconds,
                summary=call.summary,
                local=tool.local,
            )
            if reply.question is None:
                return reply
            final = await self._wait_for_answer(at, reply.question, call, content_share())
            if final is not None:
                return final

    async def _wait_for_answer(
        self, at: Position, question: CallQuestion, call: CallProgress, limit: int
    ) -> Reply | None:
        """Wait until a question is answered; no worker slot is taken meanwhile.

        Returns the reply if the call has ended, or None if it starts again.
        """
        key, wait = (at, question.number), question.wait_seconds
        if wait:
            call.state, call.question = "awaiting_answer", question.message
            self._show()
        reply, look_in = None, CHECK_AGAIN
        self.decided.discard(at)  # that was before it asked
        while wait and key not in self.answered:
            with suppress(TimeoutError):
                await workflow.wait_condition(
                    lambda: key in self.answered or at in self.decided,
                    timeout=min(wait, look_in),
                    timeout_summary=f"{at} waits for an answer",
                )
            look_in = min(2 * look_in, CHECK_DAILY)
            self.decided.discard(at)
            raise_if_cancelled()
            if key in self.answered:
                break
            request = CheckQuestion(this_run(), at, question.number, limit)
            state = await run_ledger_activity(
                QuestionState, CHECK_QUESTION, request, f"Has {at} got its answer?"
            )
            reply, wait = state.reply, state.wait_seconds or 0.0
        call.state, call.question = "running", ""
        self._show()
        return reply

    def _show(self) -> None:
        show(self._progress)

"""The calls of a run: admitted, carried out under the guard, and what became of them.

What an agent's turns and a plan's steps have in common: a call at a position is approved where a
person has to, carried out, settled where the server gave it up, and recorded where its own
attempt could not.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Final

from temporalio import workflow
from temporalio.common import RawValue

with workflow.unsafe.imports_passed_through():
    from ..activities.contract.action_header import ActionHeader
    from ..activities.contract.approvals import ADMIT, Admission, Admit
    from ..activities.contract.deadlines import CallLimits, RunLimits
    from ..activities.contract.outcomes import (
        RECORD_OUTCOME,
        SETTLE_TIMED_OUT,
        SettleTimedOut,
        Unrecorded,
    )
    from ..activities.contract.questions import CHECK_QUESTION, CheckQuestion, QuestionState
    from ..activities.contract.reply import CallQuestion, Reply
    from ..activities.contract.sizes import MAX_CONTENT
    from ..activities.contract.spec import ToolSpec
    from ..activities.contract.undo import UndoStep
    from ..activities.contract.wire import pack_text, unpack
    from ..activities.replies import call_reply
    from ..canonical import digest, dumps, parse, scrub
    from ..identity import ActionKey, Position, action_key
    from ..ledger.records import Effect
    from .action_headers import Surroundings, surroundings, this_run
    from .activity_calls import call_ledger, carry_out, see_through, stop_here_if_cancelled
    from .progress import CallProgress, CallState, Progress, summarise
    from .sub_agent import run_sub_agent

_LOOK_AGAIN: Final = 3_600.0
"""Seconds after which a run that waits for a person looks whether it was decided all the same."""


class Calls:
    """Carries out the calls of one run.

    Args:
        heartbeat_seconds: How soon a dead worker is noticed.
        thread_id: The conversation that they belong to; None is the run's own.
        progress: Where they are shown.
        limits: What the run was started with; its sub-agents get them too.
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
        """Calls that a person has decided about, since the run looked."""
        self.answered: set[tuple[Position, int]] = set()
        """Questions of calls, by number, that a person has answered in this execution."""
        self._heartbeat_seconds = heartbeat_seconds
        self._thread_id = thread_id
        self._progress = progress
        self._limits = limits or RunLimits()

    async def run(self, tool: ToolSpec, at: Position, requested: str) -> Reply:
        """Carry a call out, with the arguments (JSON text) as the plan has them."""
        name = tool.definition.name
        arguments = parse(requested)
        summary = summarise(name, tool.summary, arguments)
        shown = self._progress.begin(at, summary)
        self._show()
        if tool.agent:
            reply = await self._sub_agent(tool, at, requested, shown)
        else:
            reply = await self._admitted_reply(tool, at, dumps(arguments), shown)
        shown.state = shown_state(reply)
        self._show()
        return reply

    async def _sub_agent(
        self, tool: ToolSpec, at: Position, requested: str, shown: CallProgress
    ) -> Reply:
        def started(workflow_id: str) -> None:
            shown.workflow_id = workflow_id
            self._show()

        return await run_sub_agent(
            tool,
            at,
            requested,
            limits=self._limits,
            content_limit=content_share(),
            started=started,
        )

    async def _admitted_reply(
        self, tool: ToolSpec, at: Position, arguments: str, shown: CallProgress
    ) -> Reply:
        """Carry a call out, once a person has approved it where one has to."""
        if tool.gated:
            admission = await self._admit(tool, at, arguments, shown)
            if admission.reply is not None:
                return admission.reply
            assert admission.arguments is not None, "admitted, or answered"
            arguments = admission.arguments
            shown.summary = summarise(tool.definition.name, tool.summary, parse(arguments))
        return await self._reply(tool, at, pack_text(arguments), shown)

    async def _admit(
        self, tool: ToolSpec, at: Position, arguments: str, shown: CallProgress
    ) -> Admission:
        """Wait until a call may be carried out, or may not; no worker is held meanwhile."""
        name = tool.definition.name
        request = Admit(
            this_run(),
            at,
            self._thread_id or this_run(),
            name,
            arguments,
            digest(parse(arguments)),
        )
        while True:
            stop_here_if_cancelled()
            answer = await call_ledger(ADMIT, request, scrub(f"May {name} be called?", limit=150))
            admission = unpack(Admission, answer)
            if admission.wait_seconds is None:
                shown.state = "running"
                return admission
            shown.state = "waiting"
            self._show()
            with suppress(TimeoutError):
                await workflow.wait_condition(
                    lambda: at in self.decided,
                    timeout=min(admission.wait_seconds, _LOOK_AGAIN),
                    timeout_summary=scrub(f"{at} {name} waits for a person", limit=150),
                )
            self.decided.discard(at)

    async def _reply(
        self, tool: ToolSpec, at: Position, arguments: RawValue, shown: CallProgress
    ) -> Reply:
        """Carry a call out until it has ended.

        One that asks a person is made again, with a fresh clock, when the answer is there.
        """
        while True:
            reply = await settled_reply(
                tool.definition.name,
                arguments,
                at=at,
                key=None if tool.effect is Effect.READ else action_key(this_run(), at),
                limits=tool.limits,
                heartbeat_seconds=self._heartbeat_seconds,
                summary=shown.summary,
            )
            if reply.question is None:
                return reply
            ended = await self._answered(at, reply.question, shown, content_share())
            if ended is not None:
                return ended

    async def _answered(
        self, at: Position, asked: CallQuestion, shown: CallProgress, limit: int
    ) -> Reply | None:
        """Wait until a question is answered; no worker is held meanwhile.

        Returns None where the call is to be made again, else how it has ended.
        """
        question, wait = (at, asked.number), asked.wait_seconds
        if wait:
            shown.state, shown.question = "asking", asked.message
            self._show()
        ended = None
        while wait and question not in self.answered:
            with suppress(TimeoutError):
                await workflow.wait_condition(
                    lambda: question in self.answered,
                    timeout=min(wait, _LOOK_AGAIN),
                    timeout_summary=f"{at} waits for an answer",
                )
            stop_here_if_cancelled()
            if question in self.answered:
                break
            request = CheckQuestion(this_run(), at, asked.number, limit)
            answer = await call_ledger(CHECK_QUESTION, request, f"Has {at} got its answer?")
            looked = unpack(QuestionState, answer)
            ended, wait = looked.reply, looked.wait_seconds or 0.0
        shown.state, shown.question = "running", ""
        self._show()
        return ended

    def _show(self) -> None:
        workflow.set_current_details(self._progress.markdown())


async def settled_reply(
    activity: str,
    arguments: RawValue,
    *,
    at: Position,
    key: ActionKey | None,
    limits: CallLimits,
    heartbeat_seconds: float,
    summary: str,
    afresh_at_most: int | None = None,
) -> Reply:
    """Carry a call out until it is known what to tell, recorded, or surely unknown.

    Args:
        activity: The tool.
        arguments: Its JSON.
        at: Its position.
        key: Its action; None for a READ, which has none.
        limits: Its deadlines.
        heartbeat_seconds: How soon a dead worker is noticed.
        summary: For the UI.
        afresh_at_most: How often it is started afresh where it could not be dispatched; None is
            without end.
    """
    limit = content_share()
    while True:
        stop_here_if_cancelled()
        answer = await carry_out(
            activity,
            arguments,
            at=at,
            limits=limits,
            heartbeat_seconds=heartbeat_seconds,
            summary=summary,
            afresh_at_most=afresh_at_most,
        )
        if answer is not None:
            reply = unpack(Reply, answer)
            if reply.unrecorded is None:
                return reply
            return await _record(replace(reply.unrecorded, content_limit=limit))
        if key is None:
            return call_reply.node_timed_out()
        given_up = SettleTimedOut(key, limit)
        settled = await see_through(
            call_ledger(SETTLE_TIMED_OUT, given_up, f"Settle {at}, which was given up")
        )
        reply = unpack(Reply, settled)
        if reply.action_key is not None:
            return reply


async def step_reply(
    step: UndoStep, header: ActionHeader, *, heartbeat_seconds: float, afresh_at_most: int
) -> Reply:
    """Carry out a call that is not the plan's: of an undo, or of what the relay sees to.

    Args:
        step: The call.
        header: Its own; `UndoStep.header`.
        heartbeat_seconds: How soon a dead worker is noticed.
        afresh_at_most: As for `settled_reply`.
    """
    surroundings.set(Surroundings(calls_tools=True, header=header))
    try:
        return await settled_reply(
            step.tool,
            pack_text(step.arguments),
            at=header.position,
            key=action_key(header.run_key, header.position),
            limits=step.limits,
            heartbeat_seconds=heartbeat_seconds,
            summary=step.summary,
            afresh_at_most=afresh_at_most,
        )
    finally:
        surroundings.set(Surroundings())


def content_share() -> int:
    """Return how many characters of a result travel."""
    return surroundings.get().content_limit or MAX_CONTENT


async def _record(ended: Unrecorded) -> Reply:
    """Have an outcome recorded that its attempt could not; return the reply that stands."""
    return unpack(
        Reply, await see_through(call_ledger(RECORD_OUTCOME, ended, "Record how a call ended"))
    )


def shown_state(reply: Reply) -> CallState:
    """Return how a call that has ended is shown."""
    if reply.accepted:
        return "accepted"
    if reply.status == "ok":
        return "existing" if reply.existing else "ok"
    return "happened" if reply.status == "error" and reply.effect_possible else reply.status

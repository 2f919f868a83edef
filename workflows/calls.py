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
    from ..activities import replies
    from ..activities.admission import ADMIT, Admission, Admit
    from ..activities.agent import ToolSpec
    from ..activities.replies import Reply, Unrecorded
    from ..activities.run_activities import RECORD_OUTCOME, SETTLE_TIMED_OUT, SettleTimedOut
    from ..activities.wire import pack_text, unpack
    from ..canonical import digest, dumps, parse, scrub
    from ..identity import Position, action_key
    from ..ledger.actions import Effect
    from .action_headers import surroundings, this_run
    from .carrying_out import ask_ledger, carry_out, see_through, stop_here_if_cancelled
    from .progress import CallProgress, CallState, Progress, summarise

_LOOK_AGAIN: Final = 3_600.0
"""Seconds after which a run that waits for a person looks whether it was decided all the same."""


class Calls:
    """Carries out the calls of one run.

    Args:
        heartbeat_seconds: How soon a dead worker is noticed.
        thread_id: The conversation that they belong to; None is the run's own.
        progress: Where they are shown.
    """

    def __init__(
        self, *, heartbeat_seconds: float, thread_id: str | None, progress: Progress
    ) -> None:
        self.decided: set[Position] = set()
        """Calls that a person has decided about, since the run looked."""
        self._heartbeat_seconds = heartbeat_seconds
        self._thread_id = thread_id
        self._progress = progress

    async def run(self, tool: ToolSpec, at: Position, requested: str) -> Reply:
        """Carry a call out, with the arguments (JSON text) as the plan has them."""
        name = tool.definition.name
        arguments = parse(requested)
        summary = summarise(name, tool.summary, arguments)
        shown = self._progress.begin(at, summary)
        self._show()
        reply = await self._admitted_reply(tool, at, dumps(arguments), shown)
        shown.state = _state(reply)
        self._show()
        return reply

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
        return await self._reply(tool, at, pack_text(arguments), shown.summary)

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
            answer = await ask_ledger(ADMIT, request, scrub(f"May {name} be called?", limit=150))
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
                )
            self.decided.discard(at)

    async def _reply(
        self, tool: ToolSpec, at: Position, arguments: RawValue, summary: str
    ) -> Reply:
        """Carry a call out until it is known what to tell, recorded, or surely unknown."""
        limit = content_share()
        while True:
            stop_here_if_cancelled()
            name = tool.definition.name
            answer = await carry_out(
                name,
                arguments,
                at=at,
                limits=tool.limits,
                heartbeat_seconds=self._heartbeat_seconds,
                summary=summary,
            )
            if answer is not None:
                reply = unpack(Reply, answer)
                if reply.unrecorded is None:
                    return reply
                return await _record(replace(reply.unrecorded, content_limit=limit))
            if tool.effect is Effect.READ:
                return replies.node_timed_out()
            given_up = SettleTimedOut(action_key(this_run(), at), limit)
            settled = await see_through(
                ask_ledger(SETTLE_TIMED_OUT, given_up, f"Settle {at}, which was given up")
            )
            reply = unpack(Reply, settled)
            if reply.action_key is not None:
                return reply

    def _show(self) -> None:
        workflow.set_current_details(self._progress.markdown())


def content_share() -> int:
    """Return how many characters of a result travel."""
    return surroundings.get().content_limit or replies.MAX_CONTENT


async def _record(ended: Unrecorded) -> Reply:
    """Have an outcome recorded that its attempt could not; return the reply that stands."""
    return unpack(
        Reply, await see_through(ask_ledger(RECORD_OUTCOME, ended, "Record how a call ended"))
    )


def _state(reply: Reply) -> CallState:
    if reply.status == "ok":
        return "existing" if reply.existing else "ok"
    return "happened" if reply.status == "error" and reply.effect_possible else reply.status

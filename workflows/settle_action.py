"""`SettleAction`: sees to one action that nobody else does; `Relay`: looks for such actions.

A settling makes one call, through the guard, with the retries that the guard allows; Temporal
keeps the time between them, shows it and can stop it. When it ends, its action is done, or left
to a person, or is due again later.
"""

from __future__ import annotations

from typing import Final

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from ..activities.contract.relay import (
        LOOK_AT,
        RELAY,
        SCAN,
        SETTLE_ACTION,
        SETTLED,
        SWEEP,
        Settled,
        Settling,
    )
    from ..activities.contract.undo import UndoStep
    from ..activities.contract.wire import raw_text, unpack
    from ..canonical import parse, scrub
    from ..identity import ActionKey
    from .activity_calls import call_ledger, look
    from .progress import Progress
    from .tool_calls import shown_state, step_reply


_AFRESH: Final = 20
"""How often a call is started afresh that could not be dispatched: then it is due again later,
and this workflow's history stays short, however long that lasts."""


@workflow.defn(name=SETTLE_ACTION)
class SettleAction:
    """One action's settling; see the module."""

    @workflow.run
    async def run(self, raw: RawValue) -> None:
        """See to an action; input its key, as JSON."""
        key = ActionKey(parse(raw_text(raw)))
        progress = Progress(agent="relay", prompt=key)
        try:
            failed = await self._see_to(key, progress)
        except ActivityError as err:
            failed = scrub(str(err.cause or err), limit=300)
        if failed:
            progress.state = f"failed: {failed}"
        await call_ledger(SETTLED, Settled(key, failed), "Is it settled?")
        _show(progress)

    async def _see_to(self, key: ActionKey, progress: Progress) -> str:
        """Do what is to be done; return why it could not be, or nothing."""
        while True:
            settling = unpack(Settling, await call_ledger(LOOK_AT, key, "What is to be done?"))
            progress.state = settling.why or "at work"
            _show(progress)
            if settling.wait_seconds:
                await workflow.sleep(settling.wait_seconds)
                continue
            if settling.step is None:
                return ""
            return await _call(settling.step, settling.heartbeat_seconds, progress)


async def _call(step: UndoStep, heartbeat_seconds: float, progress: Progress) -> str:
    if step.header is None:
        return step.problem
    shown = progress.begin(step.header.position, step.summary)
    _show(progress)
    reply = await step_reply(
        step, step.header, heartbeat_seconds=heartbeat_seconds, afresh_at_most=_AFRESH
    )
    shown.state = shown_state(reply)
    if reply.action_key is None:
        return scrub(str(reply.content), limit=300)  # nothing was written: it could not be called
    progress.state = "done"
    return ""


@workflow.defn(name=RELAY)
class Relay:
    """One look for actions that nobody sees to, and for runs that are gone."""

    @workflow.run
    async def run(self) -> dict[str, int]:
        """Look; return how many settlings were started, and how many runs were gone."""
        gone = await _ask(SWEEP, "Which runs are gone?")
        started = await _ask(SCAN, "What is due?")
        return {"started": started, "gone": gone}


async def _ask(activity: str, summary: str) -> int:
    return int(await look(activity, summary))


def _show(progress: Progress) -> None:
    workflow.set_current_details(progress.markdown())

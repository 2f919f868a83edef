"""The relay's workflows: `SettleAction` settles or sends one action, `Relay` looks for due ones.

A settlement makes one call, through the guard, with the retries that the guard allows. Temporal
keeps the time between them, shows the settlement and can stop it. While its action waits for a
person, it stays open, so that Temporal's list shows that somebody is needed. When it ends, its
action is done, or due again later.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError

from ..activities.contract.encoding import raw_text
from ..activities.contract.relay import (
    CLOSE_GONE_RUNS,
    FINISH_SETTLEMENT,
    LOOK_AGAIN,
    PLAN_SETTLEMENT,
    RELAY,
    SETTLE_ACTION,
    START_SETTLEMENTS,
    FinishSettlement,
    SettlementPlan,
)
from ..activities.contract.undo import UndoStep
from ..canonical import parse, scrub
from ..identity import ActionKey
from .activity_calls import (
    cancelled,
    history_is_full,
    run_ledger_activity,
    run_relay_activity,
)
from .approval_wait import CHECK_DAILY
from .finished_call import state_of, step_reply
from .list_state import ListState, list_state, show
from .progress import Progress


@workflow.defn(name=SETTLE_ACTION, sandboxed=False)
class SettleAction:
    """The settlement of one action; see the module."""

    def __init__(self) -> None:
        self._told = False
        """It is to look again."""
        self._list = ListState()

    @workflow.signal(name=LOOK_AGAIN, description="Look again: the action may be settled by now")
    def look_again(self, *_: Any) -> None:
        """Look again at an action that waited for a person. Safe to repeat."""
        self._told = True

    @workflow.run
    async def run(self, raw: RawValue) -> None:
        """Settle an action; input its key, as JSON."""
        key = ActionKey(parse(raw_text(raw)))
        progress = Progress(agent="relay", prompt=key)
        list_state.set(self._list)
        while await self._waits_for_person(key, progress) and not cancelled():
            progress.state = (
                "unknown: a person must settle it, with commitline actions settle "
                "--happened RESULT, or --did-not-happen"
            )
            self._list.stage = "unknown"
            show(progress)
            with suppress(TimeoutError):
                await workflow.wait_condition(
                    lambda: self._told,
                    timeout=CHECK_DAILY,
                    timeout_summary="It waits for a person",
                )
            if history_is_full():
                workflow.continue_as_new(raw)
        self._list.stage = "done"
        show(progress)

    async def _waits_for_person(self, key: ActionKey, progress: Progress) -> bool:
        """Do what is to be done about an action; return whether it waits for a person then."""
        self._told = False
        try:
            failed = await self._settle(key, progress)
        except ActivityError as err:
            failed = scrub(str(err.cause or err), limit=300)
        if failed:
            progress.state = f"failed: {failed}"
        finished = FinishSettlement(key, failed, cancelled=cancelled())
        return await run_ledger_activity(bool, FINISH_SETTLEMENT, finished, "Is it settled?")

    async def _settle(self, key: ActionKey, progress: Progress) -> str:
        """Do what the plan says; return why that failed, or an empty text."""
        while True:
            plan = await run_ledger_activity(
                SettlementPlan, PLAN_SETTLEMENT, key, "What is to be done?"
            )
            progress.state = plan.why or "at work"
            self._list.begin(plan.listing)
            if plan.step is not None or plan.wait_seconds:
                self._list.stage = "running"
                show(progress)
            if plan.wait_seconds:
                await workflow.sleep(plan.wait_seconds)
                continue
            if plan.step is None:
                return ""
            return await _call(plan.step, plan.heartbeat_seconds, progress)


async def _call(step: UndoStep, heartbeat_seconds: float, progress: Progress) -> str:
    """Make the call of a settlement; return why it failed, or an empty text."""
    if step.header is None:
        return step.problem
    call = progress.begin(step.header.position, step.summary)
    show(progress)
    reply = await step_reply(step, step.header, heartbeat_seconds=heartbeat_seconds)
    call.state = state_of(reply)
    if reply.action_key is None:
        return scrub(str(reply.content), limit=300)  # no row was written: it was not called
    progress.state = "done"
    return ""


@workflow.defn(name=RELAY, sandboxed=False)
class Relay:
    """One look for runs that are gone, and for actions that are due, that a person asked for."""

    @workflow.run
    async def run(self) -> dict[str, int]:
        """Look; return how many settlements were started, and how many runs were gone."""
        gone = await run_relay_activity(CLOSE_GONE_RUNS, "Which runs are gone?")
        started = await run_relay_activity(START_SETTLEMENTS, "What is due?")
        return {"started": started, "gone": gone}

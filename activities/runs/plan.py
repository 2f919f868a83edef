"""The activity that opens the run of a plan, after checking the plan against the tools served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from temporalio import activity
from temporalio.common import RawValue

from ...errors import PlanInvalid
from ...ledger import ActionLedger
from ...ledger.run_rules import check_starts_something
from ...logs import Log
from ..app.app import App
from ..app.plan_check import check_order, check_structure
from ..app.tool_spec import tool_spec
from ..contract.conversation import ToolDefinition
from ..contract.deadlines import resolve
from ..contract.encoding import from_text, pack, to_text, unpack
from ..contract.plans import OPEN_PLAN, OpenPlan, PlanInput, PlanSpec
from ..guard.ledger_write import persist
from ..runner.clock import began_at
from .run import seconds_left
from .search_attributes import are_registered
from .served import served_tool

log = Log()


class PlanActivities:
    """The activities of `PlanRun` besides those of every run."""

    def __init__(
        self, app: App, ledger: ActionLedger, *, heartbeat_seconds: float, result_limit: int
    ) -> None:
        self._app = app
        self._ledger = ledger
        self._heartbeat_seconds = heartbeat_seconds
        self._result_limit = result_limit

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers."""
        return (self.open_plan,)

    @activity.defn(name=OPEN_PLAN)
    async def open_plan(self, raw: RawValue) -> RawValue:
        """Check the plan and register its run; return what the run keeps (`PlanSpec`).

        Safe to repeat: the run keeps the spec of the first time, and a plan whose run is open
        is not checked again against newer tools.
        """
        request = unpack(OpenPlan, raw)
        info = activity.info()
        found = await persist(lambda: self._ledger.runs.get(request.run_key))
        spec = None if found is None else found.spec
        if spec is None:
            spec = to_text(await self._checked(request.plan))
        run = await persist(
            lambda: self._ledger.runs.open(
                run_key=request.run_key,
                workflow_id=info.workflow_id or "",
                agent=request.plan.name,
                input_digest=request.input_digest,
                attempt_at=began_at(),
                spec=spec,
                namespace=info.namespace,
            )
        )
        check_starts_something(run)
        assert run.spec is not None, "kept when it was opened"
        kept = from_text(PlanSpec, run.spec)
        return pack(replace(kept, deadline_seconds=seconds_left(kept.deadline_seconds, run)))

    async def _checked(self, plan: PlanInput) -> PlanSpec:
        """Return what the run keeps of a plan that can work.

        Raises:
            PlanInvalid: It cannot work with the tools that this worker serves.
            ApplicationError: This worker does not serve a tool; another one may.
        """
        names = dict.fromkeys(one.tool for stage in plan.stages for one in stage)
        try:
            check_structure(plan.stages)
            tools = {name: served_tool(self._app, name) for name in names}
            # Their validators are the application's, and may take a while.
            await asyncio.to_thread(check_order, plan.stages, tools)
        except PlanInvalid as err:
            log.warning("plan.refused", plan=plan.name[:64], reason=err.message)
            raise
        for name in sorted(set(plan.limits.tool_timeouts) - set(names)):
            log.warning("limits.tool_unknown", tool=name[:64], agent=plan.name)
        specs = [tool_spec(made, plan.limits) for made in tools.values()]
        return PlanSpec(
            # No model reads them: descriptions and schemas need not travel.
            [replace(one, definition=_undescribed(one.definition)) for one in specs],
            self._heartbeat_seconds,
            resolve("run_deadline", plan.limits.run_deadline),
            self._result_limit,
            listed=await are_registered(),
        )


def _undescribed(definition: ToolDefinition) -> ToolDefinition:
    return replace(definition, description="", parameters={})

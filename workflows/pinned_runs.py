"""Runs that end on the version of the workers that they began on.

A workflow that names a versioning behavior is refused by the server from a worker without a
version. So the names of the workflows have two definitions each, and `deployment` chooses.
"""

from __future__ import annotations

from temporalio import workflow
from temporalio.common import RawValue, VersioningBehavior

from ..activities.contract.runs import AGENT_RUN, PLAN_RUN
from .agent_run import AgentRun
from .plan_run import PlanRun


@workflow.defn(name=AGENT_RUN, sandboxed=False, versioning_behavior=VersioningBehavior.PINNED)
class PinnedAgentRun(AgentRun):
    """An `AgentRun` that stays on its version."""

    @workflow.run
    async def run(self, raw: RawValue) -> RawValue:
        """See base class."""
        return await super().run(raw)


@workflow.defn(name=PLAN_RUN, sandboxed=False, versioning_behavior=VersioningBehavior.PINNED)
class PinnedPlanRun(PlanRun):
    """A `PlanRun` that stays on its version."""

    @workflow.run
    async def run(self, raw: RawValue) -> RawValue:
        """See base class."""
        return await super().run(raw)

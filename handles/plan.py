"""`PlanHandle`: one run of a plan, for application code. `AgentClient` makes it."""

from __future__ import annotations

from dataclasses import replace

from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError

from ..canonical import parse
from ..identity import ActionKey
from ..workflows import PlanResult, StepResult
from .any_run import AnyRun
from .temporal_failure import ended_badly, refused


class PlanHandle(AnyRun):
    """One run of a plan. Made by `AgentClient.start_plan` and `AgentClient.plan`."""

    async def result(self) -> PlanResult:
        """Wait for the run's end and return what its steps returned. Safe to repeat.

        Raises:
            PlanFailed: A step ended for good without success; the message names it, and says
                what was undone and what stands.
            PlanInvalid: By the tools that are served the plan cannot work. Nothing was called.
            ToolNotServed: No worker serves one of its tools. Nothing was called.
            RunError: It ended in another way; by kind and code.
            LedgerError: It was refused by the ledger (`PlanDivergence`, …).
            RunNotFound: No run has this id.
            LedgerUnavailable: A large result could not be read.
        """
        try:
            result = await self._workflow.result(PlanResult)
        except WorkflowFailureError as err:
            raise ended_badly(self.id, err.cause) from err
        except RPCError as err:
            raise refused(self.id, err) from err
        return PlanResult([await self._whole(one) for one in result.steps])

    async def _whole(self, step: StepResult) -> StepResult:
        """Return the result of a step as the ledger has it, where it was too large to travel."""
        if not step.partial or step.action_key is None:
            return step
        kept = await (await self._connection.ledger()).result_of(ActionKey(step.action_key))
        return step if kept is None else replace(step, value=parse(kept), partial=False)

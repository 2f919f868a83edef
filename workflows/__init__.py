"""What decides: the agent's loop, the steps of a plan. It does no I/O and never imports psycopg.

The workflows run outside the SDK's sandbox, which costs processor time for each payload. The
tests replay their histories inside a sandbox, which refuses a call that would not replay.
"""

from ..activities.contract.conversation import RunResult
from ..activities.contract.plans import PlanInput, PlanResult, StepResult
from ..activities.contract.runs import AGENT_RUN, PLAN_RUN
from .action_headers import ActionHeaders
from .agent_run import AgentRun
from .plan_run import PlanRun
from .relay_workflows import Relay, SettleAction
from .run_input import RunInput
from .run_spans import RunSpans
from .undo_run import UndoRun

__all__ = [
    "AGENT_RUN",
    "PLAN_RUN",
    "ActionHeaders",
    "AgentRun",
    "PlanInput",
    "PlanResult",
    "PlanRun",
    "Relay",
    "RunInput",
    "RunResult",
    "RunSpans",
    "SettleAction",
    "StepResult",
    "UndoRun",
]

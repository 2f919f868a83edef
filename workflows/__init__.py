"""What decides: the agent's loop. It does no I/O and never imports psycopg."""

from ..activities.conversation import RunResult
from .action_headers import ActionHeaders
from .agent_run import AGENT_RUN, AgentRun
from .run_input import RunInput

__all__ = ["AGENT_RUN", "ActionHeaders", "AgentRun", "RunInput", "RunResult"]

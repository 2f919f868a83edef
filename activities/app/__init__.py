"""What an application declares: tools, agents, state, plans, and the app that has them."""

from .agent import Agent, AgentTool
from .app import App
from .never_happened import NEVER_HAPPENED, NeverHappened
from .plan import Plan, Step, result_of, step
from .state import Reducer, State
from .temporal_options import TemporalOptions
from .tool import Tool
from .tool_context import ToolContext, UndoneAction, current
from .tool_decorator import tool

__all__ = [
    "NEVER_HAPPENED",
    "Agent",
    "AgentTool",
    "App",
    "NeverHappened",
    "Plan",
    "Reducer",
    "State",
    "Step",
    "TemporalOptions",
    "Tool",
    "ToolContext",
    "UndoneAction",
    "current",
    "result_of",
    "step",
    "tool",
]

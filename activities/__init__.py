"""What acts: tools and models, one activity each, behind one guard."""

from .agent import Agent, App
from .conversation import Completion, Message, ToolCall, ToolDefinition, Usage
from .model import Model, ModelRequest
from .plan import Plan, Step, result_of, step
from .pydantic_ai_model import PydanticAIModel
from .scripted_model import ScriptedModel
from .state import Reducer, State
from .tool import NEVER_HAPPENED, NeverHappened, Tool, ToolContext, tool

__all__ = [
    "NEVER_HAPPENED",
    "Agent",
    "App",
    "Completion",
    "Message",
    "Model",
    "ModelRequest",
    "NeverHappened",
    "Plan",
    "PydanticAIModel",
    "Reducer",
    "ScriptedModel",
    "State",
    "Step",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolDefinition",
    "Usage",
    "result_of",
    "step",
    "tool",
]

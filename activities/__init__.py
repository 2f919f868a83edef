"""What acts: tools and models, one activity each, behind one guard."""

from .app.agent import Agent
from .app.app import App
from .app.plan import Plan, Step, result_of, step
from .app.state import Reducer, State
from .app.tool import NEVER_HAPPENED, NeverHappened, Tool, tool
from .app.tool_context import ToolContext
from .contract.conversation import Completion, Message, ToolCall, ToolDefinition, Usage
from .model.model import Model, ModelRequest
from .model.pydantic_ai_model import PydanticAIModel
from .model.scripted_model import ScriptedModel

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

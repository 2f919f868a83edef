"""What acts: tools and models, one activity each, behind one guard."""

from .agent import Agent, App
from .conversation import Completion, Message, ToolCall, ToolDefinition, Usage
from .model import Model, ModelRequest
from .pydantic_ai_model import PydanticAIModel
from .scripted_model import ScriptedModel
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
    "PydanticAIModel",
    "ScriptedModel",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolDefinition",
    "Usage",
    "tool",
]

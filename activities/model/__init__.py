"""A language model: what the loop needs of one, and the adapters to providers."""

from .model import Model, ModelRequest
from .pydantic_ai_model import PydanticAIModel
from .scripted_model import ScriptedModel
from .trimming_model import TrimmingModel

__all__ = ["Model", "ModelRequest", "PydanticAIModel", "ScriptedModel", "TrimmingModel"]

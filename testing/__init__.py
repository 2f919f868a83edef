"""For tests and demonstrations: scripted models, real servers, a provider that counts calls."""

from ..activities.model.scripted_model import ScriptedModel, call, say

__all__ = ["ScriptedModel", "call", "say"]

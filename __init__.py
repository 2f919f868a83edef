"""Commitline: AI agents on Temporal whose side effects survive a crash.

The handful that an application needs; the rest is in the sub-packages.
"""

from .activities import Agent, App, Model, ScriptedModel, Tool, ToolContext, tool
from .client import AgentClient, RunHandle, RunStatus
from .errors import CommitlineError, ToolRefused
from .ledger import Action, ActionLedger, Effect
from .workflows import RunResult

__all__ = [
    "Action",
    "ActionLedger",
    "Agent",
    "AgentClient",
    "App",
    "CommitlineError",
    "Effect",
    "Model",
    "RunHandle",
    "RunResult",
    "RunStatus",
    "ScriptedModel",
    "Tool",
    "ToolContext",
    "ToolRefused",
    "tool",
]

"""Commitline: AI agents on Temporal whose side effects survive a crash.

The handful that an application needs; the rest is in the sub-packages. Names are imported
when they are first used, so that `commitline.ledger` alone needs neither Temporal nor a model.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .activities import (
        NEVER_HAPPENED,
        Agent,
        App,
        Model,
        NeverHappened,
        ScriptedModel,
        Tool,
        ToolContext,
        tool,
    )
    from .client import AgentClient, RunHandle, RunStatus
    from .errors import CommitlineError, NotAttempted, StillInProgress, ToolRefused
    from .ledger import Action, ActionLedger, Effect
    from .thread_client import ThreadHandle, ThreadMessage
    from .workflows import RunResult

__all__ = [
    "NEVER_HAPPENED",
    "Action",
    "ActionLedger",
    "Agent",
    "AgentClient",
    "App",
    "CommitlineError",
    "Effect",
    "Model",
    "NeverHappened",
    "NotAttempted",
    "RunHandle",
    "RunResult",
    "RunStatus",
    "ScriptedModel",
    "StillInProgress",
    "ThreadHandle",
    "ThreadMessage",
    "Tool",
    "ToolContext",
    "ToolRefused",
    "tool",
]

_HOMES = {
    ".activities": (
        "NEVER_HAPPENED",
        "Agent",
        "App",
        "Model",
        "NeverHappened",
        "ScriptedModel",
        "Tool",
        "ToolContext",
        "tool",
    ),
    ".client": ("AgentClient", "RunHandle", "RunStatus"),
    ".errors": ("CommitlineError", "NotAttempted", "StillInProgress", "ToolRefused"),
    ".ledger": ("Action", "ActionLedger", "Effect"),
    ".thread_client": ("ThreadHandle", "ThreadMessage"),
    ".workflows": ("RunResult",),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home, __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

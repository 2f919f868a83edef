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
        Plan,
        Reducer,
        ScriptedModel,
        State,
        Tool,
        ToolContext,
        result_of,
        step,
        tool,
    )
    from .client import AgentClient
    from .errors import CommitlineError, NotAttempted, StillInProgress, ToolRefused
    from .handles.run import PlanHandle, RunHandle, RunStatus
    from .handles.thread import ThreadHandle, ThreadMessage
    from .ledger import Action, ActionLedger, Effect, intend
    from .workflows import PlanResult, RunResult

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
    "Plan",
    "PlanHandle",
    "PlanResult",
    "Reducer",
    "RunHandle",
    "RunResult",
    "RunStatus",
    "ScriptedModel",
    "State",
    "StillInProgress",
    "ThreadHandle",
    "ThreadMessage",
    "Tool",
    "ToolContext",
    "ToolRefused",
    "intend",
    "result_of",
    "step",
    "tool",
]

_HOMES = {
    ".activities": (
        "NEVER_HAPPENED",
        "Agent",
        "App",
        "Model",
        "NeverHappened",
        "Reducer",
        "Plan",
        "ScriptedModel",
        "State",
        "Tool",
        "ToolContext",
        "result_of",
        "step",
        "tool",
    ),
    ".client": ("AgentClient",),
    ".errors": ("CommitlineError", "NotAttempted", "StillInProgress", "ToolRefused"),
    ".ledger": ("Action", "ActionLedger", "Effect", "intend"),
    ".handles.run": ("PlanHandle", "RunHandle", "RunStatus"),
    ".handles.thread": ("ThreadHandle", "ThreadMessage"),
    ".workflows": ("PlanResult", "RunResult"),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home, __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

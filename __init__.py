"""Commitline: AI agents on Temporal whose side effects survive a crash.

The handful that an application needs; the rest is in the sub-packages. Names are imported
when they are first used, so that `commitline.ledger` alone needs neither Temporal nor a model.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .activities.app import (
        NEVER_HAPPENED,
        Agent,
        App,
        NeverHappened,
        Plan,
        Reducer,
        State,
        Tool,
        ToolContext,
        current,
        result_of,
        step,
        tool,
    )
    from .activities.contract.conversation import Completion, ToolCall, Usage
    from .activities.model import Model, ModelRequest, PydanticAIModel, ScriptedModel, TrimmingModel
    from .client import AgentClient
    from .errors import (
        CommitlineError,
        ContextWindowExceeded,
        ModelRejected,
        ModelUnavailable,
        NotAttempted,
        StillInProgress,
        ToolRefused,
    )
    from .handles.any_run import RunStatus
    from .handles.intervention import Intervention
    from .handles.plan import PlanHandle
    from .handles.thread import RunHandle, ThreadHandle
    from .handles.thread_message import ThreadMessage
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
    "Completion",
    "ContextWindowExceeded",
    "Effect",
    "Intervention",
    "Model",
    "ModelRejected",
    "ModelRequest",
    "ModelUnavailable",
    "NeverHappened",
    "NotAttempted",
    "Plan",
    "PlanHandle",
    "PlanResult",
    "PydanticAIModel",
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
    "ToolCall",
    "ToolContext",
    "ToolRefused",
    "TrimmingModel",
    "Usage",
    "current",
    "intend",
    "result_of",
    "step",
    "tool",
]

_HOMES = {
    "Action": ".ledger",
    "ActionLedger": ".ledger",
    "Agent": ".activities.app",
    "AgentClient": ".client",
    "App": ".activities.app",
    "CommitlineError": ".errors",
    "Completion": ".activities.contract.conversation",
    "ContextWindowExceeded": ".errors",
    "Effect": ".ledger",
    "Intervention": ".handles.intervention",
    "Model": ".activities.model",
    "ModelRejected": ".errors",
    "ModelRequest": ".activities.model",
    "ModelUnavailable": ".errors",
    "NEVER_HAPPENED": ".activities.app",
    "NeverHappened": ".activities.app",
    "NotAttempted": ".errors",
    "Plan": ".activities.app",
    "PlanHandle": ".handles.plan",
    "PlanResult": ".workflows",
    "PydanticAIModel": ".activities.model",
    "Reducer": ".activities.app",
    "RunHandle": ".handles.thread",
    "RunResult": ".workflows",
    "RunStatus": ".handles.any_run",
    "ScriptedModel": ".activities.model",
    "State": ".activities.app",
    "StillInProgress": ".errors",
    "ThreadHandle": ".handles.thread",
    "ThreadMessage": ".handles.thread_message",
    "Tool": ".activities.app",
    "ToolCall": ".activities.contract.conversation",
    "ToolContext": ".activities.app",
    "ToolRefused": ".errors",
    "TrimmingModel": ".activities.model",
    "Usage": ".activities.contract.conversation",
    "current": ".activities.app",
    "intend": ".ledger",
    "result_of": ".activities.app",
    "step": ".activities.app",
    "tool": ".activities.app",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)

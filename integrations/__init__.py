"""The ledger for agents that are written elsewhere: a plugin for the Temporal client.

plugin                 `LedgerPlugin`, and how it comes into clients and workers
effect_rule            `effect`: what repeating a call would do
rules                  which activities of a worker carry calls, and how each is read
family                 what must be known of one kind of activity; there are three kinds:
                       `own_activities` (the user's), `pydantic_ai`, `mcp`
workflow_interceptor   position and digest of each call; then `followed_call`, one call in its
                       workflow, until the agent is told of it; `gates`: what persons say to it
activity_interceptor   the guard around each call; `adopted_call`: one without a header
call_activities        what a workflow asks about its calls (`call_messages`): may it be made, what
                       became of it (`given_up_calls`); `foreign_tool`: a tool that is approved
activity_signature     the parameters of an activity; `compensation`: what an undo gives to one
own_workflows          our workflows that undo and settle, beside the framework's
coarse_activity        an activity that makes several calls
coarse_calls           `act` and `guarded`: the calls in it; `acted_call`: one as the guard sees it
parent_call            a child workflow's calls belong to its parent's run
interrupted_activities what a framework interrupts keeps its position
ruled_call             one call as the guard sees it
telling                what an agent is told of a call that has no plain result
recorded_models        the completions of models, by position
stored_payload         payloads as the ledger keeps them; `stored_result`: a value as an outcome
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .coarse_calls import act, guarded
    from .effect_rule import EffectRule, effect
    from .mcp import MCPEffects, mcp_effects
    from .plugin import LedgerPlugin
    from .telling import told_by

__all__ = [
    "EffectRule",
    "LedgerPlugin",
    "MCPEffects",
    "act",
    "effect",
    "guarded",
    "mcp_effects",
    "told_by",
]

_HOMES = {
    "EffectRule": ".effect_rule",
    "LedgerPlugin": ".plugin",
    "MCPEffects": ".mcp",
    "act": ".coarse_calls",
    "effect": ".effect_rule",
    "guarded": ".coarse_calls",
    "mcp_effects": ".mcp",
    "told_by": ".telling",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)

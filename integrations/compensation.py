"""What a compensator gets: the arguments and the result of the action that it undoes."""

from __future__ import annotations

from temporalio.converter import PayloadConverter

from ..activities.app.tool import RESULT
from ..canonical import dumps, parse
from ..ledger import Action, Effect
from .effect_rule import EffectRule
from .foreign_tool import ForeignTool
from .mcp import arguments_by_name
from .pydantic_ai import plain_result
from .rules import Rules

_ANY = EffectRule(Effect.AT_MOST_ONCE)


def undo_arguments(
    rules: Rules, compensator: ForeignTool, undone: Action, converter: PayloadConverter
) -> str:
    """Return the arguments of an undo, as JSON text; defaults are filled in.

    Raises:
        InvalidArguments: The compensator needs one that the action does not have.
    """
    function = rules.function(undone.tool)
    arguments = parse(undone.args)
    if function is not None and isinstance(arguments, list):
        given = ForeignTool(undone.tool, _ANY, function, converter).named(arguments)
    else:
        given = arguments_by_name(arguments)
    assert isinstance(given, dict), "it is by name now"
    if undone.recorded is not None and undone.recorded.kind == "ok":
        given = {**given, RESULT: plain_result(undone.recorded.value)}
    return dumps(compensator.stored(dumps(compensator.of_these(given))))

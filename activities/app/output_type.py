"""Structured output: the agent's ``output_type``, as a tool that ends the run.

The model gives its output by a call of ``final_result``, whose parameters are the type's JSON
schema; every provider can do that. The call is validated before it is recorded: a recorded
output stays valid, whatever becomes of the type. An output that does not fit gets the same reply
as a call with malformed arguments, and the model corrects it on the next turn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from ...canonical import Json, dumps, parse
from ...errors import DefinitionError
from ..contract.conversation import Completion, ToolCall
from ..contract.final_result import FINAL_RESULT
from .unwritten_fields import check_written
from .validation import explain
from .validator import validator_of

_WRAPPED: Final = "value"
"""The parameter that holds a value that is no object."""
_MAX_PROBLEM: Final = 1_900
"""Characters of what is wrong with an output."""


class OutputType:
    """An output type: its schema for the model, and the check of what the model gave.

    Args:
        kind: A pydantic model, a dataclass, a TypedDict, or any type that pydantic can check.

    Raises:
        DefinitionError: pydantic cannot check it, it has no JSON schema, or not all is written.
    """

    def __init__(self, kind: Any) -> None:
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(kind)
            schema = self._adapter.json_schema()
            self._adapter.validator = (
                validator_of(self._adapter.core_schema) or self._adapter.validator
            )
        except (PydanticSchemaGenerationError, PydanticUserError, NameError) as err:
            raise DefinitionError(f"output_type {kind!r} cannot be used: {err}") from err
        check_written(self._adapter.core_schema, f"output_type {kind!r}")
        # A tool's arguments are an object, so any other value is wrapped in one. The schema of a
        # type that holds itself is a reference, and providers want to see an object at the top.
        whole = _referred(schema)
        self._wrapped = whole.get("type") != "object"
        self.schema: dict[str, Any] = whole if not self._wrapped else _wrap(schema)
        """JSON schema of type ``object``."""

    def conclude(self, completion: Completion) -> Completion:
        """Return the completion with its valid ``output``, or with what is wrong about it."""
        alone = len(completion.calls) == 1
        output = None
        calls = []
        for call in completion.calls:
            problem = call.problem
            if call.name == FINAL_RESULT and problem is None:
                output, problem = self._checked(call, alone=alone)
            calls.append(call if problem is None else replace(call, problem=problem))
        return replace(completion, calls=calls, output=output)

    def _checked(self, call: ToolCall, *, alone: bool) -> tuple[str | None, str | None]:
        """Return the output as JSON text, or what is wrong about it. Validates once."""
        if not alone:
            return None, "call it alone, once the other calls are answered"
        try:
            return dumps(self._validated(parse(call.arguments))), None
        except Exception as err:  # a validator may raise anything
            return None, f"it does not fit: {explain(err, limit=_MAX_PROBLEM)}"

    def _validated(self, arguments: Json) -> Json:
        given = arguments.get(_WRAPPED) if self._wrapped else arguments
        # As JSON, as tools' arguments are: a strict type takes a date only from there.
        value = self._adapter.validate_json(dumps(given))
        # By its aliases and without what is computed: as the type reads it again.
        return self._adapter.dump_python(value, mode="json", by_alias=True, round_trip=True)


def _referred(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    found: dict[str, Any] = schema["$defs"][schema["$ref"].rpartition("/")[2]]
    return found | {"$defs": schema["$defs"]}


def _wrap(schema: dict[str, Any]) -> dict[str, Any]:
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    outer = {"type": "object", "properties": {_WRAPPED: inner}, "required": [_WRAPPED]}
    return outer | ({"$defs": schema["$defs"]} if "$defs" in schema else {})

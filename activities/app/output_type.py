"""Structured output: the agent's ``output_type``, as a tool that ends the run.

The model gives its output by a call of ``final_result``, whose parameters are the type's JSON
schema; every provider can do that. The call is validated before it is recorded: a recorded
output stays valid, whatever becomes of the type. One that does not fit is answered as a call
with malformed arguments is, and the model corrects it on the next turn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from ...canonical import Json, dumps, parse, scrub
from ...errors import DefinitionError
from ...ledger.codec import error_text
from ..contract.conversation import Completion, ToolCall
from ..contract.final_result import FINAL_RESULT

_WRAPPED: Final = "value"
_SHOWN_ERRORS: Final = 5


class OutputType:
    """An output type: its schema for the model, and the check of what the model gave.

    Args:
        kind: A pydantic model, a dataclass, a TypedDict, or any type that pydantic can check.

    Raises:
        DefinitionError: pydantic cannot check it, or it has no JSON schema.
    """

    def __init__(self, kind: Any) -> None:
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(kind)
            schema = self._adapter.json_schema()
        except (PydanticSchemaGenerationError, PydanticUserError, NameError) as err:
            raise DefinitionError(f"output_type {kind!r} cannot be used: {err}") from err
        # A tool's arguments are an object; what is none goes into one. A type that holds itself
        # is a reference, and providers want to read at the top that it is an object.
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
                output, problem = self._taken(call, alone=alone)
            calls.append(call if problem is None else replace(call, problem=problem))
        return replace(completion, calls=calls, output=output)

    def _taken(self, call: ToolCall, *, alone: bool) -> tuple[str | None, str | None]:
        """Return the output as JSON text, or what is wrong about it. Validates once."""
        if not alone:
            return None, "call it alone, once the other calls are answered"
        try:
            return dumps(self._validated(parse(call.arguments))), None
        except ValidationError as err:
            problem = f"it does not fit: {_explain(err)}"
        except Exception as err:  # a validator of the application may raise anything
            problem = f"it does not fit: {error_text(err)[:500]}"
        return None, scrub(problem, limit=2_000)

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


def _explain(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False, include_context=False)
    told = [f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in found]
    more = f"; and {len(told) - _SHOWN_ERRORS} more" if len(told) > _SHOWN_ERRORS else ""
    return "; ".join(told[:_SHOWN_ERRORS]) + more

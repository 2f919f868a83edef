"""The tool by which a model hands in a structured output, and what the model reads of it."""

from __future__ import annotations

from typing import Any, Final

from ...canonical import dumps
from .conversation import ToolDefinition

FINAL_RESULT: Final = "final_result"
"""The name of the tool."""

ACCEPTED: Final = dumps("accepted")
"""What the model reads of an output that fits."""

OUTPUT_REQUEST: Final = (
    f"[notice] Nothing was handed in yet. Give your final answer by calling {FINAL_RESULT}."
)


def output_tool(schema: dict[str, Any]) -> ToolDefinition:
    """Return the definition of the tool for an output of this JSON schema."""
    return ToolDefinition(FINAL_RESULT, "Hand in the final answer, which ends the task.", schema)

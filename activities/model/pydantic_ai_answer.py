"""An answer of pydantic-ai as a `Completion`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from ..contract.conversation import Completion, FinishReason, ToolCall, Usage
from .call_ids import tool_calls_of
from .provider_state import state_of

if TYPE_CHECKING:
    from pydantic_ai import messages as wire
    from pydantic_ai.models import Model as WireModel


_FINISH_REASONS: Final[dict[str | None, FinishReason]] = {
    "stop": "stop",
    "tool_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}


def completion_of(response: wire.ModelResponse, model: WireModel) -> Completion:
    """Return the completion that a response holds."""
    from pydantic_ai import messages as wire

    said = "".join(part.content for part in response.parts if isinstance(part, wire.TextPart))
    refusal = _refusal(response)
    reason = _FINISH_REASONS.get(response.finish_reason, "other")
    return Completion(
        text="\n\n".join(filter(None, (said, refusal))),
        calls=[
            ToolCall(id=part.tool_call_id, name=part.tool_name, arguments=_raw(part.args))
            for part in tool_calls_of(response)
        ],
        finish_reason=reason if refusal is None else "refusal",
        usage=Usage(
            input_tokens=response.usage.input_tokens, output_tokens=response.usage.output_tokens
        ),
        provider_state=state_of(response, model),
    )


def _refusal(response: wire.ModelResponse) -> str | None:
    """Return what a model said as it refused, which is no part of its text; None if it did not."""
    details = response.provider_details or {}
    if "refusal" in details or details.get("finish_reason") == "refusal":
        return str(details.get("refusal") or "")
    return None


def _raw(arguments: str | dict[str, Any] | None) -> str:
    # NaN is written as it is: `examine` refuses it, and the model reads why.
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {})

"""Messages as OpenTelemetry's conventions for generative AI write them in a span."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...canonical import dumps
from ..contract.conversation import Completion, Message


def input_messages(messages: Sequence[Message]) -> str:
    """Return the JSON text of ``gen_ai.input.messages``."""
    return dumps([_message(one) for one in messages])


def output_messages(completion: Completion) -> str:
    """Return the JSON text of ``gen_ai.output.messages``."""
    return dumps([_answer(completion) | {"finish_reason": completion.finish_reason}])


def _message(message: Message) -> dict[str, Any]:
    if message.completion is not None:
        return _answer(message.completion)
    if message.role == "tool":
        return {
            "role": "tool",
            "parts": [
                {"type": "tool_call_response", "id": one.call_id, "response": one.content}
                for one in message.results
            ],
        }
    return {"role": message.role, "parts": [{"type": "text", "content": message.text}]}


def _answer(completion: Completion) -> dict[str, Any]:
    calls = [
        {"type": "tool_call", "id": one.id, "name": one.name, "arguments": one.arguments}
        for one in completion.calls
    ]
    said = [{"type": "text", "content": completion.text}] if completion.text else []
    return {"role": "assistant", "parts": [*said, *calls]}

"""The ids of tool calls: each is one that the provider takes, and that no other call has.

Models reuse ``call_1`` on every turn, and send empty and duplicate ids. Mistral takes nine letters
and digits only, others 64 characters at most. So an id is kept only where this very provider gave
it. Any other id is made from the place of the call, which no later request changes: the prompt
cache stays valid.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, Final

from .sendable import PLAIN_NAME

if TYPE_CHECKING:
    from pydantic_ai import messages as wire
    from pydantic_ai.models import Model as WireModel

_MADE_HERE: Final = re.compile(r"c[0-9a-z]{8}|pyd_ai_.*", re.DOTALL)
"""Ids that no provider gave: those of `_place_id`, and those that pydantic-ai makes up.

A provider may still repeat one that it was sent. If we kept it, two calls could have one id.
"""
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


def tool_calls_of(response: wire.ModelResponse) -> list[wire.ToolCallPart]:
    """Return the calls of a response, in order."""
    from pydantic_ai import messages as wire

    return [part for part in response.parts if isinstance(part, wire.ToolCallPart)]


def set_call_ids(
    response: wire.ModelResponse, model: WireModel, *, turn: int, taken: set[str]
) -> deque[str]:
    """Give each call of a response an id of its own; return the ids in the order of the calls.

    Args:
        response: A message of the model.
        model: The model that is going to read it.
        turn: Which message of the model it is; the first is 0.
        taken: The ids of all calls before; the new ids are added.
    """
    # A FallbackModel may send this request to another one of its models: no id is kept there.
    keeps = (response.provider_name, response.provider_url) == (model.system, model.base_url)
    ids: deque[str] = deque()
    for number, part in enumerate(tool_calls_of(response)):
        if not keeps or part.tool_call_id in taken or not _is_providers(part.tool_call_id):
            part.tool_call_id = _place_id(turn, number)
            part.id = None  # the provider knows the item only by the id that it gave
        taken.add(part.tool_call_id)
        ids.append(part.tool_call_id)
    return ids


def _is_providers(call_id: str) -> bool:
    return PLAIN_NAME.fullmatch(call_id) is not None and _MADE_HERE.fullmatch(call_id) is None


def _place_id(turn: int, number: int) -> str:
    """Return nine letters and digits that no other place has: four digits for each number.

    A million calls fit, far more than a conversation can hold.
    """
    rest = turn * 36**4 + number
    digits = ""
    for _ in range(8):
        rest, digit = divmod(rest, 36)
        digits = _DIGITS[digit] + digits
    return f"c{digits}"

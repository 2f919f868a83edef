"""`TrimmingModel`: a conversation that outgrows its model's window goes on, with its newest part.

Only the request is cut. The conversation in the ledger stays whole, and another model may read all
of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ...errors import ContextWindowExceeded
from ...logs import Log
from ..contract.conversation import Completion, Message
from ..contract.encoding import to_text
from .model import Model, ModelRequest
from .pydantic_ai_model import resolve_model

log = Log()

LEFT_OUT: Final = "The beginning of this conversation was left out, because it was too long."
"""What the model reads at the end of its instructions."""


class TrimmingModel:
    """Another model, which gets the newer half of a conversation that it refuses as too long.

    It gets the half of that if need be, and so on. It is tried with the whole first, so no limit
    has to be known. Calls keep their results, and the first message is a user's. Implements
    `Model`, by the name of the other.

    Args:
        model: A model, or its name.
    """

    def __init__(self, model: str | Model) -> None:
        self._model = resolve_model(model)

    @property
    def name(self) -> str:
        """The name of the other model."""
        return self._model.name

    async def complete(self, request: ModelRequest) -> Completion:
        """Ask the other model, with less each time that it was too much. Safe to repeat.

        Raises:
            ContextWindowExceeded: The newest messages alone are too long.
            ModelUnavailable: As the other model says.
            ModelRejected: As the other model says.
        """
        instructions = f"{request.instructions}\n\n{LEFT_OUT}".strip()
        while True:
            try:
                return await self._model.complete(request)
            except ContextWindowExceeded:
                kept = newer_half(request.messages)
                if len(kept) == len(request.messages):
                    raise
                log.warning(
                    "model.conversation_trimmed",
                    model=self.name,
                    kept=len(kept),
                    left_out=len(request.messages) - len(kept),
                )
                request = replace(request, messages=kept, instructions=instructions)

    async def aclose(self) -> None:
        """Close the other model, if it can be closed."""
        aclose = getattr(self._model, "aclose", None)
        if aclose is not None:
            await aclose()


def newer_half(messages: Sequence[Message]) -> list[Message]:
    """Return the newest messages, of half of the size at most; else no more than it has to be.

    A message of the model is preceded by the newest one of the user before it: providers want a
    user's first, and it says what the calls are for.
    """
    sizes = [len(to_text(message)) for message in messages]
    left = sum(sizes)
    half = left // 2
    kept, asked = list(messages), 0
    for at, message in enumerate(messages):
        # Results go with the calls before them.
        if at > 0 and message.role != "tool":
            opening = [asked] if message.role == "assistant" else []
            kept = [*(messages[one] for one in opening), *messages[at:]]
            if left + sum(sizes[one] for one in opening) <= half:
                break
        if message.role == "user":
            asked = at
        left -= sizes[at]
    return kept

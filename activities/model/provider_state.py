"""The provider's state of a completion: kept as JSON, sent back only to the model that gave it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...canonical import Json, dumps
from ...errors import UnrepresentableValue

if TYPE_CHECKING:
    from pydantic_ai import messages as wire
    from pydantic_ai.models import Model as WireModel


_ORIGIN: Final = "commitline"
"""The key in a stored response's metadata that names the model. The metadata are never sent."""


def is_own(state: Json, model: WireModel) -> bool:
    """Whether a stored state came from this very model."""
    metadata = state.get("metadata") if isinstance(state, dict) else None
    return isinstance(metadata, dict) and metadata.get(_ORIGIN) == _origin_of(model)


def _origin_of(model: WireModel) -> Json:
    """Return what names a model. Its endpoint alone would not: a gateway serves many providers."""
    return {"model": model.model_id, "base_url": model.base_url}


def state_of(response: wire.ModelResponse, model: WireModel) -> Json:
    """Return the response as plain JSON with the name of its model; None if it has no such form.

    An answer that was paid for is kept also without its state: its text and its calls still go
    back on the next turn. Only a provider that demands its reasoning items refuses that, visibly.
    """
    from pydantic_ai import messages as wire

    try:
        (state,) = wire.ModelMessagesTypeAdapter.dump_python([response], mode="json")
        state["metadata"] = {**(state["metadata"] or {}), _ORIGIN: _origin_of(model)}
        dumps(state)
    except (ValueError, UnrepresentableValue):  # pydantic's serialization errors are ValueErrors
        return None
    return state

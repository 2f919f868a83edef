"""The outcome of a foreign activity that returned a value."""

from __future__ import annotations

from typing import Any

from temporalio.converter import PayloadConverter

from ..canonical import dumps
from ..ledger import Outcome
from ..ledger.result_codec import error_text
from .stored_payload import kept_value


def outcome_of(tool: str, value: Any, converter: PayloadConverter) -> Outcome:
    """Return what is recorded of a value that a tool returned; never raises.

    A value that cannot be kept is an error with an effect: the call happened.
    """
    try:
        return Outcome.ok(dumps(kept_value(value, converter)))
    except Exception as err:
        return not_kept(tool, value, error_text(err)[:200])


def not_kept(tool: str, value: Any, why: str) -> Outcome:
    """Return what is recorded of a call that happened, and whose result cannot be kept."""
    return Outcome.error(
        kind="UnrepresentableResult",
        message=(
            f"{tool} ran, and its effect stands, but its result of type "
            f"{type(value).__qualname__} could not be kept ({why})"
        ),
        effect_possible=True,
    )

"""The validator that reads arguments and outputs: pydantic's, with two rules of ours."""

from __future__ import annotations

from typing import Any

from pydantic_core import SchemaValidator

from .computed_fields import computed_left_out
from .merging_keys import keys_checked


def validator_of(schema: Any) -> SchemaValidator | None:
    """Return a validator that refuses keys which become one, and leaves computed fields out.

    None where there is neither, and so the one that pydantic made will do.
    """
    ours = keys_checked(computed_left_out(schema))
    # A nested model would bring the validator that it has already.
    return None if ours == schema else SchemaValidator(ours, _use_prebuilt=False)

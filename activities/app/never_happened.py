"""`NEVER_HAPPENED`: the answer of a lookup whose downstream system knows nothing of the call."""

from __future__ import annotations

from enum import Enum
from typing import Final


class NeverHappened(Enum):
    """What a lookup returns to say that the downstream system knows nothing of the call."""

    NEVER_HAPPENED = "never happened"


NEVER_HAPPENED: Final = NeverHappened.NEVER_HAPPENED

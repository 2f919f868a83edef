"""Sizes: how many characters of results and state travel through Temporal."""

from __future__ import annotations

from typing import Final

MAX_CONTENT: Final = 256 * 1024
"""Characters of a result that travel, by default (a setting of the worker). The ledger keeps the
whole."""
MAX_TURN: Final = 768 * 1024
"""Characters that all results of one message have together as they travel. They are input of the
next model turn, and Temporal wedges a workflow task over 2 MiB."""

MAX_STEP: Final = 16 * 1024
"""Characters of what a step of a plan returns, and of the results that it is given, as they travel.
The ledger has more. A plan may have 500 steps, and Temporal ends a run over 50 MB of history."""
STEP_CONTENT: Final = 2_000
"""Characters of the result of a call that no run planned (of an undo, or of the relay)."""


def result_share(calls: int, *, limit: int = MAX_CONTENT) -> int:
    """Return how many characters of each result travel, of a message with so many calls."""
    return min(limit, MAX_TURN // max(calls, 1))


MAX_STATE: Final = 64 * 1024
"""Characters of JSON of a conversation's state, and of the changes of one call."""
MAX_TURN_CHANGES: Final = 192 * 1024
"""Characters of the changes of all calls of one message, which travel with their results."""


def changes_share(calls: int) -> int:
    """Return how many characters the changes of each call may have, of a message with so many."""
    return min(MAX_STATE, MAX_TURN_CHANGES // max(calls, 1))

"""How many characters of results and state travel through Temporal."""

from __future__ import annotations

from typing import Final

MAX_CONTENT: Final = 256 * 1024
"""Characters of a result that travel, unless a worker is set otherwise. The whole stays in the
ledger."""
MAX_TURN: Final = 768 * 1024
"""Characters that the results of one message's calls travel with, together. They are input of
the next model call, and Temporal wedges a workflow task over 2 MiB."""


def result_share(calls: int, *, limit: int = MAX_CONTENT) -> int:
    """Return how much of each result travels, where a message has so many calls."""
    return min(limit, MAX_TURN // max(calls, 1))


MAX_STATE: Final = 64 * 1024
"""Characters of JSON of a conversation's state, and of one call's changes."""
MAX_TURN_CHANGES: Final = 192 * 1024
"""Characters of the changes of all calls of one message, which travel with their results."""


def changes_share(calls: int) -> int:
    """Return how large the changes of each call may be, where a message has so many."""
    return min(MAX_STATE, MAX_TURN_CHANGES // max(calls, 1))

"""Sizes: how many characters of results and state travel through Temporal."""

from __future__ import annotations

from typing import Final

MAX_CONTENT: Final = 256 * 1024
"""Characters of a result that the model reads, by default (a setting of the worker). The ledger
keeps the whole."""
MAX_TURN: Final = 768 * 1024
"""Characters that the model reads of all results of one message together. They may travel with the
next model turn, and Temporal wedges a workflow task over 2 MiB."""

MAX_STEP: Final = 16 * 1024
"""Characters of what a step of a plan returns, and of the results that it is given, as they travel;
and of what an agent's READ returns. The ledger has more. A plan may have 500 steps, and Temporal
ends a run over 50 MB of history."""
SHOWN_CONTENT: Final = 2_000
"""Characters that travel of a result which the ledger has and no workflow reads, so that people see
it in Temporal's UI: of an agent's action, of an undo, of the relay."""
SHORT_CONTENT: Final = 200
"""Characters of an action's result that go along with the next model turn; a longer one the turn
gets from the ledger."""


def result_share(calls: int, *, limit: int = MAX_CONTENT) -> int:
    """Return how many characters the model reads of each result of a message with so many calls."""
    return min(limit, MAX_TURN // max(calls, 1))


MAX_STATE: Final = 64 * 1024
"""Characters of JSON of a conversation's state, and of the changes of one call."""
MAX_TURN_CHANGES: Final = 192 * 1024
"""Characters of the changes of all calls of one message, which travel with their results."""


def changes_share(calls: int) -> int:
    """Return how many characters the changes of each call may have, of a message with so many."""
    return min(MAX_STATE, MAX_TURN_CHANGES // max(calls, 1))

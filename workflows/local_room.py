"""How much local activities may have returned before something goes by way of the server.

What they return reaches the server with the end of their workflow task, all of it in one message,
which may not be larger than four megabytes. A workflow task of local activities alone has no end
but its time-out. So once they have returned much, the next call is one of the server's.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

_MOST: Final = 512 * 1024
"""Characters. The results of one message, or a completion, come on top: a megabyte at most; and so
does the input of the next model turn."""
_EACH: Final = 1_000
"""What the server keeps of a local activity beside its result."""


class LocalRoom:
    """Counts what the local activities of one execution have returned. Equal on a replay."""

    def __init__(self) -> None:
        self._taken = 0

    @property
    def is_left(self) -> bool:
        """Whether another local activity may begin."""
        return self._taken < _MOST

    def take(self, characters: int) -> None:
        """Count a local activity that has ended."""
        self._taken += characters + _EACH

    def clear(self) -> None:
        """Begin anew: an activity of the server's has ended, and the task before it with it."""
        self._taken = 0


local_room: ContextVar[LocalRoom | None] = ContextVar("commitline_local_room", default=None)
"""Of the run whose calls may be local activities; None in every other workflow."""

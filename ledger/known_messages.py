"""The messages of conversations that this process has read or written: it need not read them again.

A conversation changes only by a commit, which counts its version on; a fork is a commit, too. So
messages are kept by the version that they make up. After a failover that lost a commit, another one
may have the same version: what is kept counts only if it was committed at the same moment.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from .thread_records import StoredMessage

MAX_BYTES: Final = 64 * 1024 * 1024
"""Of one `KnownMessages`, roughly; the conversations that were used last stay."""
_BESIDE_TEXT: Final = 600
"""Bytes of a message beside its text."""


class KnownMessages:
    """The messages of the latest conversations.

    Args:
        max_bytes: At most so much is kept.
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[str, tuple[int, Sequence[StoredMessage]]] = OrderedDict()
        """By conversation: the bytes, and the messages."""

    def get(
        self, thread_id: str, *, version: int, committed_at: datetime | None
    ) -> Sequence[StoredMessage] | None:
        """Return the messages of a conversation at a version; None if they are not known.

        Args:
            thread_id: The conversation.
            version: Its version in the ledger.
            committed_at: When the messages of that version were committed; None if it has none.
        """
        if version == 0:
            return ()
        _, messages = self._kept.get(thread_id, (0, ()))
        if not messages or committed_at is None:
            return None
        last = messages[-1]
        if (last.version, last.created_at) != (version, committed_at):
            return None
        self._kept.move_to_end(thread_id)
        return messages

    def keep(self, thread_id: str, messages: Sequence[StoredMessage]) -> None:
        """Keep a conversation: all of its messages up to the version of the last one."""
        self._drop(thread_id)
        size = sum(len(one.message) + _BESIDE_TEXT for one in messages)
        if not messages or size > self._max_bytes:
            return
        self._kept[thread_id] = (size, messages)
        self._bytes += size
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, thread_id: str) -> None:
        size, _ = self._kept.pop(thread_id, (0, ()))
        self._bytes -= size

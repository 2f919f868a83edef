"""How much of conversations stays in memory."""

from __future__ import annotations

from collections.abc import Sequence

from commitline.identity import RunKey
from commitline.ledger import StoredMessage
from commitline.ledger.known_messages import KnownMessages
from commitline.tests.builders import NOON

MESSAGE = StoredMessage(1, 0, "user", '"' + "x" * 1_398 + '"', RunKey("a/1"), 0, 0, None, NOON)
"""About 2,000 bytes with what is beside its text."""


def known(kept: KnownMessages, thread_id: str) -> Sequence[StoredMessage] | None:
    return kept.get(thread_id, version=1, committed_at=NOON)


def test_the_conversations_that_were_used_last_stay() -> None:
    kept = KnownMessages(max_bytes=5_000)
    kept.keep("a", [MESSAGE])
    kept.keep("b", [MESSAGE])
    assert known(kept, "a") == [MESSAGE]

    kept.keep("c", [MESSAGE])

    assert known(kept, "b") is None
    assert known(kept, "a") == known(kept, "c") == [MESSAGE]


def test_a_conversation_that_grows_is_counted_once_and_one_that_is_too_large_is_not_kept() -> None:
    kept = KnownMessages(max_bytes=5_000)
    for _ in range(10):
        kept.keep("a", [MESSAGE])
    kept.keep("b", [MESSAGE])
    assert known(kept, "a") == known(kept, "b") == [MESSAGE]

    kept.keep("b", [MESSAGE, MESSAGE, MESSAGE])

    assert known(kept, "a") == [MESSAGE]
    assert known(kept, "b") is None


def test_a_version_counts_only_with_the_moment_of_its_commit() -> None:
    kept = KnownMessages()
    kept.keep("a", [MESSAGE])

    assert kept.get("a", version=1, committed_at=None) is None
    assert kept.get("a", version=2, committed_at=NOON) is None
    assert kept.get("a", version=1, committed_at=NOON.replace(hour=13)) is None
    assert kept.get("a", version=0, committed_at=None) == ()

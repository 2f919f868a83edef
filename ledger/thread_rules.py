"""The rules of conversations: which may be written, and which turns a fork may take back.

Pure functions over rows.
"""

from __future__ import annotations

from ..errors import StaleThread, ThreadDeleted, ThreadNotFound
from .run_records import Run
from .run_rules import check_not_stopped
from .thread_records import Thread, Turn


def check_alive(thread_id: str, thread: Thread | None) -> Thread:
    """Return the conversation.

    Raises:
        ThreadNotFound: There is none.
        ThreadDeleted: It was deleted.
    """
    if thread is None:
        raise ThreadNotFound(f"no thread {thread_id!r}")
    if thread.deleted_at is not None:
        raise ThreadDeleted(f"the thread {thread_id!r} was deleted at {thread.deleted_at}")
    return thread


def check_goes_back(run: Run, thread: Thread) -> None:
    """Refuse to take back what another run has built on.

    Raises:
        StaleThread: Another run has written the conversation since.
        ResetRefused: The run was stopped.
    """
    if thread.written_by not in (None, run.run_key):
        raise StaleThread(
            f"{thread.written_by} has written the thread {thread.thread_id!r} since {run.run_key}"
        )
    check_not_stopped(run)


def stale(turn: Turn, thread: Thread) -> StaleThread:
    """Return the error of a turn that was not committed, because another commit came between."""
    return StaleThread(
        f"the thread {turn.thread_id!r} is at version {thread.version}, by "
        f"{thread.written_by}; turn {turn.step} of {turn.run_key} started from {turn.version}"
    )

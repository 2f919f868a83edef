"""Forking a run: from a model turn on it goes another way."""

from __future__ import annotations

from ..errors import ResetRefused, StaleThread
from ..identity import RunKey, is_from
from .open_turns import close_actions, close_sub_runs
from .run_records import Run
from .run_rules import called_at
from .statements import Connection, execute, fetch, fetch_all, fetch_one, fetch_row, fetch_rows
from .thread_records import StoredMessage, Thread
from .thread_rules import check_alive, check_goes_back


async def fork_run(connection: Connection, run_key: RunKey, step: int) -> int:
    """Open a run's next epoch, in the caller's transaction. See `ThreadLedger.fork`."""
    seen = await fetch(connection, Run, "get_run", run_key=run_key)
    if seen is None or seen.thread_id is None:
        raise ResetRefused(f"{run_key} has no conversation in the ledger that could be forked")
    found = await fetch(connection, Thread, "lock_thread", thread_id=seen.thread_id)
    thread = check_alive(seen.thread_id, found)
    # Read again: another fork, or a stop, may have come between.
    run = await fetch_one(connection, Run, "lock_run_to_fork", run_key=run_key)
    check_goes_back(run, thread)
    turn = await fetch(connection, StoredMessage, "get_turn", run_key=run_key, step=step)
    if turn is None:
        if run.fork_step == step:
            return run.epoch  # forked before, and not gone on yet
        raise ResetRefused(f"{run_key} has no model turn {step} on record")
    return await _take_back(connection, run_key, step, thread.thread_id, turn.version)


async def _take_back(
    connection: Connection, run_key: RunKey, step: int, thread_id: str, version: int
) -> int:
    """Take back the conversation from a version on, and close what the run did from there."""
    back = {"thread_id": thread_id, "version": version}
    other = await fetch_row(connection, "written_by_others", run_key=run_key, **back)
    if other is not None:
        raise StaleThread(
            f"{other['run_key']} has written the thread {thread_id!r} since turn {step}"
        )
    await execute(connection, "reopen_requests", **back)
    await execute(connection, "supersede", **back)
    await execute(connection, "supersede_states", **back)
    await execute(connection, "fork_thread", thread_id=thread_id, run_key=run_key, step=step)
    forked = await fetch_row(connection, "fork_run", run_key=run_key, step=step)
    assert forked is not None, "the run is locked"
    rows = await fetch_rows(connection, "list_positions", run_key=run_key)
    later = [row["position"] for row in rows if is_from(row["position"], step)]
    below = await fetch_all(connection, Run, "runs_below", run_key=run_key)
    called = [at for run in below if (at := called_at(run, run_key)) and is_from(at, step)]
    reason = f"{run_key} was taken back to before it, and goes another way"
    await close_sub_runs(connection, run_key, called, reason=reason)
    await close_actions(connection, run_key, later)
    await _withdraw(connection, run_key, step)
    # Last: it locks actions whose domain keys are not locked here.
    await execute(connection, "reset_notices", **back)
    return int(forked["epoch"])


async def _withdraw(connection: Connection, run_key: RunKey, step: int) -> None:
    """Take back what the calls from there on ask of people; the run is locked.

    A decision or an answer locks the run first: it comes before this, or is refused.
    """
    rows = await fetch_rows(connection, "list_asked", run_key=run_key)
    asked = [row["position"] for row in rows if is_from(row["position"], step)]
    for query in ("withdraw_approvals", "withdraw_questions"):
        await execute(connection, query, run_key=run_key, positions=asked)

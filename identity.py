"""The names of runs, of the calls in them, and of the workflows that carry them out.

Names are pure functions of where a call stands: never random, never from a clock, never from
the model. A name that came out of the row, a clock or a random source would differ after a
lost commit, and the same charge would be made again under another name. `idempotency_key` has
the names that a downstream system is given.

    run key          support-4821/0198c1f0-…            workflow id, first execution
    position         2.0                                model turn 2, call 0 of its message
                     e1-2.0                             the same after a fork: the first epoch
    action key       support-4821/0198c1f0-…:2.0        the primary key of agent_actions
    a sub-agent's    support-4821/0198c1f0-…/2.0        run key: its parent's, and the position
                     support-4821/0198c1f0-…/2.0:0.1    at which it was called
"""

from __future__ import annotations

import re
from typing import Final, NewType

from .errors import InvalidRunId

RunKey = NewType("RunKey", str)
ActionKey = NewType("ActionKey", str)
Position = NewType("Position", str)

MAX_RUN_ID: Final = 180
"""Characters of a workflow id. Temporal allows 1,000; keys made of it must stay readable."""


MAX_DEPTH: Final = 8
"""Sub-agents below one another; a workflow id, which grows with each, may have 1,000 characters."""

THREAD_PREFIX: Final = "thread:"
"""How the workflow id of a named conversation begins."""

OUTBOX: Final = "outbox"
"""How the run key of an intended action begins: ``outbox/<idempotency key>``."""

PLUGIN_MARK: Final = " +commitline"
"""How the identity of a worker with `LedgerPlugin` ends."""

_RESERVED: Final = (f"{OUTBOX}/", "settle:", "undo:")
"""How reserved ids begin: those of the outbox and of the workflows that settle and undo."""

UNDO_PREFIX: Final = "undo-"
"""How the position of an undo begins: ``undo-2.0``."""

_POSITION = re.compile(r"(?:e(?P<epoch>[0-9]{1,9})-)?(?P<step>[0-9]{1,9})\.[0-9]{1,9}")
_RUN_UUID = re.compile(r"[0-9A-Za-z-]{1,64}")
_SUB_WORKFLOW = re.compile(r".+/(?:e[0-9]{1,9}-)?[0-9]{1,9}\.[0-9]{1,9}/[0-9A-Za-z-]{1,64}")


def check_workflow_id(workflow_id: str) -> str:
    """Return the id if a run may have it.

    Raises:
        InvalidRunId: It is blank, not ASCII, holds control characters, or is over 180 long.
    """
    if not workflow_id.strip():
        raise InvalidRunId("a run's id must not be empty")
    if len(workflow_id) > MAX_RUN_ID:
        raise InvalidRunId(f"a run's id has {len(workflow_id)} characters, over {MAX_RUN_ID}")
    if not (workflow_id.isascii() and workflow_id.isprintable()):
        raise InvalidRunId(f"a run's id holds characters that it may not: {workflow_id!a}")
    return workflow_id


def check_run_id(workflow_id: str) -> str:
    """Return the id if a new run may be started under it.

    Raises:
        InvalidRunId: See `check_workflow_id`; or the id belongs to a conversation or to
            Commitline itself.
    """
    if check_workflow_id(workflow_id).startswith(THREAD_PREFIX):
        raise InvalidRunId(
            f"{workflow_id!r} is the run of a conversation",
            remedy="Say something in it: `AgentClient.start(…, thread=…)`, or in a terminal "
            "`commitline threads send`.",
        )
    if workflow_id == OUTBOX or workflow_id.startswith(_RESERVED):
        raise InvalidRunId(
            f"{workflow_id!r} is reserved for Commitline, as {OUTBOX!r} and whatever begins with "
            + ", ".join(map(repr, _RESERVED)),
            remedy="Choose another id.",
        )
    return workflow_id


def run_key(workflow_id: str, first_execution_run_id: str) -> RunKey:
    """Name a run: stable over replay, retry, reset and continue-as-new, fresh for every new run.

    The last ``/`` separates the two, since an execution's id holds none; so no two pairs
    share a key.

    Raises:
        InvalidRunId: A run cannot have this id, or the outbox has it.
    """
    if check_workflow_id(workflow_id) == OUTBOX or workflow_id.startswith(f"{OUTBOX}/"):
        raise InvalidRunId(f"{workflow_id!r} is reserved for the outbox")
    if not _RUN_UUID.fullmatch(first_execution_run_id):
        raise InvalidRunId(f"not the id of an execution: {first_execution_run_id!a}")
    return RunKey(f"{workflow_id}/{first_execution_run_id}")


def listed_run_key(workflow_id: str, first_execution_run_id: str) -> RunKey:
    """Name what Temporal lists as a run, also under an id that no run may have.

    Anybody may start a workflow of ours. One odd id must not break a look at all of them; the
    ledger has no run of this name.
    """
    return RunKey(f"{workflow_id}/{first_execution_run_id}")


def first_execution(run: RunKey) -> str | None:
    """Return the id of a run's first execution; None of a sub-agent's run, and of the outbox's."""
    last = run.rpartition("/")[2]
    known = _RUN_UUID.fullmatch(last) and not run.startswith(f"{OUTBOX}/")
    return last if known else None


def sub_run_key(parent: RunKey, at: Position) -> RunKey:
    """Name the run of a sub-agent by its parent and by the position of the call.

    The key is the same for every workflow that carries the call out, so a call that a reset
    parent makes again is a replay. The key ends in a position, which holds a dot. The key of
    every other run ends in an execution's id, which holds none. So no two runs share a key.
    """
    return RunKey(f"{parent}/{at}")


def parent_of(run: RunKey) -> RunKey | None:
    """Return the run that called this sub-agent's run; None for a run that a caller started."""
    parent, _, last = run.rpartition("/")
    if run.startswith(f"{OUTBOX}/"):
        return None  # the application chose the key, which may look like a sub-agent's
    return RunKey(parent) if "/" in parent and _POSITION.fullmatch(last) else None


def position_in_parent(run: RunKey) -> Position | None:
    """Return where a sub-agent's run was called; None for a run that a caller started."""
    return None if parent_of(run) is None else Position(run.rpartition("/")[2])


def position_below(upper: RunKey, run: RunKey) -> Position | None:
    """Return the call of an upper run below which this run lies; None if it does not."""
    while (parent := parent_of(run)) is not None:
        if parent == upper:
            return position_in_parent(run)
        run = parent
    return None


def depth_of(run: RunKey) -> int:
    """Return how many runs lie above; 0 for a run that a caller started."""
    parent = parent_of(run)
    return 0 if parent is None else 1 + depth_of(parent)


def is_of_outbox(run: RunKey) -> bool:
    """Whether an application committed this run's one action, and no workflow did."""
    return run.startswith(f"{OUTBOX}/")


def started_run_of(run: RunKey) -> RunKey:
    """Return the run that a caller started: the run itself, or the topmost above it."""
    parent = parent_of(run)
    return run if parent is None else started_run_of(parent)


def started_workflow_of(run: RunKey) -> str:
    """Return the id of the workflow that a caller started, for a run or for one below it."""
    return started_run_of(run).rpartition("/")[0]


def within_run(run: RunKey, at: Position) -> str:
    """Return where a call stands, seen from the run that a caller started: ``2.0/0.1``."""
    return f"{run}/{at}".removeprefix(f"{started_run_of(run)}/")


def action_key_within(run: RunKey, within: str) -> ActionKey:
    """Name an action by a run and where in it the call stands, as `within_run` says."""
    path, _, at = within.rpartition("/")
    return action_key(RunKey(f"{run}/{path}") if path else run, Position(at))


def sub_workflow(parent_workflow: str, at: Position, parent_execution: str) -> str:
    """Return the id of a sub-agent's workflow: another one for each execution of its parent."""
    return f"{parent_workflow}/{at}/{parent_execution}"


def check_any_workflow_id(workflow_id: str) -> str:
    """Return the id if a run may have it, whether a caller started the run or an agent.

    Raises:
        InvalidRunId: See `check_workflow_id`; a sub-agent's id may be over 180 long.
    """
    if _SUB_WORKFLOW.fullmatch(workflow_id) and workflow_id.isprintable():
        return workflow_id
    return check_workflow_id(workflow_id)


def position(step: int, call: int, *, epoch: int = 0) -> Position:
    """Name a call: the model turn, from 0, and its index in that turn's message, from 0.

    After a fork, calls have positions of their own, such as ``e1-2.0``: what was done before
    the fork keeps its position.
    """
    return Position(f"e{epoch}-{step}.{call}" if epoch else f"{step}.{call}")


def epoch_of(at: Position) -> int:
    """Return the epoch of a position; 0 if `position` did not make it."""
    found = _POSITION.fullmatch(at)
    return int(found["epoch"] or 0) if found else 0


def step_of(at: Position) -> int | None:
    """Return the model turn of a position; None if `position` did not make it."""
    found = _POSITION.fullmatch(at)
    return int(found["step"]) if found else None


def undo_position(at: Position, number: int) -> Position:
    """Name an undo of a call. There is a second one if the first had no effect."""
    return Position(f"{UNDO_PREFIX}{at}" + (f"~{number}" if number > 1 else ""))


def is_from(at: Position, step: int) -> bool:
    """Whether a position lies at this model turn or after it, in any epoch."""
    found = step_of(at)
    return found is not None and found >= step


def check_thread_id(thread_id: str) -> str:
    """Return the id if a conversation may have it: its runs are the workflow ``thread:<id>``.

    Raises:
        InvalidRunId: It is blank, not ASCII, holds control characters, or is over 173 long.
    """
    if not thread_id.strip():
        raise InvalidRunId("a thread's id must not be empty")
    check_workflow_id(thread_workflow(thread_id))
    return thread_id


def check_request_id(request_id: str) -> str:
    """Return the id if a request to a conversation may have it.

    Raises:
        InvalidRunId: It is blank, not ASCII, holds control characters, or is over 180 long.
    """
    return check_workflow_id(request_id)


def thread_workflow(thread_id: str) -> str:
    """Return the id of the workflow that carries out a conversation's runs, one at a time."""
    return f"{THREAD_PREFIX}{thread_id}"


def undo_workflow(run: RunKey) -> str:
    """Return the id of the workflow that undoes an ended run: one at a time."""
    return f"undo:{run}"


def undone_run(workflow_id: str) -> RunKey | None:
    """Return the run that a workflow undoes; None if it is not one that `undo_workflow` names."""
    prefix, _, run = workflow_id.partition(":")
    return RunKey(run) if prefix == "undo" and run else None


def settle_workflow(key: ActionKey) -> str:
    """Return the id of the workflow that settles an action whose run is gone: one at a time."""
    return f"settle:{key}"


def action_key(run: RunKey, at: Position) -> ActionKey:
    """Name an action. ``%`` and ``:`` in the position are escaped, so the last ``:`` separates."""
    return ActionKey(f"{run}:{at.replace('%', '%25').replace(':', '%3A')}")


def split_action_key(key: ActionKey) -> tuple[RunKey, Position]:
    """Return the run and the position that `action_key` named."""
    run, _, at = key.rpartition(":")
    return RunKey(run), Position(at.replace("%3A", ":").replace("%25", "%"))

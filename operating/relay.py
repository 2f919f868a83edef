"""The relay, for an operator: what it has to do, when it looked, and having it look now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from temporalio.client import Client, WorkflowExecution
from temporalio.common import WorkflowIDConflictPolicy

from ..activities.contract.relay import RELAY, SETTLE_ACTION
from ..activities.contract.undo import UNDO_RUN
from ..activities.runs.left_workflows import is_polled
from ..activities.runs.relay_triggers import relay_workflow
from ..client import AgentClient
from ..errors import ConfigurationError
from ..ledger import LostRun, QueuedAction
from ..shown import one_line
from ..workflows import AGENT_RUN, PLAN_RUN
from .console import ERR, OUT, age, line
from .listing import Listing

_WHY: Final = {
    "send": "to be sent",
    "lookup": "its run is lost",
    "undo": "happened after the undo",
}


_LOOKED_AT: Final = 1_000
"""How many running workflows are looked at, the newest, to find those that no worker takes up."""
_LONGEST_LOOK: Final = timedelta(minutes=10)
"""The time-out of a look that a person asked for: one that no worker takes up ends by it."""


@dataclass(frozen=True)
class LeftQueue:
    """A task queue that no worker polls, and on which workflows wait."""

    task_queue: str
    """Its name."""
    workflows: int
    """How many wait there."""
    first: str
    """The id of the workflow that has waited longest."""
    moving: int
    """How many of them are undos or settlements: the relay moves those to a queue of its own."""


@dataclass(frozen=True)
class RelayReport:
    """What the relay has to do, and when it looked last."""

    task_queue: str
    """Whose workers take turns."""
    state: Literal["on", "away", "missing"]
    """``away``: no worker polls the task queue. ``missing``: none has looked yet."""
    last: datetime | None
    """When they looked last for runs that are lost, if they have."""
    waiting: Sequence[QueuedAction]
    """The actions in its queue, and those that it left to a person."""
    gone: Sequence[LostRun]
    """The runs that ended without closing themselves, with actions that stand or are unknown."""
    left: Sequence[LeftQueue]
    """The task queues on which workflows wait for a worker."""


async def report(client: AgentClient, *, limit: int) -> RelayReport:
    """Return what the relay has to do. Safe to repeat; it only reads."""
    queue, temporal = client.task_queue, client.temporal
    ledger = await client.ledger()
    sweep = await ledger.relay.sweeps.last(namespace=temporal.namespace, task_queue=queue)
    state: Literal["on", "away", "missing"] = "missing"
    if sweep is not None:
        state = "on" if await is_polled(temporal, queue) else "away"
    return RelayReport(
        queue,
        state,
        None if sweep is None else sweep.began_at,
        await ledger.relay.list(limit=limit),
        await ledger.relay.list_lost(limit=limit),
        await _left_queues(temporal),
    )


async def _left_queues(temporal: Client) -> Sequence[LeftQueue]:
    """Return the task queues that no worker polls, and on which workflows of ours wait."""
    kinds = ", ".join(f"'{kind}'" for kind in (AGENT_RUN, PLAN_RUN, UNDO_RUN, SETTLE_ACTION))
    query = f"WorkflowType IN ({kinds}) AND ExecutionStatus = 'Running'"
    waiting: dict[str, list[WorkflowExecution]] = {}
    async for one in temporal.list_workflows(query, limit=_LOOKED_AT):
        waiting.setdefault(one.task_queue, []).append(one)
    return [
        _left_queue(queue, found)
        for queue, found in sorted(waiting.items())
        if not await is_polled(temporal, queue)
    ]


def _left_queue(task_queue: str, found: Sequence[WorkflowExecution]) -> LeftQueue:
    moving = sum(one.workflow_type in (UNDO_RUN, SETTLE_ACTION) for one in found)
    return LeftQueue(task_queue, len(found), found[-1].id, moving)


async def trigger(client: AgentClient) -> str:
    """Have a worker look now; return the id of the workflow that does.

    Safe to repeat: one such workflow is at work at a time.

    Raises:
        ConfigurationError: No worker of this task queue has looked yet.
    """
    queue, sweeps = client.task_queue, (await client.ledger()).relay.sweeps
    if await sweeps.last(namespace=client.temporal.namespace, task_queue=queue) is None:
        raise ConfigurationError(
            f"no worker of the task queue {queue!r} has looked yet: start one, "
            "and not with COMMITLINE_RELAY_SECONDS=0"
        )
    started = await client.temporal.start_workflow(
        RELAY,
        id=relay_workflow(queue),
        task_queue=queue,
        execution_timeout=_LONGEST_LOOK,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
    )
    return started.id


def print_report(found: RelayReport) -> None:
    """Print what the relay has to do, and the runs that ended without closing themselves."""
    now = datetime.now(tz=UTC)
    ERR.print(
        _looks(found, now),
        style="dim" if found.state == "on" else "yellow",
        markup=False,
        soft_wrap=True,
    )
    if found.waiting:
        _queue(found.waiting).print(OUT)
        _say_what_to_do(found.waiting)
    if found.gone:
        _gone(found.gone, now).print(OUT)
        ERR.print("Take back what they did: commitline undo RUN", style="dim")
    for one in found.left:
        ERR.print(_told(one), style="yellow", markup=False, soft_wrap=True)
    if not found.waiting and not found.gone and not any(one.moving for one in found.left):
        ERR.print("The relay has nothing to do.")
        ERR.print("What waits for a person: commitline actions list --parked", style="dim")


def _looks(found: RelayReport, now: datetime) -> str:
    """Say who looks, and when that was last."""
    workers = f"the workers of {one_line(found.task_queue, limit=200)}"
    if found.last is None:
        return f"No relay: {workers} have not looked yet. COMMITLINE_RELAY_SECONDS=0 is a reason."
    last = f"they looked last {age(now - found.last)} ago"
    if found.state == "away":
        return f"No relay: none of {workers} runs; {last}. Start a worker: nothing else looks."
    return f"The relay is {workers}; {last}."


def _told(left: LeftQueue) -> str:
    """Say what waits on a task queue that no worker polls, and what to do about it."""
    queue = one_line(left.task_queue, limit=200)
    told = (
        f"No worker polls the task queue {queue}: {left.workflows} workflows wait there, "
        f"{one_line(left.first, limit=200)} for the longest time."
    )
    if left.moving:
        told += (
            f" {left.moving} of them are undos and settlements: the next look of the relay moves "
            "each to its own task queue, if its workers serve the tools."
        )
    if left.moving < left.workflows:
        told += (
            f" Start a worker with COMMITLINE_TASK_QUEUE={queue}, or stop its runs: "
            "commitline stop RUN"
        )
    return told


def data(found: RelayReport) -> dict[str, Any]:
    """Return what `commitline relay` prints, as plain data."""
    return {
        **asdict(found),
        "waiting": [
            {
                **{name: value for name, value in asdict(one).items() if name != "now"},
                "overdue": one.overdue,
            }
            for one in found.waiting
        ],
    }


def _say_what_to_do(waiting: Sequence[QueuedAction]) -> None:
    if any(one.overdue for one in waiting):
        ERR.print("What nobody takes: no worker that runs serves its tool.", style="yellow")
    if first := next((one.behind for one in waiting if one.behind is not None), None):
        ERR.print(
            "What comes after another one waits for the end of that: the first is "
            f"{one_line(first)}",
            style="dim",
            markup=False,
            soft_wrap=True,
        )
    if any(one.due_at is None for one in waiting):
        ERR.print(
            "What waits for a person: commitline actions show KEY, then reopen or settle",
            style="dim",
        )


def _queue(waiting: Sequence[QueuedAction]) -> Listing:
    listing = Listing("action", "tool", "why", "due")
    for one in waiting:
        due = one.due_at
        left = None if due is None else due - one.now
        when = "waits for a person" if left is None or one.parked_reason else "now"
        if when == "now" and left is not None and left > timedelta():
            when = f"in {age(left)}"
        if one.overdue:
            when = "now; nobody takes it"
        if left is not None and one.behind is not None:
            when = "after the one before it"
        listing.add_row(line(one.key), line(one.tool, limit=32), _WHY[one.why], when)
    return listing


def _gone(runs: Sequence[LostRun], now: datetime) -> Listing:
    listing = Listing("run", "ended", "stands", "unknown", "age")
    for one in runs:
        listing.add_row(
            line(one.workflow_id),
            one.workflow_status.replace("_", " "),
            str(one.stands),
            str(one.unknown),
            age(now - one.ended_at),
        )
    return listing

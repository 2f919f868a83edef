"""The relay, for an operator: what it has to do, when it looks, and having it look now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from ..activities.contract.relay import SETTLE_ACTION
from ..activities.contract.undo import UNDO_RUN
from ..activities.runs.left_workflows import is_polled
from ..activities.runs.relay_triggers import schedule_id
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
    """What the relay has to do, and when it looks."""

    schedule: str
    """The id of its schedule in Temporal."""
    state: Literal["on", "paused", "missing"]
    """``missing``: no worker of this task queue has run with a relay yet."""
    last: datetime | None
    """When it looked last, if it has."""
    next: datetime | None
    """When it looks next."""
    waiting: Sequence[QueuedAction]
    """The actions in its queue, and those that it left to a person."""
    gone: Sequence[LostRun]
    """The runs that ended without closing themselves, with actions that stand or are unknown."""
    left: Sequence[LeftQueue]
    """The task queues on which workflows wait for a worker."""


async def report(client: AgentClient, *, limit: int) -> RelayReport:
    """Return what the relay has to do. Safe to repeat; it only reads."""
    named = schedule_id(client.task_queue)
    ledger = await client.ledger()
    waiting = await ledger.relay.list(limit=limit)
    gone = await ledger.relay.list_lost(limit=limit)
    left = await _left_queues(client.temporal)
    try:
        described = await client.temporal.get_schedule_handle(named).describe()
    except RPCError as err:
        if err.status is not RPCStatusCode.NOT_FOUND:
            raise
        return RelayReport(named, "missing", None, None, waiting, gone, left)
    info = described.info
    last = max((one.started_at for one in info.recent_actions), default=None)
    following = min(info.next_action_times, default=None)
    paused = described.schedule.state.paused
    state: Literal["on", "paused"] = "paused" if paused else "on"
    return RelayReport(named, state, last, following, waiting, gone, left)


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
    """Have the relay look now; return its schedule's id. Safe to repeat.

    Raises:
        ConfigurationError: No worker of this task queue has run with a relay yet.
    """
    named = schedule_id(client.task_queue)
    try:
        await client.temporal.get_schedule_handle(named).trigger()
    except RPCError as err:
        if err.status is RPCStatusCode.NOT_FOUND:
            raise ConfigurationError(
                f"no schedule {named!r}: a worker makes it, unless COMMITLINE_RELAY_SECONDS is 0"
            ) from err
        raise
    return named


def print_report(found: RelayReport) -> None:
    """Print what the relay has to do, and the runs that ended without closing themselves."""
    now = datetime.now(tz=UTC)
    schedule = {
        "missing": "No relay: a worker makes its schedule, unless COMMITLINE_RELAY_SECONDS is 0.",
        "paused": f"The schedule {found.schedule} is paused: nothing is looked for.",
        "on": f"Looks by the schedule {found.schedule}"
        + (f"; last {age(now - found.last)} ago" if found.last else ""),
    }[found.state]
    ERR.print(schedule, style="dim" if found.state == "on" else "yellow", markup=False)
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
        when = "waits for a person" if left is None else "now"
        if left is not None and left > timedelta():
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

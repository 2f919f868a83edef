"""The newest runs, for an operator: their state, why they failed, what of them waits, since when.

Temporal's visibility leads: it knows runs that no worker has begun, and those that ended without a
worker. It lags behind by up to a second or so. The ledger adds what waits for a person, the runs
that Temporal has forgotten, and those of other frameworks' workflows: they have types of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from rich.text import Text
from temporalio.api.workflow.v1 import WorkflowExecutionInfo

from ..activities.contract.runs import AGENT_RUN, PLAN_RUN
from ..client import AgentClient
from ..errors import CommitlineError, RunGone
from ..handles.executions import list_executions, state_name
from ..handles.run_workflow import state_of
from ..handles.thread import RunHandle
from ..identity import RunKey, is_of_outbox, listed_run_key
from ..ledger import ActionLedger, Run
from ..ledger.waiting import RunWaits, WaitingLedger
from .console import age, line, state_text
from .listing import Listing
from .run_facts import undone

STATES: Final = {
    "running": "Running",
    "completed": "Completed",
    "failed": "Failed",
    "canceled": "Canceled",
    "terminated": "Terminated",
    "timed_out": "TimedOut",
    "paused": "Paused",
}
"""The states of runs, and Temporal's names for them."""
COLUMNS: Final = ("run", "agent", "state", "started", "note")
FAILED: Final = ("failed", "terminated", "timed_out")
_PAGE: Final = 100
_ROWS_AT_MOST: Final = 500
"""How many of the ledger's newest runs are looked at for those that Temporal's lacks."""


@dataclass(frozen=True)
class Listed:
    """One run of the list."""

    id: str
    agent: str | None
    """None where the ledger has nothing of it."""
    state: str
    """One of `STATES`, or ``gone``."""
    undone: str | None
    """Whether what it did was undone, in a word."""
    waits: Sequence[RunWaits]
    """What of it waits for a person."""
    why: str | None
    """Why it failed."""
    started: datetime
    ended: datetime | None
    run_id: str | None
    """Of Temporal's execution; None where it is gone."""
    run_key: RunKey

    @property
    def waits_since(self) -> datetime | None:
        """Since when something of it waits; None where nothing does."""
        return min((one.since for one in self.waits), default=None)


class RunList:
    """Gathers the list again and again; what a run failed with is asked for once.

    Args:
        client: Connected.
    """

    def __init__(self, client: AgentClient) -> None:
        self._client = client
        self._whys: dict[RunKey, str | None] = {}

    async def newest(
        self, *, limit: int, agent: str | None = None, state: str | None = None
    ) -> list[Listed]:
        """Return the newest runs; it only reads.

        Args:
            limit: How many at most.
            agent: Only runs of this agent, or plan.
            state: Only runs in this state, one of `STATES`; or ``gone``; or ``waiting``: those of
                which something waits for a person.
        """
        ledger = await self._client.ledger()
        found: list[Listed] = []
        if state == "waiting":
            found = await self._waiting(ledger, agent, limit)
        elif state != "gone":
            found = await self._of_temporal(ledger, limit=limit, agent=agent, state=state)
        if state != "waiting":
            full = len(found) >= limit
            since = min((one.started for one in found), default=None) if full else None
            known = {one.run_key for one in found}
            beside = await self._of_ledger(ledger, known, since, limit=limit, agent=agent)
            found += [one for one in beside if state in (None, one.state)]
        found = sorted(found, key=lambda one: one.started, reverse=True)[:limit]
        return await self._with_waits(ledger, await self._with_reasons(found))

    async def _of_temporal(
        self, ledger: ActionLedger, *, limit: int, agent: str | None, state: str | None
    ) -> list[Listed]:
        query = f"WorkflowType IN ('{AGENT_RUN}', '{PLAN_RUN}')"
        if state is not None:
            query += f" AND ExecutionStatus = '{STATES[state]}'"
        found: list[Listed] = []
        # Temporal does not know the agents: it is asked for more until so many are the agent's.
        page: list[WorkflowExecutionInfo] = []
        async for run in list_executions(self._client.temporal, query):
            page.append(run)
            if len(page) == min(_PAGE, limit if agent is None else _PAGE):
                found += await _of_agent(ledger, page, agent)
                page = []
            if len(found) >= limit:
                break
        found += await _of_agent(ledger, page, agent)
        return found[:limit]

    async def _of_ledger(
        self,
        ledger: ActionLedger,
        known: Collection[RunKey],
        since: datetime | None,
        *,
        limit: int,
        agent: str | None,
    ) -> list[Listed]:
        """Return the newest runs that Temporal's list lacks: gone, or another framework's."""
        rows = await ledger.runs.list(limit=min(5 * limit, _ROWS_AT_MOST))
        meant = [
            run
            for run in rows
            if run.run_key not in known
            and self._has(run)
            and agent in (None, run.agent)
            and (since is None or run.created_at > since)
        ]
        found = await asyncio.gather(*(self._beside(ledger, run) for run in meant))
        return [one for one in found if one is not None]

    async def _beside(self, ledger: ActionLedger, run: Run) -> Listed | None:
        """Return a run that Temporal's list does not have; None where it does, or soon will."""
        listed = await _listed(ledger, run, "gone")
        try:
            described = await self._handle(run).describe()
        except RunGone:
            return listed
        if run.can_look_up:
            return None
        return replace(
            listed,
            state=state_of(described),
            started=described.start_time,
            ended=described.close_time,
            run_id=described.run_id,
        )

    async def _waiting(self, ledger: ActionLedger, agent: str | None, limit: int) -> list[Listed]:
        """Return the runs of which something has waited for a person for the longest time."""
        approvals = await ledger.approvals.list(limit=limit)
        questions = await ledger.questions.list(limit=limit)
        parked = await ledger.list(only_parked=True, limit=limit)
        waits = [one.run_key for one in approvals] + [one.run_key for one in questions]
        keys = dict.fromkeys([*waits, *(one.run_key for one in parked)])
        runs = [await ledger.runs.get(key) for key in keys]
        meant = [run for run in runs if run is not None and agent in (None, run.agent)]
        meant = [run for run in meant if self._has(run)][:limit]
        states = await asyncio.gather(*(self._handle(run).state() for run in meant))
        return [await _listed(ledger, run, state) for run, state in zip(meant, states, strict=True)]

    def _has(self, run: Run) -> bool:
        """Whether a run is, or was, a workflow of this namespace."""
        here = run.namespace in (None, self._client.temporal.namespace)
        return here and not is_of_outbox(run.run_key)

    def _handle(self, run: Run | Listed) -> RunHandle:
        workflow_id = run.workflow_id if isinstance(run, Run) else run.id
        return self._client.run(workflow_id, run_key=run.run_key)

    async def _with_reasons(self, found: Sequence[Listed]) -> list[Listed]:
        failed = [one for one in found if one.state in FAILED and one.run_key not in self._whys]
        whys = await asyncio.gather(*(_why(self._handle(one)) for one in failed))
        self._whys |= {one.run_key: why for one, why in zip(failed, whys, strict=True)}
        return [replace(one, why=self._whys.get(one.run_key)) for one in found]

    async def _with_waits(self, ledger: ActionLedger, found: Sequence[Listed]) -> list[Listed]:
        waits = await WaitingLedger.beside(ledger).of_runs([one.run_key for one in found])
        return [
            replace(one, waits=[each for each in waits if each.run_key == one.run_key])
            for one in found
        ]


async def newest_runs(
    client: AgentClient, *, limit: int, agent: str | None = None, state: str | None = None
) -> list[Listed]:
    """Return the newest runs; see `RunList.newest`."""
    return await RunList(client).newest(limit=limit, agent=agent, state=state)


async def _why(handle: RunHandle) -> str | None:
    try:
        await handle.result()
    except CommitlineError as err:
        return f"{err.message} [{err.code}]"
    return None  # of a run of a conversation: its request had been answered before


async def _of_agent(
    ledger: ActionLedger, found: Sequence[WorkflowExecutionInfo], agent: str | None
) -> list[Listed]:
    """Return what to show of these runs, of one agent or of all."""
    known = await asyncio.gather(*(_row_of(ledger, run) for run in found))
    return [
        Listed(
            id=run.execution.workflow_id,
            agent=None if one is None else one.agent,
            state=state_name(run),
            undone=await undone(ledger, one),
            waits=(),
            why=None,
            started=run.start_time.ToDatetime(UTC),
            ended=run.close_time.ToDatetime(UTC) if run.HasField("close_time") else None,
            run_id=run.execution.run_id,
            run_key=_key_of(run) if one is None else one.run_key,
        )
        for run, one in zip(found, known, strict=True)
        if agent is None or (one is not None and one.agent == agent)
    ]


def _key_of(run: WorkflowExecutionInfo) -> RunKey:
    """Return the run's key, if it is in its first execution."""
    return listed_run_key(run.execution.workflow_id, run.execution.run_id)


async def _row_of(ledger: ActionLedger, run: WorkflowExecutionInfo) -> Run | None:
    """Return a run's row: by its first execution, or else the newest of its id."""
    own = await ledger.runs.get(_key_of(run))
    if own is not None:
        return own
    newest = await ledger.runs.list(workflow_id=run.execution.workflow_id, limit=1)
    return newest[0] if newest else None


async def _listed(ledger: ActionLedger, run: Run, state: str) -> Listed:
    return Listed(
        id=run.workflow_id,
        agent=run.agent,
        state=state,
        undone=await undone(ledger, run),
        waits=(),
        why=None,
        started=run.created_at,
        ended=None,
        run_id=None,
        run_key=run.run_key,
    )


def data(one: Listed) -> dict[str, Any]:
    """Return a run of the list as plain data."""
    shown = {name: value for name, value in vars(one).items() if name != "waits"}
    waits = {each.kind: each.number for each in one.waits}
    return shown | {"waits": waits, "waits_since": one.waits_since}


def table(found: Sequence[Listed]) -> Listing:
    """Return a list of runs."""
    listing = Listing(*COLUMNS, long=("note",))
    for row in rows(found):
        listing.add_row(*row)
    return listing


def rows(found: Sequence[Listed]) -> Sequence[Sequence[Text]]:
    """Return the values of `COLUMNS`, a run a row."""
    now = datetime.now(tz=UTC)
    return [
        (
            line(one.id),
            line(one.agent or "-", limit=24),
            state_text(one.state),
            Text(f"{age(now - one.started)} ago"),
            line(_note(one, now), limit=200),
        )
        for one in found
    ]


def _note(one: Listed, now: datetime) -> str:
    """Say what to know of a run at a glance: what waits, whether it is undone, why it failed."""
    kinds: Mapping[str, str] = {"approval": "to approve", "question": "to answer"}
    said = [f"{each.number} {kinds.get(each.kind, each.kind)}" for each in one.waits]
    if one.waits_since is not None:
        said[-1] += f", since {age(now - one.waits_since)}"
    if one.undone is not None:
        said.append({"yes": "undone", "partly": "partly undone"}.get(one.undone, "undoing"))
    if one.why is not None:
        said.append(one.why)
    return "; ".join(said)

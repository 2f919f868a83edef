"""Runs, for an operator: list them, find one by its name, follow one to its end.

What there is to know of one run is in `run_facts`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console
from rich.text import Text
from temporalio.api.workflow.v1 import WorkflowExecutionInfo

from ..client import AgentClient
from ..errors import RunNotFound
from ..handles.executions import list_executions, state_name
from ..handles.thread import RunHandle
from ..identity import RunKey
from ..ledger import ActionLedger, Run
from ..shown import one_line
from ..workflows import AGENT_RUN, PLAN_RUN, RunResult
from ..workflows.progress import Progress
from .console import ERR, OUT, age, line, state_text, text
from .listing import Listing
from .run_facts import undone
from .run_names import RUNS_AT_MOST

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
_PAGE: Final = 100
_POLL_SECONDS: Final = 0.5


async def newest_runs(
    client: AgentClient, *, limit: int, agent: str | None = None, state: str | None = None
) -> list[dict[str, Any]]:
    """Return the newest runs: their state by Temporal, their agent, or plan, by the ledger.

    Temporal's visibility leads, since it knows runs that no worker has begun and those that
    ended without a worker (terminated, timed out). It lags behind by up to a second or so.

    Args:
        client: Connected.
        limit: How many at most.
        agent: Only runs of this agent, or plan.
        state: Only runs in this state, one of `STATES`.
    """
    query = f"WorkflowType IN ('{AGENT_RUN}', '{PLAN_RUN}')"
    if state is not None:
        query += f" AND ExecutionStatus = '{STATES[state]}'"
    ledger = await client.ledger()
    found: list[dict[str, Any]] = []
    # Temporal does not know the agents: it is asked for more until so many are the agent's.
    page: list[WorkflowExecutionInfo] = []
    async for run in list_executions(client.temporal, query):
        page.append(run)
        if len(page) == min(_PAGE, limit if agent is None else _PAGE):
            found += await _of_agent(ledger, page, agent)
            page = []
        if len(found) >= limit:
            break
    found += await _of_agent(ledger, page, agent)
    return found[:limit]


async def _of_agent(
    ledger: ActionLedger, found: Sequence[WorkflowExecutionInfo], agent: str | None
) -> list[dict[str, Any]]:
    """Return what to show of these runs, of one agent or of all."""
    known = await _newest_of(ledger, found)
    return [
        {
            "id": run.execution.workflow_id,
            "agent": None if one is None else one.agent,
            "state": state_name(run),
            "undone": await undone(ledger, one),
            "started": run.start_time.ToDatetime(UTC),
            "ended": run.close_time.ToDatetime(UTC) if run.HasField("close_time") else None,
            "run_id": run.execution.run_id,
        }
        for run, one in zip(found, known, strict=True)
        if agent is None or (one is not None and one.agent == agent)
    ]


async def _newest_of(
    ledger: ActionLedger, runs: Sequence[WorkflowExecutionInfo]
) -> Sequence[Run | None]:
    ids = [run.execution.workflow_id for run in runs]
    newest = await asyncio.gather(*(ledger.runs.list(workflow_id=one, limit=1) for one in ids))
    return [rows[0] if rows else None for rows in newest]


async def handle_of(client: AgentClient, id: str) -> RunHandle:
    """Return the run of a workflow's id, the newest; or by a run's key that one and no other."""
    run = await (await client.ledger()).runs.get(RunKey(id))
    return client.run(id) if run is None else client.run(run.workflow_id, run_key=run.run_key)


async def earlier_runs(client: AgentClient, id: str) -> Sequence[RunKey]:
    """Return the keys of the runs that had a workflow's id before its newest, newest first."""
    found = await (await client.ledger()).runs.list(workflow_id=id, limit=RUNS_AT_MOST)
    return [run.run_key for run in found[1:]]


async def follow(run: RunHandle, console: Console) -> RunResult:
    """Wait for a run's result; on a terminal show where it is, elsewhere only if it is stuck.

    Raises:
        CommitlineError: As `RunHandle.result`.
    """
    result = asyncio.ensure_future(run.result())
    await _show_until(result, run, console)
    return result.result()


def print_answer(result: RunResult) -> None:
    """Print an answer, and to stderr why it may not be a whole one."""
    OUT.print(text(result.output), soft_wrap=True)
    if result.finish_reason not in ("stop", "tool_calls"):
        ERR.print(f"No whole answer; why the model stopped: {result.finish_reason}.")


async def _show_until(
    result: asyncio.Future[Any], run: RunHandle, console: Console, *, begun: bool = True
) -> None:
    """Show where a run is until a result is there; elsewhere than on a terminal only what waits.

    Args:
        result: What is waited for.
        run: Where it comes from.
        console: To print on.
        begun: Whether Temporal has the run already.
    """
    told: set[str] = set()
    with console.status(line(f"{run.id}: started")) as shown:
        while not (await asyncio.wait({result}, timeout=_POLL_SECONDS))[0]:
            try:
                progress = (await run.status()).progress
            except RunNotFound:
                if begun:
                    raise
                continue
            shown.update(progress_text(run.id, progress))
            for stuck in () if console.is_terminal or result.done() else _stuck(run.id, progress):
                if stuck not in told:
                    told.add(stuck)
                    console.print(stuck, markup=False, soft_wrap=True)


def _stuck(id: str, progress: Progress | None) -> Sequence[str]:
    """Say what a run waits for that does not come by itself."""
    if progress is None:
        return [progress_text(id, None).plain]
    waits = {
        "awaiting_approval": "waits for a person: commitline approvals",
        "awaiting_answer": "waits for an answer: commitline questions",
    }
    return [
        f"{one_line(id)}: {call.position} {one_line(call.summary, limit=56)} {waits[call.state]}"
        for call in progress.calls
        if call.state in waits
    ]


async def send(
    client: AgentClient,
    thread: str,
    text: str,
    console: Console,
    *,
    agent: str | None,
    request_id: str | None,
) -> RunResult:
    """Say something in a conversation and wait for the answer; see `AgentClient.send`."""
    sent = asyncio.ensure_future(client.send(thread, text, agent=agent, request_id=request_id))
    await _show_until(sent, client.thread(thread).run, console, begun=False)
    return sent.result()


def table(found: Sequence[Mapping[str, Any]]) -> Listing:
    """Return a list of runs, as `newest_runs` gathers them."""
    now = datetime.now(tz=UTC)
    listing = Listing("run", "agent", "state", "undone", "started")
    for run in found:
        listing.add_row(
            line(run["id"]),
            line(run["agent"] or "-", limit=24),
            state_text(run["state"]),
            state_text(run["undone"] or "-"),
            f"{age(now - run['started'])} ago",
        )
    return listing


def progress_text(id: str, now: Progress | None) -> Text:
    """Return where a run is, in a few lines."""
    if now is None:
        return Text(f"{one_line(id)}: no worker answers. Start one: commitline worker MODULE:APP")
    lines = Text(f"{one_line(id)}: {one_line(now.state, limit=60)}")
    for call in now.calls[-8:]:
        lines.append(f"\n    {call.position}  {one_line(call.summary, limit=56)}  ")
        lines.append_text(state_text(call.state))
    return lines

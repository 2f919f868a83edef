"""Runs, for an operator: list them, find one by its name, follow one to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.text import Text
from temporalio.client import WorkflowExecution

from ..canonical import scrub
from ..client import AgentClient
from ..handles.thread import RunHandle
from ..identity import RunKey
from ..ledger import ActionLedger, Run
from ..workflows import AGENT_RUN, PLAN_RUN, RunResult
from ..workflows.progress import Progress
from .console import age, state_text, table_of, text
from .run_names import RUNS_AT_MOST

_POLL_SECONDS: Final = 0.5


async def newest_runs(client: AgentClient, *, limit: int) -> list[dict[str, Any]]:
    """Return the newest runs: their state by Temporal, their agent, or plan, by the ledger.

    Temporal's visibility leads, since it knows runs that no worker has begun and those that
    ended without a worker (terminated, timed out). It lags behind by up to a second or so.
    """
    query = f"WorkflowType IN ('{AGENT_RUN}', '{PLAN_RUN}')"
    found = [run async for run in client.temporal.list_workflows(query, limit=limit)]
    ledger = await client.ledger()
    known = await _newest_of(ledger, found)
    return [
        {
            "id": run.id,
            "agent": known[run.id].agent if run.id in known else None,
            "state": "unknown" if run.status is None else run.status.name.lower(),
            "undone": await _undone(ledger, known.get(run.id)),
            "started": run.start_time,
            "ended": run.close_time,
            "run_id": run.run_id,
        }
        for run in found
    ]


async def _newest_of(ledger: ActionLedger, runs: Sequence[WorkflowExecution]) -> dict[str, Run]:
    newest = await asyncio.gather(*(ledger.runs.list(workflow_id=run.id, limit=1) for run in runs))
    return {run.id: rows[0] for run, rows in zip(runs, newest, strict=True) if rows}


async def _undone(ledger: ActionLedger, run: Run | None) -> str | None:
    """Say in a word whether what a run did was undone; None where no undo began."""
    if run is None or run.undo_began_at is None:
        return None
    if run.state == "undoing":
        return "under way"
    report = await ledger.undo.report(run.run_key)
    return {"nothing to undo": None, "compensated": "yes", "partly compensated": "partly"}[
        report.state
    ]


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
    warned = False
    with console.status(f"{run.id}: started") as shown:
        while not (await asyncio.wait({result}, timeout=_POLL_SECONDS))[0]:
            progress = (await run.status()).progress
            shown.update(progress_text(run.id, progress))
            if progress is None and not warned and not console.is_terminal and not result.done():
                warned = True
                console.print(progress_text(run.id, None))
    return result.result()


def table(found: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return a table of runs, as `newest_runs` gathers them."""
    now = datetime.now(tz=UTC)
    table = table_of(("run", {"overflow": "fold"}), "agent", "state", "undone", "started")
    for run in found:
        table.add_row(
            text(run["id"]),
            text(run["agent"] or "-", limit=24),
            state_text(run["state"]),
            state_text(run["undone"] or "-"),
            f"{age(now - run['started'])} ago",
        )
    return table


def progress_text(id: str, now: Progress | None) -> RenderableType:
    """Return where a run is, in a few lines."""
    if now is None:
        return Text(f"{id}: no worker answers. Start one: commitline worker MODULE:APP")
    lines = Text(f"{id}: {scrub(now.state, limit=60)}")
    for call in now.calls[-8:]:
        lines.append(f"\n    {call.position}  {scrub(call.summary, limit=56)}  ")
        lines.append_text(state_text(call.state))
    return lines

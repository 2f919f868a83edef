"""Runs, for an operator: find one by its name, follow one to its end.

What there is to know of one run is in `run_facts`, and the list of all in `run_list`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from ..client import AgentClient
from ..errors import RunNotFound
from ..handles.thread import RunHandle
from ..identity import RunKey
from ..shown import one_line
from ..workflows import RunResult
from ..workflows.progress import Progress
from .console import ERR, OUT, line, state_text, text
from .run_names import RUNS_AT_MOST

_POLL_SECONDS: Final = 0.5


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


def progress_text(id: str, now: Progress | None) -> Text:
    """Return where a run is, in a few lines."""
    if now is None:
        return Text(f"{one_line(id)}: no worker answers. Start one: commitline worker MODULE:APP")
    lines = Text(f"{one_line(id)}: {one_line(now.state, limit=60)}")
    for call in now.calls[-8:]:
        lines.append(f"\n    {call.position}  {one_line(call.summary, limit=56)}  ")
        lines.append_text(state_text(call.state))
    return lines

"""What the benches share: servers, how an app is served, and what Temporal keeps of a run."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from temporalio.client import Client
from temporalio.runtime import Runtime

from commitline import App
from commitline.bench.bill import actions_of
from commitline.client import AgentClient
from commitline.config import Settings, core_runtime
from commitline.devstack import DevStack
from commitline.devstack.postgres import remove_data
from commitline.ledger import ActionLedger, ledger_pool, migrate
from commitline.ledger.pool import Pool
from commitline.log_output import configure_logging
from commitline.worker import app_worker

SETTINGS: Final = Settings()
"""Of the worker and the client of Commitline: the defaults."""

DURABLE: Final = ("fsync", "full_page_writes", "synchronous_commit")
"""What a commit of Postgres needs to outlive a crash of the machine. Users have all three on."""

Run = Callable[[str, str], Awaitable[str]]
"""Start a run with this workflow id and this prompt, and wait for its answer."""


@contextmanager
def bench_stack(progress: Console) -> Iterator[DevStack]:
    """Run Temporal and Postgres with the settings of ``commitline dev``, on files of their own."""
    # Not below a closed folder: under root, Postgres runs as a user of its own.
    data_dir = Path(tempfile.mkdtemp(prefix="commitline-bench-"))
    try:
        # Log as a worker does in production, one JSON object a line, but not in between.
        with (data_dir / "worker.log").open("w") as log:
            with redirect_stderr(log):
                configure_logging()
            Runtime.set_default(core_runtime(), error_if_already_set=False)
            progress.print("Starting Temporal and Postgres")
            with DevStack(data_dir, ui_port=None) as stack:
                yield stack
                progress.print("Stopping Temporal and Postgres")
    finally:
        remove_data(data_dir)


async def check_durable(pool: Pool) -> None:
    """Look at a session of the ledger.

    Raises:
        RuntimeError: Its commits are cheaper than those of a user.
    """
    async with pool.connection() as connection:
        for name in DURABLE:
            found = await (await connection.execute(f"show {name}")).fetchone()
            if found != {name: "on"}:
                raise RuntimeError(f"this bench measures {name} = on, and found {found}")


@asynccontextmanager
async def with_commitline(
    client: Client,
    database_url: str,
    app: App,
    *,
    task_queue: str = SETTINGS.task_queue,
    traces: str = SETTINGS.traces,
) -> AsyncIterator[Run]:
    """Serve the app and its one agent, through the ledger, while the body runs."""
    await migrate(database_url)
    [agent] = app.agents
    given = {"database_url": database_url, "task_queue": task_queue, "traces": traces}
    settings = SETTINGS.model_copy(update=given)
    async with (
        ledger_pool(database_url, size=SETTINGS.pool_size) as pool,
        app_worker(app, client=client, ledger=ActionLedger(pool), settings=settings),
        AgentClient(client, settings) as agents,
    ):
        await check_durable(pool)

        async def run(id: str, prompt: str) -> str:
            started = await agents.start(agent.name, prompt, id=id)
            return (await started.result()).output

        yield run


@dataclass(frozen=True)
class History:
    """What the server keeps of a run, over all its executions."""

    bytes: int
    """As the server counts them."""
    events: int
    actions: int
    """On Temporal Cloud's bill, heartbeats left out."""


async def history_of(client: Client, id: str) -> History:
    """Return the size of a run's history, and what it would cost on Temporal Cloud."""
    size = number = actions = 0
    run_id: str | None = None  # the latest execution, and from there back to the first
    while run_id != "":
        described = await client.get_workflow_handle(id, run_id=run_id).describe()
        info = described.raw_description.workflow_execution_info
        size, number = size + info.history_size_bytes, number + info.history_length
        execution = client.get_workflow_handle(id, run_id=described.run_id)
        events = [event async for event in execution.fetch_history_events()]
        actions += actions_of(events)
        started = events[0].workflow_execution_started_event_attributes
        run_id = started.continued_execution_run_id
    return History(size, number, actions)

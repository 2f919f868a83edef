"""What the benches of whole runs share: how an app is served, and what Temporal keeps of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, redirect_stderr
from datetime import timedelta
from typing import Any, Final, TextIO

from temporalio.client import Client, WorkflowHandle

from commitline import App
from commitline.client import AgentClient
from commitline.config import Settings
from commitline.ledger import ActionLedger, ledger_pool, migrate
from commitline.logs import configure_logging
from commitline.worker import STICKY_SECONDS, app_worker

CACHED_WORKFLOWS: Final = 1000
SETTINGS: Final = Settings()
WORKER_OPTIONS: Final[dict[str, Any]] = {
    "max_cached_workflows": CACHED_WORKFLOWS,
    "max_concurrent_activities": SETTINGS.max_concurrent_activities,
    "graceful_shutdown_timeout": SETTINGS.grace,
    "sticky_queue_schedule_to_start_timeout": timedelta(seconds=STICKY_SECONDS),
}
"""What our own worker sets, for the workers of what it is compared with."""

Run = Callable[[str], Awaitable[str]]
"""Start a run with this workflow id and wait for its answer."""


@asynccontextmanager
async def with_commitline(
    client: Client, database_url: str, app: App, prompt: str
) -> AsyncIterator[Run]:
    """Serve the app and its one agent, through the ledger, while the body runs."""
    await migrate(database_url)
    [agent] = app.agents
    async with (
        ledger_pool(database_url, size=SETTINGS.pool_size) as pool,
        app_worker(
            app,
            client=client,
            ledger=ActionLedger(pool),
            settings=SETTINGS,
            max_cached_workflows=CACHED_WORKFLOWS,
        ),
        AgentClient(client, SETTINGS) as agents,
    ):

        async def run(id: str) -> str:
            started = await agents.start(agent.name, prompt, id=id)
            return (await started.result()).output

        yield run


async def history_bytes(client: Client, id: str) -> int:
    """Return the size of a run's history, as the server counts it, over all its executions."""
    size = 0
    run_id: str | None = None  # the latest execution, and from there back to the first
    while run_id != "":
        execution = client.get_workflow_handle(id, run_id=run_id)
        described = await execution.describe()
        size += described.raw_description.workflow_execution_info.history_size_bytes
        run_id = await _continued_from(client.get_workflow_handle(id, run_id=described.run_id))
    return size


async def _continued_from(execution: WorkflowHandle[Any, Any]) -> str:
    """Return the execution that this one went on from, by its first event; empty for none."""
    async for event in execution.fetch_history_events(page_size=1):
        return event.workflow_execution_started_event_attributes.continued_execution_run_id
    raise AssertionError("a history without events")


def log_to(file: TextIO) -> None:
    """Log as a worker does in production, one JSON object a line, but not in between."""
    with redirect_stderr(file):
        configure_logging()

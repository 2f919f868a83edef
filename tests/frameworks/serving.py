"""Serves one agent in a worker process, or replays a history of it."""

from __future__ import annotations

import asyncio
import logging
import os
from datetime import timedelta
from pathlib import Path

from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Replayer, Worker

from commitline.tests.frameworks.tools.shop import App


async def serve(app: App, name: str) -> None:
    """Serve an agent on a queue of its own until the process is killed."""
    _log_plainly()
    connected = await Client.connect(os.environ["TEMPORAL_ADDRESS"], plugins=app.client)
    worker = Worker(
        connected,
        task_queue=f"{os.environ['TASK_QUEUE']}-{name}",
        workflows=[app.clerk],
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
        **app.worker,
    )
    # Many workflows load at once, and two seconds are no deadlock then.
    assert worker._workflow_worker is not None
    worker._workflow_worker._deadlock_timeout_seconds = 60
    await worker.run()


async def replay(app: App, history: Path) -> None:
    """Replay a history."""
    _log_plainly()
    text = await asyncio.to_thread(history.read_text, encoding="utf-8")
    recorded = WorkflowHistory.from_json("clerk", text)
    plugins = [*app.client, *app.worker.get("plugins", ())]
    # Many load at once, and two seconds are no deadlock then: see above.
    replayer = Replayer(workflows=[app.clerk], plugins=plugins, debug_mode=True)
    await replayer.replay_workflow(recorded)


def _log_plainly() -> None:
    """Take the rich tracebacks of `mcp` away, which take longer than a test."""
    logging.basicConfig(force=True)

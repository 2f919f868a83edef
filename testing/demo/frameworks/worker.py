"""A worker with the shop of one framework. It differs by ``+ledger`` alone from one without it.

python -m commitline.testing.demo.frameworks.worker openai_agents+ledger
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta
from importlib import import_module
from typing import Final

import structlog
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from ....config import Settings, connect_temporal, core_runtime
from ....integrations import LedgerPlugin
from ....log_output import configure_logging
from ....worker import STICKY_SECONDS
from .shop import Shop

_HEARTBEAT: Final = timedelta(seconds=2)


async def run_framework_worker(framework: str, *, guarded: bool) -> None:
    """Run a worker until it is killed."""
    shop: Shop = import_module(f".{framework}", __package__).SHOP
    ledger = [LedgerPlugin(heartbeat=_HEARTBEAT)] if guarded else []
    client = await connect_temporal(
        {"runtime": core_runtime(), "plugins": [*shop.plugins, *ledger]}
    )
    worker = Worker(
        client,
        task_queue=Settings.load().task_queue,
        workflows=[shop.workflow],
        activities=shop.activities,
        plugins=shop.worker_plugins,
        # What the demo is made of is no part of the workflow: it need not be loaded anew for it.
        workflow_runner=SandboxedWorkflowRunner(
            restrictions=SandboxRestrictions.default.with_passthrough_modules("commitline")
        ),
        # As Commitline's worker has it.
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=STICKY_SECONDS),
    )
    structlog.get_logger("commitline").info("worker.started", app=framework, pid=os.getpid())
    await worker.run()


def main() -> None:
    """Run the worker that the command names."""
    configure_logging()
    framework, _, ledger = sys.argv[1].partition("+")
    asyncio.run(run_framework_worker(framework, guarded=ledger != ""))


if __name__ == "__main__":
    main()

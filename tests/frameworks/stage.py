"""One framework's agent in a world of its own: its workers are processes, and are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle

from commitline import AgentClient
from commitline.config import Settings
from commitline.ledger import ActionLedger, Approval, ledger_pool
from commitline.testing.processes import ProviderProcess

APPS = "commitline.tests.frameworks.apps"


@dataclass
class Stage:
    """One framework's agent in a world of its own."""

    app: str
    client: Client
    database_url: str
    folder: Path
    provider: ProviderProcess
    queue: str
    guarded: bool
    approve: bool = False
    apps: str = APPS
    python: str = sys.executable
    """An interpreter of an environment that has the framework."""

    @contextmanager
    def worker(self, **more: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a worker process while the body runs."""
        environment = {
            **os.environ,
            "TEMPORAL_ADDRESS": self.client.service_client.config.target_host,
            "COMMITLINE_DATABASE_URL": self.database_url,
            "SHOP_PROVIDER_URL": self.provider.url,
            "CRASH_FOLDER": str(self.folder),
            "TASK_QUEUE": self.queue,
            "GUARDED": "1" if self.guarded else "0",
            "APPROVE": "1" if self.approve else "0",
            **more,
        }
        with (self.folder / "workers.log").open("ab") as log:
            process = subprocess.Popen(
                [
                    self.python,
                    "-c",
                    f"from {APPS} import shop; from {self.apps} import {self.app}; "
                    f"shop.run({self.app}.main)",
                ],
                env=environment,
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    async def start(self) -> WorkflowHandle[Any, Any]:
        """Start the agent."""
        return await self.client.start_workflow(
            "Clerk", "charge and mail", id=f"clerk-{uuid.uuid4()}", task_queue=self.queue
        )

    async def reset(self, id: str) -> None:
        """Have everything decided anew, as `temporal workflow reset` does."""
        history = await self.client.get_workflow_handle(id).fetch_history()
        completed = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
        first = next(one.event_id for one in history.events if one.event_type == completed)
        await self.client.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=self.client.namespace,
                workflow_execution=WorkflowExecution(workflow_id=id),
                reason="a test",
                request_id=str(uuid.uuid4()),
                workflow_task_finish_event_id=first,
            )
        )

    async def command(self, *words: str) -> asyncio.subprocess.Process:
        """Start the `commitline` command; it talks to the same servers."""
        environment = {
            **os.environ,
            "TEMPORAL_ADDRESS": self.client.service_client.config.target_host,
            "COMMITLINE_DATABASE_URL": self.database_url,
        }
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "commitline.cli", *words),
            env=environment,
            stdout=asyncio.subprocess.PIPE,
        )

    def model_calls(self) -> int:
        """How often the model was asked."""
        counted = self.folder / "model_calls"
        return len(counted.read_text()) if counted.exists() else 0

    async def play(self, *deaths: str, **more: str) -> str:
        """Run the agent. Its workers die after the effects of these tools; the last one goes on."""
        handle = await self.start()
        for tool in deaths:
            with self.worker(DIE_AFTER=tool, **more) as worker:
                died = await asyncio.to_thread(worker.wait, 240)
                assert died == -signal.SIGKILL, self.log()
        with self.worker(**more):
            return str(await asyncio.wait_for(handle.result(), 240))

    async def replay(self, history: str) -> None:
        """Replay a history."""
        kept = self.folder / "history.json"
        kept.write_text(history, encoding="utf-8")
        with self.worker(REPLAY=str(kept)) as replaying:
            status = await asyncio.to_thread(replaying.wait, 240)
        assert status == 0, self.log()

    def log(self) -> str:
        """Return the end of what the workers said."""
        return (self.folder / "workers.log").read_text(encoding="utf-8")[-4000:]

    async def waiting(self, id: str) -> Approval:
        """Wait until a call of a run waits for a person; return its approval."""
        async with AgentClient(self.client, self.settings) as ours:
            while True:
                found = await ours.run(id).approvals()
                if found:
                    return found[0]
                await asyncio.sleep(0.1)

    async def decide(self, id: str, found: Approval, **said: Any) -> None:
        """Decide, as application code does."""
        async with AgentClient(self.client, self.settings) as ours:
            await ours.run(id).decide(found, by="ada", **said)

    @property
    def settings(self) -> Settings:
        """Those of a client of ours."""
        return Settings(database_url=self.database_url, task_queue=self.queue)

    async def tools(self) -> list[tuple[str, str]]:
        """Return the tools and states of the ledger's rows, in the order of the calls."""
        async with ledger_pool(self.database_url, size=1) as pool:
            actions = await ActionLedger(pool, statement_seconds=10).list()
        return sorted((one.tool.rpartition(".")[2], one.state) for one in actions)

"""Agents of several frameworks in one world; their workers are processes, and are killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import RetryPolicy

from commitline import AgentClient
from commitline.config import Settings
from commitline.ledger import Action, ActionLedger, Approval, ledger_pool
from commitline.testing.processes import ProviderProcess
from commitline.tests.frameworks.host import Host, HostedWorkers

_SECONDS: Final = 240

Handles: TypeAlias = Mapping[str, WorkflowHandle[Any, Any]]
"""The runs of the agents, by their apps."""


@dataclass
class Stage:
    """A world of its own, in which each agent has a run and a task queue of its own."""

    apps: Sequence[str]
    """The modules of the agents. Each charges an order and mails somebody of its own name."""
    host: Host
    client: Client
    database_url: str
    folder: Path
    provider: ProviderProcess
    package: str
    guarded: bool = True
    environment: dict[str, str] = field(default_factory=dict)
    """What every worker is told; see `shop`."""
    queue: str = field(default_factory=lambda: f"frameworks-{uuid.uuid4()}")

    @contextmanager
    def worker(self, **more: str) -> Iterator[HostedWorkers]:
        """Run a worker process while the body runs; then kill it."""
        environment = {
            **os.environ,
            "TEMPORAL_ADDRESS": self.client.service_client.config.target_host,
            "COMMITLINE_DATABASE_URL": self.database_url,
            "SHOP_PROVIDER_URL": self.provider.url,
            "CRASH_FOLDER": str(self.folder),
            "TASK_QUEUE": self.queue,
            "GUARDED": "1" if self.guarded else "0",
            **self.environment,
            **more,
        }
        modules = [f"{self.package}.{app}" for app in self.apps]
        process = self.host.start(modules, environment=environment, log=self._log)
        try:
            yield process
        finally:
            process.kill()

    async def start(self, how: str = "", *, attempts: int = 1) -> Handles:
        """Start a run of each agent.

        Args:
            how: How the runs end; see `shop.end`.
            attempts: Of the workflow.
        """
        return {
            app: await self.client.start_workflow(
                "Clerk",
                how,
                id=f"{app}-{uuid.uuid4()}",
                task_queue=f"{self.queue}-{app}",
                task_timeout=timedelta(seconds=60),
                retry_policy=RetryPolicy(maximum_attempts=attempts),
            )
            for app in self.apps
        }

    async def ends(self, handles: Handles) -> dict[str, str]:
        """Wait for the runs; return what each agent was told, or the type of the run's failure."""
        ended = await self._each(handles, lambda _, handle: _end(handle))
        return {app: str(told) for app, told in ended.items()}

    async def play(self, *deaths: str, **more: str) -> dict[str, str]:
        """Run the agents. A worker is killed when each has called such a tool; the last goes on."""
        handles = await self.start()
        for tool in deaths:
            await self.die_after(tool, **more)
        with self.worker(**more):
            return await self.ends(handles)

    async def die_after(self, tool: str, **more: str) -> None:
        """Have each worker kill itself by SIGKILL after the effect of a tool."""
        with self.worker(DIE_AFTER=tool, **more) as worker:
            try:
                async with asyncio.timeout(_SECONDS):
                    statuses = await asyncio.to_thread(worker.wait)
            except TimeoutError as err:
                raise AssertionError(f"not all had the effect of {tool}:\n{self.log()}") from err
        assert set(statuses) == {-signal.SIGKILL}, self.log()

    async def reset(self, handles: Handles) -> Handles:
        """Have everything decided anew, as `temporal workflow reset` does; return the new runs."""
        await self._each(handles, lambda _, handle: self._reset(handle.id))
        return {app: self.client.get_workflow_handle(one.id) for app, one in handles.items()}

    async def _reset(self, id: str) -> None:
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

    async def replay(self, handles: Handles) -> None:
        """Replay the histories of the runs."""
        folder = self.folder / "histories"
        folder.mkdir()
        for app, handle in handles.items():
            history = await handle.fetch_history()
            (folder / app).write_text(history.to_json(), encoding="utf-8")
        with self.worker(REPLAY=str(folder)) as replaying:
            statuses = await asyncio.to_thread(replaying.wait)
        assert not any(statuses), self.log()

    def each(self, value: Any, **otherwise: Any) -> dict[str, Any]:
        """Return the same for each agent, but for those that are named."""
        return {app: otherwise.get(app, value) for app in self.apps}

    def effects(self, kind: str, *, beside: str = "") -> dict[str, int]:
        """Return how often each agent's order was charged, or its mail was sent.

        Args:
            kind: ``charge``, ``mail``, ``refund``.
            beside: What its other orders have after its name.
        """
        return {app: self.provider.effects(f"{kind}:{app}{beside}") for app in self.apps}

    def requests(self, kind: str) -> dict[str, int]:
        """Return how many requests of a kind arrived for each agent's order."""
        sent = [body for _, body in self.provider.sent(kind)]
        return {app: sum(f'"{app}"' in body for body in sent) for app in self.apps}

    def model_calls(self) -> dict[str, int]:
        """How often the agents' models were asked."""
        counted = {app: self.folder / f"model_calls.{app}" for app in self.apps}
        return {app: len(one.read_text()) if one.exists() else 0 for app, one in counted.items()}

    async def rows(self) -> dict[str, list[Action]]:
        """Return the ledger's rows of each agent, by their positions."""
        async with ledger_pool(self.database_url, size=1) as pool:
            actions = await ActionLedger(pool, statement_seconds=10).list()
        found: dict[str, list[Action]] = {app: [] for app in self.apps}
        for one in sorted(actions, key=lambda one: one.position):
            found[next(app for app in self.apps if one.run_key.startswith(f"{app}-"))].append(one)
        return found

    async def states(self) -> dict[str, list[tuple[str, str]]]:
        """Return tool and state of each row."""
        return {
            app: sorted((one.tool.rpartition(".")[2], one.state) for one in rows)
            for app, rows in (await self.rows()).items()
        }

    async def command(self, *words: str) -> tuple[int, str]:
        """Run the `commitline` command, which talks to the same servers; return how it ended."""
        environment = {
            **os.environ,
            "TEMPORAL_ADDRESS": self.client.service_client.config.target_host,
            "COMMITLINE_DATABASE_URL": self.database_url,
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "commitline.cli", *words),
            env=environment,
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await asyncio.wait_for(process.communicate(), _SECONDS)
        return process.returncode or 0, said.decode()

    async def doctor(self, queue: str) -> dict[str, str]:
        """Return what `commitline doctor` says of the workers of a queue."""
        _, said = await self.command("doctor", "--queue", queue, "--json")
        return dict(next(one for one in json.loads(said) if one["name"] == f"queue {queue}"))

    @asynccontextmanager
    async def undoing(self, id: str) -> AsyncIterator[asyncio.Task[Any]]:
        """Order the undo of a run, and wait in a task for its report."""
        ordered = asyncio.create_task(self.command("undo", id, "--json"))

        async def report() -> Any:
            return json.loads((await ordered)[1])

        yield asyncio.create_task(report())

    async def waiting(self, handles: Handles) -> dict[str, Approval]:
        """Wait until a call of each run waits for a person; return the approvals."""
        async with AgentClient(self.client, self.settings) as ours:

            async def found(_: str, handle: WorkflowHandle[Any, Any]) -> Approval:
                while True:
                    if approvals := await ours.run(handle.id).approvals():
                        return approvals[0]
                    await asyncio.sleep(0.1)

            return await self._each(handles, found)

    async def decide(self, handles: Handles, found: Mapping[str, Approval], **said: Any) -> None:
        """Decide, as application code does."""
        async with AgentClient(self.client, self.settings) as ours:
            for app, handle in handles.items():
                await ours.run(handle.id).decide(found[app], by="ada", **said)

    @property
    def settings(self) -> Settings:
        """Those of a client of ours."""
        return Settings(database_url=self.database_url, task_queue=self.queue)

    def log(self) -> str:
        """Return the end of what the workers said."""
        if not self._log.exists():
            return ""
        lines = self._log.read_text(encoding="utf-8").splitlines()
        return "\n".join([one for one in lines if "arn" not in one[:120]][-60:])

    @property
    def _log(self) -> Path:
        return self.folder / "workers.log"

    async def _each(self, handles: Handles, what: Any) -> dict[str, Any]:
        """Do something with each run, side by side."""
        try:
            async with asyncio.timeout(_SECONDS):
                done = await asyncio.gather(*(what(app, one) for app, one in handles.items()))
        except Exception as err:
            err.add_note(self.log())
            raise
        return dict(zip(handles, done, strict=True))


async def _end(handle: WorkflowHandle[Any, Any]) -> str:
    """Wait for a run; return its result, or the type of the innermost failure."""
    try:
        return str(await handle.result())
    except WorkflowFailureError as err:
        cause: BaseException = err
        while cause.__cause__ is not None:
            cause = cause.__cause__
        return f"failed: {getattr(cause, 'type', None) or type(cause).__name__}"

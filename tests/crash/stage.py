"""A stage for crash tests: scenes with a world of their own, played side by side.

A `Scene` has a provider, a database, a task queue and a folder that nobody else uses. Worker
processes in it are real and are killed for real; everything that a test asserts is read from
the outside afterwards: the provider's counters, the ledger's rows, the run's history.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, LiteralString, TypeVar
from urllib.parse import urlsplit

import psycopg
from psycopg import sql
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.common import RawValue, RetryPolicy

from commitline.activities.conversation import Message, ToolResult
from commitline.activities.run_activities import CALL_MODEL, CallModel
from commitline.activities.wire import unpack
from commitline.client import AgentClient, RunHandle
from commitline.config import Settings
from commitline.devstack import DevStack
from commitline.ledger import Action
from commitline.testing.processes import ProviderProcess, WorkerProcess
from commitline.testing.provider import serve

T = TypeVar("T")

SHOP: Final = "commitline.examples.shop.app:app"
APPS: Final = Path(__file__).parent / "crash_apps"
_SIDE_BY_SIDE: Final = 5
"""Scenes at a time. More would starve each other's heartbeats on two cores."""


@dataclass(frozen=True)
class Aftermath:
    """What is left when the run has ended."""

    output: str
    actions: list[Action]
    conversation: list[Message]
    """What the model was shown last."""
    effects: dict[str, int]
    """What happened in the outside world, by kind and subject."""
    sent: dict[str, list[tuple[str | None, str]]]
    """Key and body of every request, by kind, in order of arrival."""
    turns: list[int]
    """The turn of every request that reached a counting model."""

    def row(self, tool: str) -> Action:
        """Return the one row of a tool."""
        (action,) = [action for action in self.actions if action.tool == tool]
        return action

    def rows(self, tool: str) -> list[Action]:
        """Return the rows of a tool by position."""
        return sorted((a for a in self.actions if a.tool == tool), key=lambda a: a.position)

    @property
    def results(self) -> list[ToolResult]:
        """What the model was told about the calls of its first message."""
        _, _, told = self.conversation
        assert told.role == "tool"
        return told.results

    def told(self, tool: str) -> ToolResult:
        """Return what the model was told about the one call of a tool."""
        (result,) = [result for result in self.results if result.name == tool]
        return result


class Scene:
    """A world of its own. Runs in it start at once and go on when a worker is there."""

    def __init__(
        self, *, client: AgentClient, provider: ProviderProcess, settings: Settings, folder: Path
    ) -> None:
        self.client = client
        self.provider = provider
        self.settings = settings
        self.run_id = f"run-{uuid.uuid4()}"
        self._folder = folder

    @property
    def temporal(self) -> Client:
        """The client of the session's Temporal server."""
        return self.client.temporal

    @property
    def environment(self) -> dict[str, str]:
        """What a worker in this scene is told."""
        return {
            "TEMPORAL_ADDRESS": self.temporal.service_client.config.target_host,
            "COMMITLINE_DATABASE_URL": self.settings.database_url,
            "COMMITLINE_TASK_QUEUE": self.settings.task_queue,
            "COMMITLINE_HEARTBEAT_SECONDS": "1",
            "SHOP_PROVIDER_URL": self.provider.url,
            "CRASH_FOLDER": str(self._folder),
        }

    @property
    def log(self) -> Path:
        """Where the workers of this scene write."""
        return self._folder / "workers.log"

    @property
    def hold(self) -> Path:
        """The file whose presence keeps the tools of `services` from coming back."""
        return self._folder / "hold"

    def worker(self, app: str, *, crash_at: str | None = None, **environment: str) -> WorkerProcess:
        """Return a worker process, to be started by ``with``."""
        return WorkerProcess(
            app,
            environment={**self.environment, **environment},
            log=self.log,
            crash_at=crash_at,
            cwd=APPS,
        )

    async def start(self, *, retry_policy: RetryPolicy | None = None) -> RunHandle:
        """Start the scene's run, of the agent that all apps here have."""
        return await self.client.start(
            "support", "Please charge order 4821.", id=self.run_id, retry_policy=retry_policy
        )

    async def crash(self, app: str, *, at: str) -> None:
        """Have a worker work until it kills itself."""
        with self.worker(app, crash_at=at) as worker:
            try:
                await asyncio.to_thread(worker.wait_until_killed)
            except Exception as err:
                err.add_note(self._tail())
                raise

    async def finish(self, app: str) -> Aftermath:
        """Have a fresh worker bring the run to its end; return what is left."""
        with self.worker(app):
            return await self.aftermath()

    async def crash_and_finish(self, app: str, *, at: str) -> Aftermath:
        """Start the run, kill its worker at a point, and have another one finish it."""
        await self.start()
        await self.crash(app, at=at)
        return await self.finish(app)

    async def aftermath(self) -> Aftermath:
        """Wait for the run's end and look around."""
        run = self.client.run(self.run_id)
        try:
            async with asyncio.timeout(60):
                result = await run.result()
        except Exception as err:
            err.add_note(self._tail())
            raise
        stats = await asyncio.to_thread(self.provider.stats)
        count_file = self._folder / "model_calls"
        return Aftermath(
            output=result.output,
            actions=list(await run.actions()),
            conversation=await self._conversation(),
            effects=stats["effects"],
            sent={
                kind: [(s["key"], s["body"]) for s in stats["sent"] if s["kind"] == kind]
                for kind in stats["requests"]
            },
            turns=[int(line) for line in count_file.read_text().split()]
            if count_file.exists()
            else [],
        )

    async def actions(self) -> list[Action]:
        """Return the rows as they are now."""
        return list(await self.client.run(self.run_id).actions())

    async def reset(self, *, before: str) -> None:
        """Reset the run to the workflow task that scheduled an activity, named by its id."""
        handle = self.temporal.get_workflow_handle(self.run_id)
        scheduled = [
            event.activity_task_scheduled_event_attributes
            for event in (await handle.fetch_history()).events
            if event.HasField("activity_task_scheduled_event_attributes")
        ]
        (task,) = {
            attributes.workflow_task_completed_event_id
            for attributes in scheduled
            if attributes.activity_id == before
        }
        await self.temporal.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=self.temporal.namespace,
                workflow_execution=WorkflowExecution(workflow_id=self.run_id),
                reason="a crash test",
                request_id=str(uuid.uuid4()),
                workflow_task_finish_event_id=task,
            )
        )

    def _tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    async def _conversation(self) -> list[Message]:
        history = await self.temporal.get_workflow_handle(self.run_id).fetch_history()
        asked = [
            event.activity_task_scheduled_event_attributes.input.payloads[0]
            for event in history.events
            if event.activity_task_scheduled_event_attributes.activity_type.name == CALL_MODEL
        ]
        return unpack(CallModel, RawValue(asked[-1])).messages


Script = Callable[[Scene], Awaitable[T]]


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something holds that only another process can bring about."""
    async with asyncio.timeout(60):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.05)


class Played(Generic[T]):
    """What came of each script; one that failed fails the tests that ask for it, and no other."""

    def __init__(self, outcomes: Mapping[str, T | BaseException]) -> None:
        self._outcomes = outcomes

    def __getitem__(self, name: str) -> T:
        outcome = self._outcomes[name]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


class Stage:
    """Makes scenes on the session's servers."""

    def __init__(self, devstack: DevStack, template: str, folder: Path) -> None:
        self._devstack = devstack
        self._template = template
        self._folder = folder
        self._copying = threading.Lock()

    def play(self, scripts: Mapping[str, Script[T]]) -> Played[T]:
        """Play each script in a scene of its own, a few at a time; return what they return.

        On a loop in a thread of its own, so that a fixture of any scope may call it.
        """

        async def play_all() -> list[T | BaseException]:
            places = asyncio.Semaphore(_SIDE_BY_SIDE)

            async def play_one(script: Script[T]) -> T:
                async with places, self.scene() as scene:
                    return await script(scene)

            played = (play_one(script) for script in scripts.values())
            return await asyncio.gather(*played, return_exceptions=True)

        with ThreadPoolExecutor(1) as thread:
            outcomes = thread.submit(lambda: asyncio.run(play_all())).result()
        return Played(dict(zip(scripts, outcomes, strict=True)))

    @asynccontextmanager
    async def scene(self) -> AsyncIterator[Scene]:
        """Make a scene and clear it away."""
        name = f"crash_{uuid.uuid4().hex}"
        folder = self._folder / name
        folder.mkdir()
        settings = Settings(
            database_url=urlsplit(self._devstack.database_url)._replace(path=f"/{name}").geturl(),
            task_queue=name,
        )
        temporal = await Client.connect(self._devstack.temporal_address)
        await asyncio.to_thread(self._create_database, name)
        with _provider() as provider:
            async with AgentClient(temporal, settings) as client:
                scene = Scene(client=client, provider=provider, settings=settings, folder=folder)
                yield scene
        await asyncio.to_thread(self._drop_database, name)

    def _create_database(self, name: str) -> None:
        with self._copying:
            self._run("create database {name} template {template}", name)

    def _drop_database(self, name: str) -> None:
        self._run("drop database {name} with (force)", name)

    def _run(self, statement: LiteralString, name: str) -> None:
        names = {"name": sql.Identifier(name), "template": sql.Identifier(self._template)}
        with psycopg.connect(self._devstack.database_url, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(**names))


@contextmanager
def _provider() -> Iterator[ProviderProcess]:
    """Serve the outside world from a thread here: a process each would cost a second each."""
    server = serve()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    provider = ProviderProcess()
    provider.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

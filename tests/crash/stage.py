"""A stage for crash tests: scenes with a world of their own, played side by side.

A `Scene` has a provider, a database, a task queue and a folder that nobody else uses. Worker
processes in it are real and are killed for real; everything that a test asserts is read from
the outside afterwards: the provider's counters, the ledger's rows, the run's history.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Generic, Literal, LiteralString, Self, TypeVar
from urllib.parse import urlsplit

import psycopg
from psycopg import sql
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.common import RetryPolicy

from commitline import RunHandle
from commitline.activities.contract.conversation import Message, RunResult, ToolResult
from commitline.activities.contract.encoding import from_text
from commitline.client import AgentClient
from commitline.config import Settings
from commitline.devstack import DevStack
from commitline.identity import thread_workflow
from commitline.ledger import Action, StoredMessage
from commitline.testing.processes import ProviderProcess, WorkerProcess
from commitline.testing.provider import serve
from commitline.tests.crash.fork_server import ForkServer

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
        _, _, told, *notices = self.conversation
        assert told.role == "tool"
        # What was unknown may have been settled before the next turn.
        assert all(one.text.startswith("[notice]") for one in notices)
        return told.results

    def told(self, tool: str) -> ToolResult:
        """Return what the model was told about the one call of a tool."""
        (result,) = [result for result in self.results if result.name == tool]
        return result


class Scene:
    """A world of its own. Runs in it start at once and go on when a worker is there."""

    def __init__(
        self,
        *,
        client: AgentClient,
        provider: ProviderProcess,
        settings: Settings,
        folder: Path,
        fork_server: ForkServer,
    ) -> None:
        self.client = client
        self.provider = provider
        self.settings = settings
        self.run_id = f"run-{uuid.uuid4()}"
        self.thread_id = f"talk-{uuid.uuid4()}"
        self._folder = folder
        self._fork_server = fork_server

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
            "COMMITLINE_BUILD_ID": "scene",  # hashing all code would be half of a worker's work
            # There are hundreds of scenes: who needs a relay asks for it.
            "COMMITLINE_RELAY_SECONDS": "0",
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
        return self._fork_server.worker(
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

    async def send(self, text: str, request_id: str) -> RunResult:
        """Say something in the scene's conversation, to the agent that all apps here have."""
        return await self.client.send(self.thread_id, text, agent="support", request_id=request_id)

    async def terminate(self) -> None:
        """Terminate the conversation's run in Temporal: no code of ours gets to know."""
        await self.temporal.get_workflow_handle(thread_workflow(self.thread_id)).terminate()

    async def messages(self) -> Sequence[StoredMessage]:
        """Return the conversation as it is now."""
        return await (await self.client.ledger()).threads.messages(self.thread_id)

    async def crash(self, app: str, *, at: str) -> None:
        """Have a worker work until it kills itself."""
        with self.worker(app, crash_at=at) as worker:
            try:
                await asyncio.to_thread(worker.wait_until_killed)
            except Exception as err:
                err.add_note(self.tail())
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
            err.add_note(self.tail())
            raise
        stats = await asyncio.to_thread(self.provider.stats)
        return Aftermath(
            output=result.output,
            actions=list(await run.actions()),
            conversation=await self._conversation(run),
            effects=stats["effects"],
            sent={
                kind: [(s["key"], s["body"]) for s in stats["sent"] if s["kind"] == kind]
                for kind in stats["requests"]
            },
            turns=self.turns(),
        )

    def turns(self) -> list[int]:
        """Return the turn of every request that has reached a counting model."""
        count_file = self._folder / "model_calls"
        return [int(line) for line in count_file.read_text().split()] if count_file.exists() else []

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

    def tail(self) -> str:
        """Return the end of what the workers said, for whoever reads a failure."""
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""

    async def _conversation(self, run: RunHandle) -> list[Message]:
        ledger = await self.client.ledger()
        stored = await ledger.threads.messages((await run.status()).run_key)
        messages = [from_text(Message, one.message) for one in stored]
        assert messages[-1].role == "assistant", "a run ends with what the model said last"
        return messages[:-1]


Script = Callable[[Scene], Awaitable[T]]


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something holds that only another process can bring about."""
    async with asyncio.timeout(60):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.05)


class Gate:
    """Keeps whoever writes a table waiting in the database until it is opened.

    By default that is every claim of a new action: it writes domain keys, whether the action has
    one or not. The commit of a model turn does not; it writes messages.
    """

    def __init__(
        self,
        scene: Scene,
        table: Literal["agent_domain_keys", "agent_messages"] = "agent_domain_keys",
    ) -> None:
        self._url = scene.settings.database_url
        self._table = table
        self._waiting = f"""
            pg_locks join pg_database on pg_database.oid = pg_locks.database
             where datname = current_database() and relation = '{table}'::regclass
               and not granted
        """

    async def __aenter__(self) -> Self:
        self._gate = await psycopg.AsyncConnection.connect(self._url)
        self._watch = await psycopg.AsyncConnection.connect(self._url, autocommit=True)
        await self._gate.execute(f"lock table {self._table} in share mode".encode())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._gate.close()
        await self._watch.close()

    async def reached(self, times: int = 1) -> None:
        """Wait until so many are waiting."""

        async def so_many_wait() -> bool:
            return len(await self._all(f"select pid from {self._waiting}")) >= times

        await until(so_many_wait)

    async def open(self) -> None:
        """Let all through."""
        await self._gate.rollback()

    async def passed(self) -> None:
        """Open it, and wait until those that were waiting have come to their end."""
        waiting = await self._all(f"select pid from {self._waiting}")
        await self.open()
        pids = ", ".join(str(pid) for (pid,) in waiting)
        at_work = f"select pid from pg_stat_activity where state = 'active' and pid in ({pids})"

        async def all_ended() -> bool:
            return not await self._all(at_work)

        await until(all_ended)

    async def turn_away(self) -> None:
        """End the sessions that wait, and so what they were to write; then open."""
        await self._all(f"select pg_terminate_backend(pid) from {self._waiting}")

        async def nobody_waits() -> bool:
            return not await self._somebody_waits()

        await until(nobody_waits)
        await self.open()

    async def _somebody_waits(self) -> bool:
        return bool(await self._all(f"select pid from {self._waiting}"))

    async def _all(self, query: str) -> list[tuple[Any, ...]]:
        return await (await self._watch.execute(query.encode())).fetchall()


async def freeze_in_claim(
    scene: Scene, worker: WorkerProcess, start: Callable[[], Awaitable[None]], *, commits: bool
) -> None:
    """Freeze a worker whose first claim is under way, and then have it commit, or be lost.

    Args:
        scene: Where.
        worker: Not started yet; it is started here, and the caller kills it.
        start: Has a run begin.
        commits: Whether the claim is committed.
    """

    async def is_dispatched() -> bool:
        ledger = await scene.client.ledger()
        return any(row.state == "dispatched" for row in await ledger.list())

    async with Gate(scene) as gate:
        await start()
        worker.__enter__()
        await gate.reached()
        assert worker.process is not None
        os.kill(worker.process.pid, signal.SIGSTOP)
        if commits:
            await gate.open()
            await until(is_dispatched)
        else:
            await gate.turn_away()


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

    def __init__(
        self, devstack: DevStack, template: str, folder: Path, fork_server: ForkServer
    ) -> None:
        self._devstack = devstack
        self._template = template
        self._folder = folder
        self._fork_server = fork_server
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
            relay_seconds=0,
        )
        temporal = await Client.connect(self._devstack.temporal_address)
        await asyncio.to_thread(self._create_database, name)
        with _provider() as provider:
            async with AgentClient(temporal, settings) as client:
                yield Scene(
                    client=client,
                    provider=provider,
                    settings=settings,
                    folder=folder,
                    fork_server=self._fork_server,
                )
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

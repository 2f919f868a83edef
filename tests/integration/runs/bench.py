"""A bench to run agents on: real servers, a worker inside the test's own process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import (
    ResetActivityRequest,
    ResetWorkflowExecutionRequest,
)
from temporalio.client import Client, WorkflowHistory

from commitline import RunHandle
from commitline.activities.app.agent import Agent
from commitline.activities.app.app import App
from commitline.activities.app.tool import Tool
from commitline.activities.contract.conversation import Message, ToolResult
from commitline.activities.contract.encoding import from_text
from commitline.activities.model.scripted_model import Answer, ScriptedModel
from commitline.client import AgentClient
from commitline.config import Settings
from commitline.identity import RunKey, run_key, thread_workflow
from commitline.ledger import Action, ActionLedger, ledger_pool
from commitline.worker import app_worker
from commitline.workflows import RunResult

T = TypeVar("T")


@dataclass(frozen=True)
class Ran:
    """A run that has ended well, and what it left."""

    id: str
    result: RunResult
    actions: Sequence[Action]
    messages: list[Message]
    """What the model was shown on the last turn."""

    @property
    def results(self) -> list[ToolResult]:
        """Every tool result that the model was told, in order."""
        return [result for message in self.messages for result in message.results]


@dataclass(frozen=True)
class Bench:
    """Runs apps against one Temporal server and one fresh database."""

    temporal: Client
    settings: Settings

    @asynccontextmanager
    async def serving(self, app: App, *, cached: int = 1000) -> AsyncIterator[AgentClient]:
        """Run a worker for the app while the body runs; yield a client beside it.

        Where runs are terminated under way, or outlive it, none may be ``cached``: the SDK
        drops those at the worker's end without ending their coroutines.
        """
        async with (
            ledger_pool(self.settings.database_url, size=4) as pool,
            app_worker(
                app,
                client=self.temporal,
                ledger=ActionLedger(pool, statement_seconds=self.settings.statement_seconds),
                settings=self.settings,
                max_cached_workflows=cached,
            ),
            AgentClient(self.temporal, self.settings) as client,
        ):
            yield client

    async def run(self, app: App, prompt: str = "go") -> Ran:
        """Run the app's agent on a worker of its own and say what it left."""
        async with self.serving(app) as client:
            return await self.start(client, prompt)

    async def start(self, client: AgentClient, prompt: str = "go") -> Ran:
        """Run the app's agent on a worker that is there."""
        return await self.outcome(await client.start("agent", prompt, id=fresh_id()))

    async def outcome(self, run: RunHandle) -> Ran:
        """Wait for a run and say what it left."""
        async with asyncio.timeout(60):  # a workflow task that is retried for ever must fail
            result = await run.result()
        return Ran(run.id, result, await run.actions(), await self.shown(run))

    async def shown(self, run: RunHandle) -> list[Message]:
        """Return what the model was shown last: the run's conversation, but for the answer.

        What is new travels with a turn and is committed with its answer, so this is all of it
        where the run has ended well.
        """
        rows = await self.sql(
            "select message::text from agent_messages where run_key = %(key)s"
            " and superseded_at is null order by version, ordinal",
            key=await self.run_key(run),
        )
        messages = [from_text(Message, text) for (text,) in rows]
        answers = [index for index, one in enumerate(messages) if one.completion is not None]
        return messages[: answers[-1]]

    async def run_key(self, run: RunHandle) -> RunKey:
        """Return the key under which the ledger has a run."""
        info = (await run.describe()).raw_description.workflow_execution_info
        return run_key(run.id, info.first_run_id)

    async def rerun(self, client: AgentClient, id: str) -> Ran:
        """Reset a run to its beginning, wait for its new end, and say what it left."""
        await self.reset(id)
        return await self.outcome(client.run(id))

    async def reset(self, id: str, *, to: int | None = None) -> None:
        """Reset a run to the end of a workflow task; by default the first: all is decided anew."""
        history = await self.history(id)
        first = next(
            event.event_id
            for event in history.events
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
        )
        await self.temporal.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=self.temporal.namespace,
                workflow_execution=WorkflowExecution(workflow_id=id),
                reason="a test",
                request_id=str(uuid.uuid4()),
                workflow_task_finish_event_id=to or first,
            )
        )

    async def task_before(self, id: str, at: str) -> int:
        """Return the end of the workflow task that began the call, or the turn, at a position."""
        return next(
            event.activity_task_scheduled_event_attributes.workflow_task_completed_event_id
            for event in (await self.history(id)).events
            if event.activity_task_scheduled_event_attributes.activity_id == at
        )

    async def reset_activity(self, id: str, at: str) -> None:
        """Have the call at a position begin anew, as `temporal activity reset` does."""
        await self.temporal.workflow_service.reset_activity(
            ResetActivityRequest(
                namespace=self.temporal.namespace,
                execution=WorkflowExecution(workflow_id=id),
                id=at,
            )
        )

    async def history(self, id: str) -> WorkflowHistory:
        """Return the history of the current execution."""
        return await self.temporal.get_workflow_handle(id).fetch_history()

    async def taken_up(self, thread: str, requests: int) -> None:
        """Wait until the run of a conversation has taken so many requests up."""

        async def so_many() -> bool:
            events = (await self.history(thread_workflow(thread))).events
            accepted = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED
            return sum(event.event_type == accepted for event in events) >= requests

        await eventually(so_many)

    async def sql(self, statement: Any, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement on the ledger's database, past the ledger."""
        async with await psycopg.AsyncConnection.connect(self.settings.database_url) as connection:
            cursor = await connection.execute(statement, parameters)
            return await cursor.fetchall() if cursor.description else []


def fresh_id(name: str = "run") -> str:
    """Return a workflow id of this test alone: the tests share one Temporal server."""
    return f"{name}-{uuid.uuid4()}"


def one_agent(
    tools: Sequence[Tool], answers: Sequence[Answer], *, max_steps: int = 50, name: str = "agent"
) -> App:
    """Make an app of one agent that says what a script tells it."""
    model = ScriptedModel("scripted", answers)
    return App(agents=[Agent(name, model, "Do it.", tools=tools, max_steps=max_steps)])


async def eventually(ask: Callable[[], Awaitable[T]], *, seconds: float = 60) -> T:
    """Ask until the answer is truthy, and return it."""
    deadline = time.monotonic() + seconds
    while not (answer := await ask()):
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.02)
    return answer


async def rolled_over(run: RunHandle) -> bool:
    """Whether a run has continued as new."""
    described = await run.describe()
    return described.raw_description.workflow_execution_info.first_run_id != described.run_id


async def commitline(
    bench: Bench, *arguments: str, answer: str | None = None, columns: int = 80
) -> subprocess.CompletedProcess[str]:
    """Run the command as ada does, beside a bench's workers; ``answer`` is what she types."""
    foreign = ("TEMPORAL_", "COMMITLINE_", "SHOP_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    environment = {
        **kept,
        "COLUMNS": str(columns),
        "USER": "ada",
        "TEMPORAL_ADDRESS": bench.temporal.service_client.config.target_host,
        "COMMITLINE_DATABASE_URL": bench.settings.database_url,
        "COMMITLINE_TASK_QUEUE": bench.settings.task_queue,
    }
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "commitline.cli", *arguments],
        env=environment,
        input=answer,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

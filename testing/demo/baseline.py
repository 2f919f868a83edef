"""The same shop on plain Temporal, as one writes it by hand, without the ledger.

There is a workflow, a model activity, and an activity for each tool with Temporal's default retry
policy. The tool functions are the shop's own. Nothing chooses an idempotency key before the call
and keeps it. So each attempt makes one up, and to the provider a second attempt is another charge.

    python -m commitline.testing.demo.baseline commitline.examples.shop.app:app
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import structlog
from pydantic_core import to_jsonable_python
from temporalio import activity, workflow
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from ...activities.app import App, Tool, ToolContext
from ...activities.app.load import load_app
from ...activities.contract.conversation import Completion, Message, ToolResult
from ...activities.model.model import ModelRequest
from ...config import Settings, connect_temporal, core_runtime
from ...identity import ActionKey, RunKey, position
from ...log_output import configure_logging
from ...worker import STICKY_SECONDS

PLAIN_AGENT: Final = "PlainAgent"
_REQUEST_MODEL: Final = "request_model"
_ATTEMPT: Final = timedelta(seconds=5)
"""Start-to-close time-out. There are no heartbeats, so Temporal notices a dead worker by it."""


@workflow.defn(name=PLAIN_AGENT)
class PlainAgent:
    """The loop of an agent: request the model, call its tools side by side, and again."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Return the model's last text."""
        messages = [Message.user(prompt)]
        step = 0
        while True:
            completion: Completion = await workflow.execute_activity(
                _REQUEST_MODEL, messages, result_type=Completion, start_to_close_timeout=_ATTEMPT
            )
            if not completion.calls:
                return completion.text
            contents: list[str] = await asyncio.gather(
                *(
                    workflow.execute_activity(
                        call.name,
                        call.arguments,
                        result_type=str,
                        start_to_close_timeout=_ATTEMPT,
                    )
                    for call in completion.calls
                )
            )
            results = [
                ToolResult(position(step, index), call.id, call.name, "ok", content)
                for index, (call, content) in enumerate(
                    zip(completion.calls, contents, strict=True)
                )
            ]
            messages += [Message.assistant(completion), Message.tool(results)]
            step += 1


def _model_activity(app: App) -> Callable[..., Any]:
    agent = app.agents[0]

    @activity.defn(name=_REQUEST_MODEL)
    async def request_model(messages: list[Message]) -> Completion:
        model = app.model(agent=agent.name, name=agent.model_name)
        tools = [tool.definition for tool in agent.tools]
        return await model.complete(
            ModelRequest(agent.model_name, agent.instructions, tools, messages)
        )

    return request_model


def _tool_activity(tool: Tool) -> Callable[..., Any]:
    @activity.defn(name=tool.name)
    async def call(arguments: str) -> str:
        info = activity.info()
        context = ToolContext(
            idempotency_key=str(uuid4()),
            action_key=ActionKey(""),
            run_key=RunKey(f"{info.workflow_id}/{info.workflow_run_id}"),
            position=position(0, 0),
            tool=tool.name,
            taken_over=False,
        )
        value = await tool.fn(**tool.bind(arguments, context))
        return json.dumps(to_jsonable_python(value))

    return call


async def run_plain_worker(app_name: str) -> None:
    """Run a worker until it is killed."""
    app = load_app(app_name)
    settings = Settings.load()
    worker = Worker(
        await connect_temporal({"runtime": core_runtime()}),
        task_queue=settings.task_queue,
        workflows=[PlainAgent],
        activities=[_model_activity(app), *(_tool_activity(tool) for tool in app.tools)],
        workflow_runner=UnsandboxedWorkflowRunner(),
        # As Commitline's worker has it, so that the ledger is the only difference.
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=STICKY_SECONDS),
    )
    structlog.get_logger("commitline").info("worker.started", app=app_name, pid=os.getpid())
    await worker.run()


def main() -> None:
    """Run the worker of the app that the command names."""
    configure_logging()
    asyncio.run(run_plain_worker(sys.argv[1]))


if __name__ == "__main__":
    main()

"""The other side of two benches: an agent in the official OpenAI Agents integration for Temporal.

It is what that integration's documentation shows: the OpenAI Agents SDK's `Runner` in a
workflow, with tools made of activities; a plugin, for client and worker, makes an activity of
each model request. Its worker has the options of ours, sandbox included. Only two things
differ from its defaults, both in its favour or neutral: tracing is off, so that nothing is
sent and no header is kept, and a scripted model answers.

The integration is an extra, so nothing here is imported from it by name: without it the
module can be imported and checked all the same.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

from commitline.bench.harness import WORKER_OPTIONS, Run
from commitline.worker import workflow_runner

NAME: Final = "temporalio-openai-agents"
HOW_TO_INSTALL: Final = "pip install -e '.[bench]'"
TIMEOUT: Final = timedelta(minutes=15)
QUEUE: Final = "official"


def _optional(module: str) -> Any:
    """Import a module of the integration; None where it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        return None


integration: Final[Any] = _optional("temporalio.openai_agents")
agents: Final[Any] = _optional("agents")
INSTALLED: Final = None not in (integration, agents)


@dataclass(frozen=True)
class Job:
    """What an agent is told, and its one tool."""

    instructions: str
    prompt: str
    tool: Callable[..., Any]
    """An activity."""
    calls: Sequence[Mapping[str, Any]]
    """The arguments of the call that the model makes at each turn."""
    answer: str
    """What it says after them."""


_jobs: Final[dict[str, Job]] = {}
"""By task queue: what a workflow of that queue does. The module is passed through its sandbox."""


@workflow.defn
class OfficialAgent:
    """An agent as the integration's documentation writes it."""

    @workflow.run
    async def run(self) -> str:
        """Go on until the model makes no call."""
        job = _jobs[workflow.info().task_queue]
        tool = integration.workflow.activity_as_tool(job.tool, start_to_close_timeout=TIMEOUT)
        agent = agents.Agent(name="bench", instructions=job.instructions, tools=[tool])
        result = await agents.Runner.run(
            agent,
            input=job.prompt,
            max_turns=len(job.calls) + 1,
            run_config=agents.RunConfig(tracing_disabled=True),
        )
        return str(result.final_output)


class Scripted:
    """A model, and its own provider, that answers by how many calls stand in the request."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def get_model(self, model_name: str | None) -> Scripted:
        """Return the one model."""
        return self

    async def get_response(self, *, input: Any, **rest: Any) -> Any:
        """Answer the turn that the request has come to."""
        items = [] if isinstance(input, str) else input
        turn = sum(item.get("type") == "function_call" for item in items)
        builders = integration.testing.ResponseBuilders
        if turn == len(self._job.calls):
            return builders.output_message(self._job.answer)
        return builders.tool_call(
            json.dumps(self._job.calls[turn]),
            self._job.tool.__name__,
            call_id=f"call_{turn}",  # the SDK drops what has an id that it has seen
            item_id=f"fc_{turn}",
        )


@asynccontextmanager
async def with_official(address: str, job: Job, *, queue: str = QUEUE) -> AsyncIterator[Run]:
    """Serve the agent while the body runs."""
    _jobs[queue] = job
    plugin = integration.OpenAIAgentsPlugin(
        model_params=integration.ModelActivityParameters(start_to_close_timeout=TIMEOUT),
        model_provider=Scripted(job),
    )
    client = await Client.connect(address, plugins=[plugin])
    worker = Worker(
        client,
        task_queue=queue,
        workflows=[OfficialAgent],
        activities=[job.tool],
        workflow_runner=workflow_runner(),
        **WORKER_OPTIONS,
    )
    async with worker:

        async def run(id: str) -> str:
            return await client.execute_workflow(OfficialAgent.run, id=id, task_queue=queue)

        yield run

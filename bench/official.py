"""The other side of three benches: an agent in the official OpenAI Agents integration for Temporal.

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
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from commitline.bench.harness import Run

NAME: Final = "temporalio-openai-agents"
HOW_TO_INSTALL: Final = "pip install -e '.[bench]'"
TIMEOUT: Final = timedelta(minutes=15)
QUEUE: Final = "official"
MAX_TURNS: Final = 10_000


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
class Script:
    """An agent with one tool, and what its model answers."""

    instructions: str
    tool: Callable[..., Any]
    """An activity."""
    calls: Callable[[str, int], Sequence[Mapping[str, Any]]]
    """Returns the arguments of the calls that the model makes for a prompt at a turn, or none."""
    answer: str
    """What it says after them."""


_scripts: Final[dict[str, Script]] = {}
"""By task queue: what a workflow of that queue does. The module is passed through its sandbox."""


@workflow.defn
class OfficialAgent:
    """An agent as the integration's documentation writes it."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Go on until the model makes no call."""
        script = _scripts[workflow.info().task_queue]
        tool = integration.workflow.activity_as_tool(script.tool, start_to_close_timeout=TIMEOUT)
        agent = agents.Agent(name="bench", instructions=script.instructions, tools=[tool])
        result = await agents.Runner.run(
            agent,
            input=prompt,
            max_turns=MAX_TURNS,
            run_config=agents.RunConfig(tracing_disabled=True),
        )
        return str(result.final_output)


class Scripted:
    """A model, and its own provider, that answers by the prompt and by the turns that follow it."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def get_model(self, model_name: str | None) -> Scripted:
        """Return the one model."""
        return self

    async def get_response(self, *, input: Any, **rest: Any) -> Any:
        """Answer the turn that the request has come to."""
        items = [] if isinstance(input, str) else input
        prompt = input if isinstance(input, str) else items[0]["content"]
        calls = [item for item in items if item.get("type") == "function_call"]
        turn = len({item["call_id"].partition("_")[0] for item in calls})
        arguments = self._script.calls(prompt, turn)
        if not arguments:
            return integration.testing.ResponseBuilders.output_message(self._script.answer)
        return agents.ModelResponse(
            output=[self._call(turn, index, given) for index, given in enumerate(arguments)],
            usage=agents.Usage(),
            response_id=None,
        )

    def _call(self, turn: int, index: int, arguments: Mapping[str, Any]) -> Any:
        [made] = integration.testing.ResponseBuilders.tool_call(
            json.dumps(arguments),
            self._script.tool.__name__,
            call_id=f"{turn}_{index}",  # the SDK drops what has an id that it has seen
            item_id=f"fc_{turn}_{index}",
        ).output
        return made


@asynccontextmanager
async def with_official(
    address: str, script: Script, *, queue: str = QUEUE, more: Sequence[Any] = ()
) -> AsyncIterator[Run]:
    """Serve the agent while the body runs, with more plugins on its client."""
    _scripts[queue] = script
    plugin = integration.OpenAIAgentsPlugin(
        model_params=integration.ModelActivityParameters(start_to_close_timeout=TIMEOUT),
        model_provider=Scripted(script),
    )
    client = await Client.connect(address, plugins=[plugin, *more])
    worker = Worker(
        client,
        task_queue=queue,
        workflows=[OfficialAgent],
        activities=[script.tool],
        workflow_runner=SandboxedWorkflowRunner(
            restrictions=SandboxRestrictions.default.with_passthrough_modules("commitline")
        ),
    )

    async def run(id: str, prompt: str) -> str:
        return await client.execute_workflow(OfficialAgent.run, prompt, id=id, task_queue=queue)

    async with worker:
        yield run

"""The pydantic-ai side of `integrations.py`: the agent of its documentation, in a workflow.

Its worker has the options of the others, sandbox included, and a scripted model answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.durable_exec.temporal import AgentPlugin, PydanticAIPlugin, TemporalDurability
from pydantic_ai.models.function import AgentInfo, FunctionModel
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from commitline import Effect
from commitline.bench.harness import Run
from commitline.bench.job import DONE, INSTRUCTIONS, Job, receipt_of
from commitline.integrations import effect

TIMEOUT: Final = timedelta(minutes=15)


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Answer the turn that the messages have come to."""
    turn = sum(isinstance(one, ModelResponse) for one in messages)
    [prompt] = [part.content for part in messages[0].parts if part.part_kind == "user-prompt"]
    calls = Job.of(str(prompt)).arguments(turn)
    if not calls:
        return ModelResponse(parts=[TextPart(DONE)])
    return ModelResponse(parts=[ToolCallPart("charge_card", given) for given in calls])


agent: Final = Agent(
    FunctionModel(scripted),
    name="bench",
    instructions=INSTRUCTIONS,
    capabilities=[TemporalDurability(activity_config={"start_to_close_timeout": TIMEOUT})],
)


@agent.tool_plain(metadata=effect(Effect.IDEMPOTENT).metadata)
async def charge_card(order_id: str, amount_cents: int) -> dict[str, Any]:
    """Charge an order."""
    return receipt_of(order_id)


@workflow.defn
class DurableAgent:
    """An agent as pydantic-ai's documentation writes it."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Go on until the model makes no call."""
        return (await agent.run(prompt)).output


@asynccontextmanager
async def with_pydantic_ai(
    address: str, *, queue: str, more: Sequence[Any] = ()
) -> AsyncIterator[Run]:
    """Serve the agent while the body runs, with more plugins on its client."""
    client = await Client.connect(address, plugins=[PydanticAIPlugin(), *more])
    worker = Worker(
        client,
        task_queue=queue,
        workflows=[DurableAgent],
        plugins=[AgentPlugin(agent)],
        workflow_runner=SandboxedWorkflowRunner(
            restrictions=SandboxRestrictions.default.with_passthrough_modules("commitline")
        ),
    )

    async def run(id: str, prompt: str) -> str:
        return await client.execute_workflow(DurableAgent.run, prompt, id=id, task_queue=queue)

    async with worker:
        yield run

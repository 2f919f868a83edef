"""An agent of the OpenAI Agents SDK, as you would write it without Commitline.

Two things are Commitline's: `LedgerPlugin`, last among the client's plugins, and an `effect` on
each tool.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    from agents import Agent, RunConfig, Runner
    from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
    from temporalio.openai_agents.testing import ResponseBuilders, TestModel, TestModelProvider
    from temporalio.openai_agents.workflow import activity_as_tool

    from commitline import Effect, current
    from commitline.integrations import LedgerPlugin, effect

TIMEOUT = timedelta(seconds=30)


@effect(Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge", key_ttl=timedelta(hours=24))
@activity.defn
async def charge_card(order_id: str, cents: int) -> str:
    """Charge an order."""
    # Your provider is here; it gets the key, and so charges once.
    return f"charged {cents} cents under the key {current().idempotency_key}"


@effect(Effect.AT_MOST_ONCE)
@activity.defn
async def send_mail(to: str) -> str:
    """Send the receipt."""
    return f"mailed {to}"


@workflow.defn
class Clerk:
    """Charges and mails."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Answer a prompt."""
        tools: list[Any] = [
            activity_as_tool(one, start_to_close_timeout=TIMEOUT)
            for one in (charge_card, send_mail)
        ]
        agent = Agent(name="clerk", instructions="You are a shop's clerk.", tools=tools)
        config = RunConfig(tracing_disabled=True)
        return str((await Runner.run(agent, input=prompt, run_config=config)).final_output)


CALLS = (
    ("charge_card", '{"order_id": "4821", "cents": 4900}'),
    ("send_mail", '{"to": "ada@example.com"}'),
)


class Scripted(TestModel):
    """Calls both tools, one after the other, and tells what they answered."""

    async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **k: Any) -> Any:
        """Answer by what the tools have answered so far."""
        told = [str(one["output"]) for one in input if "output" in one]
        if len(told) == len(CALLS):
            return ResponseBuilders.output_message("; ".join(told))
        name, arguments = CALLS[len(told)]
        response: Any = ResponseBuilders.tool_call(arguments, name)
        response.output[0].call_id = f"call_{len(told)}"
        return response


def plugins() -> list[Any]:
    """Return the client's plugins. Without ``model_provider`` the agent asks OpenAI."""
    scripted = TestModelProvider(Scripted(lambda: ResponseBuilders.output_message("")))
    return [
        OpenAIAgentsPlugin(
            model_params=ModelActivityParameters(start_to_close_timeout=TIMEOUT),
            model_provider=scripted,  # a real provider: leave this line out, set OPENAI_API_KEY
        ),
        LedgerPlugin(),
    ]

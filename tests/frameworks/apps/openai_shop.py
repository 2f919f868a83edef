"""A worker with an agent of the OpenAI Agents integration."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    from agents import Agent, RunConfig, Runner
    from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
    from temporalio.openai_agents.testing import ResponseBuilders, TestModel, TestModelProvider
    from temporalio.openai_agents.workflow import activity_as_tool

    from commitline import Effect
    from commitline.integrations import LedgerPlugin, effect
    from commitline.tests.frameworks.apps import shop

_TIMEOUT = timedelta(seconds=20)


@effect(Effect.IDEMPOTENT, idempotency_key="order-{order_id}-refund")
@activity.defn
async def refund(order_id: str, result: str) -> str:
    """Refund what was charged."""
    return shop.refund(order_id, result, key=shop.key_of_call())


@effect(
    Effect.IDEMPOTENT,
    idempotency_key="order-{order_id}-charge",
    key_ttl=timedelta(hours=24),
    compensate=refund,
)
@activity.defn
async def charge_card(order_id: str, cents: int) -> str:
    """Charge an order."""
    return shop.charge(order_id, cents, key=shop.key_of_call())


@effect(Effect.AT_MOST_ONCE, approve=shop.APPROVE)
@activity.defn
async def send_mail(to: str) -> str:
    """Send a mail."""
    return shop.mail(to, key=shop.key_of_call())


@workflow.defn
class Clerk:
    """Charges, mails, and says what it was told of both."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Answer a prompt."""
        tools: list[Any] = [
            activity_as_tool(
                one, start_to_close_timeout=_TIMEOUT, heartbeat_timeout=timedelta(seconds=1)
            )
            for one in (charge_card, send_mail)
        ]
        agent = Agent(name="clerk", instructions="", tools=tools)
        config = RunConfig(tracing_disabled=True)
        result = await Runner.run(agent, input=prompt, run_config=config)
        told = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
        return " | ".join(map(str, told))


def _turns() -> Any:
    """Return the model's answers: it is a generator, and so one for each process."""
    calls = (
        ("charge_card", '{"order_id": "4821", "cents": 4900}'),
        ("send_mail", '{"to": "ada@example.com"}'),
    )

    class Model(TestModel):
        async def get_response(
            self, system_instructions: Any, input: Any, *rest: Any, **k: Any
        ) -> Any:
            shop.count_model_call()
            answered = [one for one in input if one_type(one) == "function_call_output"]
            if len(answered) < len(calls):
                name, arguments = calls[len(answered)]
                response: Any = ResponseBuilders.tool_call(arguments, name)
                response.output[0].call_id = f"call_{len(answered)}"
                return response
            return ResponseBuilders.output_message("done")

    return Model(lambda: ResponseBuilders.output_message("unused"))


def one_type(item: Any) -> str:
    """Return the type of an item of a model's input."""
    return item.get("type", "") if isinstance(item, dict) else getattr(item, "type", "")


async def main() -> None:
    """Serve until the process is killed."""
    plugins: list[Any] = [
        OpenAIAgentsPlugin(
            model_params=ModelActivityParameters(start_to_close_timeout=_TIMEOUT),
            model_provider=TestModelProvider(_turns()),
        )
    ]
    if shop.GUARDED:
        plugins.append(LedgerPlugin())
    await shop.serve(Clerk, client=plugins, activities=[charge_card, send_mail, refund])

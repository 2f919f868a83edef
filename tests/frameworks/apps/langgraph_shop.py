"""An agent of LangGraph: both tools run in one node, one after the other."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from langchain_core.messages import AIMessage, ToolMessage, convert_to_messages
    from langchain_core.tools import tool
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.types import Command, interrupt
    from temporalio.langgraph import LangGraphPlugin, graph

    from commitline import Effect
    from commitline.integrations import LedgerPlugin, effect, guarded
    from commitline.tests.frameworks.tools import shop

ASKS = bool(os.environ.get("ASKS"))


@tool
@effect(Effect.IDEMPOTENT, key_ttl=timedelta(hours=24))
async def charge_card(order_id: str, cents: int) -> str:
    """Charge an order."""
    return await shop.charge(order_id, cents, key=shop.key_of_call())


@tool
@effect(Effect.AT_MOST_ONCE)
def send_mail(to: str) -> str:
    """Send a mail, in a thread."""
    if ASKS:
        to = interrupt({"to": to})
    return shop.mail_in_thread(to, key=shop.key_of_call())


TOOLS: dict[str, Any] = {
    one.name: guarded(one) if shop.GUARDED else one for one in (charge_card, send_mail)
}


async def model(state: MessagesState) -> dict[str, Any]:
    """Answer as a model does: call both tools in one message, or end."""
    shop.count_model_call()
    if any(isinstance(one, ToolMessage) for one in _messages(state)):
        return {"messages": [AIMessage("done")]}
    both = [*shop.turn(shop.NAME, 0), *shop.turn(shop.NAME, 1)]
    calls = [{"name": name, "args": args, "id": name} for name, args in both]
    return {"messages": [AIMessage("", tool_calls=calls)]}


async def tools(state: MessagesState) -> Any:
    """Call the tools of the last message, one after the other."""
    calls = _messages(state)[-1].tool_calls
    return {"messages": [await TOOLS[call["name"]].ainvoke(call) for call in calls]}


def _messages(state: MessagesState) -> list[Any]:
    """Return the messages, which arrive in an activity as JSON."""
    return convert_to_messages(state["messages"])


async def _next(state: MessagesState) -> str:
    return "tools" if getattr(state["messages"][-1], "tool_calls", None) else END


def clerk_graph() -> Any:
    """Return the agent's graph, whose nodes are activities."""
    built: Any = StateGraph(MessagesState)
    options = {"execute_in": "activity", **shop.OPTIONS}
    for node in (model, tools):
        built.add_node(node.__name__, node, metadata=dict(options))
    built.add_edge(START, "model")
    built.add_conditional_edges("model", _next, ["tools", END])
    built.add_edge("tools", "model")
    return built


@workflow.defn
class Clerk:
    """Charges, mails, and says what it was told of both."""

    def __init__(self) -> None:
        self._answer: str | None = None

    @workflow.signal
    def answer(self, to: str) -> None:
        """Say to whom the mail goes."""
        self._answer = to

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Answer a prompt."""
        from langgraph.checkpoint.memory import InMemorySaver

        compiled: Any = graph("clerk").compile(checkpointer=InMemorySaver() if ASKS else None)
        config = {"configurable": {"thread_id": "1"}}
        state = await compiled.ainvoke({"messages": [("user", prompt)]}, config)
        if ASKS:
            await workflow.wait_condition(lambda: self._answer is not None)
            state = await compiled.ainvoke(Command(resume=self._answer), config)
        told = [str(one.content) for one in state["messages"] if isinstance(one, ToolMessage)]
        return shop.end(prompt, told)


def app() -> shop.App:
    """Return the worker."""
    plugins: list[Any] = [LangGraphPlugin(graphs={"clerk": clerk_graph()})]
    if shop.GUARDED:
        plugins.append(LedgerPlugin(**shop.PLUGIN, coarse=["clerk.*"], models=["clerk.model"]))
    return shop.App(Clerk, plugins)

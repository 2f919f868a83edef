"""An agent of LangGraph whose nodes are activities, as you would write it without Commitline.

Three things are Commitline's: `LedgerPlugin`, last among the client's plugins, which names the
graph's nodes; an `effect` on each tool; and `guarded` around the tools, of which one node may call
several.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from langchain_core.messages import AIMessage, ToolMessage, convert_to_messages
    from langchain_core.tools import tool
    from langgraph.graph import END, START, MessagesState, StateGraph
    from temporalio.langgraph import LangGraphPlugin, graph

    from commitline import Effect, current
    from commitline.integrations import LedgerPlugin, effect, guarded


@tool
@effect(Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge", key_ttl=timedelta(hours=24))
async def charge_card(order_id: str, cents: int) -> str:
    """Charge an order."""
    # Your provider is here; it gets the key, and so charges once.
    return f"charged {cents} cents under the key {current().idempotency_key}"


@tool
@effect(Effect.AT_MOST_ONCE)
async def send_mail(to: str) -> str:
    """Send the receipt."""
    return f"mailed {to}"


TOOLS: dict[str, Any] = {one.name: guarded(one) for one in (charge_card, send_mail)}
CALLS = (
    ("charge_card", {"order_id": "4823", "cents": 4900}),
    ("send_mail", {"to": "ada@example.com"}),
)


async def model(state: MessagesState) -> dict[str, Any]:
    """Call both tools in one message, and tell what they answered."""
    told = [str(one.content) for one in _messages(state) if isinstance(one, ToolMessage)]
    if told:
        return {"messages": [AIMessage("; ".join(told))]}
    # A real provider: return {"messages": [await chat.bind_tools([*TOOLS]).ainvoke(...)]}
    calls = [{"name": name, "args": args, "id": name} for name, args in CALLS]
    return {"messages": [AIMessage("", tool_calls=calls)]}


async def tools(state: MessagesState) -> dict[str, Any]:
    """Make the calls of the last message, one after the other."""
    calls = _messages(state)[-1].tool_calls
    return {"messages": [await TOOLS[call["name"]].ainvoke(call) for call in calls]}


def _messages(state: MessagesState) -> list[Any]:
    return convert_to_messages(state["messages"])  # they arrive in an activity as JSON


async def _next(state: MessagesState) -> str:
    return "tools" if getattr(state["messages"][-1], "tool_calls", None) else END


def clerk() -> Any:
    """Return the agent's graph."""
    built: Any = StateGraph(MessagesState)
    options = {"execute_in": "activity", "start_to_close_timeout": timedelta(seconds=30)}
    for node in (model, tools):
        built.add_node(node.__name__, node, metadata=dict(options))
    built.add_edge(START, "model")
    built.add_conditional_edges("model", _next, ["tools", END])
    built.add_edge("tools", "model")
    return built


@workflow.defn
class Clerk:
    """Charges and mails."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Answer a prompt."""
        compiled: Any = graph("clerk").compile()
        state = await compiled.ainvoke({"messages": [("user", prompt)]})
        return str(state["messages"][-1].content)


def plugins() -> list[Any]:
    """Return the client's plugins."""
    return [
        LangGraphPlugin(graphs={"clerk": clerk()}),
        LedgerPlugin(coarse=["clerk.*"], models=["clerk.model"]),
    ]

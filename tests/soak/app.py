"""The soak's application: tools of each effect, what undoes them, and a model with a script.

Each request names the action that it is made for, so that every effect can be laid to its row.
"""

from __future__ import annotations

import asyncio
import json
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

from commitline import (
    NEVER_HAPPENED,
    Agent,
    App,
    Effect,
    NotAttempted,
    Plan,
    StillInProgress,
    Tool,
    ToolContext,
    ToolRefused,
    step,
    tool,
)
from commitline.activities.contract.conversation import Completion, Message
from commitline.activities.model import ModelRequest
from commitline.activities.model.scripted_model import call, say
from commitline.tests.soak.script import (
    LOCAL,
    Call,
    PlanScript,
    is_local,
    is_prompt,
    read_prompt,
    script_of,
)

PROVIDER: Final = "SOAK_PROVIDER_URL"
"""The environment's variable."""
AGENT: Final = "soak"
LOCAL_AGENT: Final = "soak-local"
TOOL_SECONDS: Final = 3.0
SETTLES_AFTER: Final = timedelta(seconds=2)
APPROVAL_EXPIRES: Final = timedelta(seconds=4)
_NODE_SECONDS: Final = 30.0
_SOCKET_SECONDS: Final = 10.0
_MEANING: Final = {402: ToolRefused, 409: StillInProgress, 429: NotAttempted}
_NOT_FOUND: Final = 404


# A relay's calls have no agent's deadline, and what one of them left is its own for so long.
_tool = partial(tool, tool_timeout=TOOL_SECONDS)


@_tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-refund")
async def refund(ctx: ToolContext, order_id: str) -> dict[str, Any]:
    """Undo the charge of an order."""
    return await _undo(ctx, "refunds", order_id)


@_tool(
    effect=Effect.IDEMPOTENT,
    idempotency_key="order-{order_id}-charge",
    compensate=refund,
)
async def charge(ctx: ToolContext, order_id: str, amount_cents: int) -> dict[str, Any]:
    """Charge an order: once, whichever run asks."""
    body = {"order_id": order_id, "amount_cents": amount_cents, "action": ctx.action_key}
    return await asyncio.to_thread(_send, "/charges", body, ctx.idempotency_key)


@_tool(effect=Effect.IDEMPOTENT)
async def unship(ctx: ToolContext, order_id: str) -> dict[str, Any]:
    """Undo a shipment."""
    return await _undo(ctx, "unships", order_id)


@_tool(effect=Effect.IDEMPOTENT, compensate=unship, relay="resend")
def ship(ctx: ToolContext, order_id: str) -> dict[str, Any]:
    """Ship an order: once per call, by a key of the call's own, in a thread."""
    return _send("/ships", {"order_id": order_id, "action": ctx.action_key}, ctx.idempotency_key)


def find_transfer(args: dict[str, Any], idempotency_key: str) -> Any:
    """Ask for the transfer of a call. Every call has a key of its own."""
    try:
        return _send(f"/lookup/transfer/{idempotency_key}")
    except urllib.error.HTTPError as err:
        if err.code == _NOT_FOUND:
            return NEVER_HAPPENED
        raise


@_tool(effect=Effect.AT_MOST_ONCE)
async def take_back(ctx: ToolContext, to: str) -> dict[str, Any]:
    """Undo a transfer; nobody knows whether that arrived."""
    return await _undo(ctx, "take_backs", to)


@_tool(
    effect=Effect.LOOKUP,
    lookup=find_transfer,
    lookup_settles_after=SETTLES_AFTER,
    compensate=take_back,
)
def transfer(ctx: ToolContext, to: str) -> dict[str, Any]:
    """Transfer money to somebody, twice if asked twice; it can be looked up."""
    body = {"to": to, "reference": ctx.idempotency_key, "action": ctx.action_key}
    return _send("/transfers", body)


@_tool(effect=Effect.AT_MOST_ONCE)
async def mail(ctx: ToolContext, to: str) -> dict[str, Any]:
    """Mail somebody; nobody knows whether it arrived."""
    return await asyncio.to_thread(_send, "/mails", {"to": to, "action": ctx.action_key})


@_tool(effect=Effect.IDEMPOTENT)
async def repay(ctx: ToolContext, to: str) -> dict[str, Any]:
    """Undo a payment."""
    return await _undo(ctx, "repays", to)


@_tool(
    effect=Effect.IDEMPOTENT,
    approval=True,
    approval_expires=APPROVAL_EXPIRES,
    compensate=repay,
    undo_unknown="park",
)
async def pay(ctx: ToolContext, to: str, person: str) -> dict[str, Any]:
    """Pay somebody, once a person has approved it."""
    body = {"to": to, "person": person, "action": ctx.action_key}
    return await asyncio.to_thread(_send, "/pays", body, ctx.idempotency_key)


@_tool(effect=Effect.IDEMPOTENT, detached=True)
async def tell(ctx: ToolContext, order_id: str) -> dict[str, Any]:
    """Tell the warehouse of an order, without waiting for it."""
    body = {"order_id": order_id, "action": ctx.action_key}
    return await asyncio.to_thread(_send, "/tells", body, ctx.idempotency_key)


@_tool(effect=Effect.IDEMPOTENT, compensate=unship)
async def vet(ctx: ToolContext, order_id: str) -> dict[str, Any]:
    """Vet an order, which is always refused: its plan fails for good."""
    raise ToolRefused(f"{order_id} is not to be had [{ctx.action_key}]")


@_tool(effect=Effect.IDEMPOTENT)
async def deliver(ctx: ToolContext, order_id: str) -> dict[str, Any]:
    """Deliver an order; nothing undoes that."""
    body = {"order_id": order_id, "action": ctx.action_key}
    return await asyncio.to_thread(_send, "/delivers", body, ctx.idempotency_key)


@_tool(effect=Effect.READ)
async def look(order_id: str) -> dict[str, Any]:
    """Look at an order."""
    return await asyncio.to_thread(_send, "/looks", {"order_id": order_id})


async def _undo(ctx: ToolContext, path: str, subject: str) -> dict[str, Any]:
    undone = None if ctx.undoes is None else ctx.undoes.action_key
    body = {"order_id": subject, "undoes": undone, "action": ctx.action_key}
    return await asyncio.to_thread(_send, f"/{path}", body, ctx.idempotency_key)


def _send(path: str, body: dict[str, Any] | None = None, key: str | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(os.environ[PROVIDER] + path, data)
    if key is not None:
        request.add_header("Idempotency-Key", key)
    try:
        with urllib.request.urlopen(request, timeout=_SOCKET_SECONDS) as answer:
            return dict(json.load(answer))
    except urllib.error.HTTPError as err:
        if err.code in _MEANING:
            raise _MEANING[err.code](err.read().decode()) from err
        raise


class PlannedModel:
    """Does what the script of the last request says; implements `Model`. Keeps no state."""

    name = "soak"

    async def complete(self, request: ModelRequest) -> Completion:
        """Make the calls of the script, then those that are unknown once more, then say done."""
        asked = [at for at, one in enumerate(request.messages) if is_prompt(one.text)]
        last = request.messages[asked[-1] :]
        turns = script_of(*read_prompt(last[0].text)).turns
        turn = sum(message.role == "assistant" for message in last)
        if turn < len(turns):
            return call(*turns[turn])
        again = _unknown(last) if turn == len(turns) else []
        return call(*again) if again else say(f"done: {last[0].text}")


def _unknown(messages: Sequence[Message]) -> list[Call]:
    made = [found for one in messages if one.completion for found in one.completion.calls]
    told = [result for one in messages for result in one.results]
    return [
        (asked.name, json.loads(asked.arguments))
        for asked, result in zip(made, told, strict=True)
        if result.status == "unknown"
    ]


def _locally(made: Tool) -> Tool:
    return replace(made, name=LOCAL + made.name, local=True)


_agent = partial(
    Agent,
    model=PlannedModel(),
    instructions="Do as the script says.",
    tool_timeout=TOOL_SECONDS,
    node_timeout=_NODE_SECONDS,
)
_tools: Final = [charge, ship, transfer, mail, look, pay]

app = App(
    [
        _agent(AGENT, tools=[*_tools, tell]),
        _agent(
            LOCAL_AGENT,
            tools=[*_tools, tell, *map(_locally, _tools)],
            local=True,
            model_timeout=TOOL_SECONDS,
        ),
    ],
    tools=[charge, ship, transfer, pay, vet, mail, deliver],
)

TOOLS: Final = {one.name: one for one in (charge, ship, transfer, pay, vet, mail, deliver)}
"""By name, for those who plan or intend."""


def agent_of(seed: int, number: int) -> str:
    """Return the agent of a run, or of a conversation's request."""
    return LOCAL_AGENT if is_local(seed, number) else AGENT


def plan_of(script: PlanScript) -> Plan:
    """Return a plan, as the product takes it."""
    return Plan(
        "soak",
        [
            [step(TOOLS[tool], args, name=name) for name, (tool, args) in stage.items()]
            for stage in script.stages
        ],
    )

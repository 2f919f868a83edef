"""A request of the outbox that no Python wrote: what the tool's definition decides still holds."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from commitline import App, Effect, Tool, tool
from commitline.canonical import digest, dumps, parse
from commitline.identity import ActionKey, RunKey
from commitline.ledger import Outcome

from .bench import Bench, one_agent
from .relay_bench import ends, intend, ledger_of, relaying


class Bank:
    """Tools that pay, mail and pay back, and what they did."""

    def __init__(self) -> None:
        self.done: list[tuple[str, Any]] = []

        @tool(effect=Effect.AT_MOST_ONCE, approval=lambda args: args["cents"] > 300)
        async def pay(cents: int) -> None:
            """Pay; a person approves what is over 3.00."""
            self.done.append(("pay", cents))

        @tool(effect=Effect.AT_MOST_ONCE)
        async def mail(to: str) -> None:
            """Mail, and lose the answer."""
            self.done.append(("mail", to))
            raise TimeoutError

        @tool(effect=Effect.IDEMPOTENT)
        async def refund(order_id: str) -> None:
            """Refund."""
            self.done.append(("refund", order_id))

        @tool(
            effect=Effect.IDEMPOTENT,
            idempotency_key="order-{order_id}",
            compensate=refund,
        )
        async def charge(order_id: str, cents: int) -> None:
            """Charge."""
            self.done.append(("charge", order_id))

        @tool(effect=Effect.IDEMPOTENT, undoes="order-{order_id}", idempotency_key="re-{order_id}")
        async def take_back(order_id: str) -> None:
            """Take a charge back."""
            self.done.append(("take_back", order_id))

        @tool(effect=Effect.IDEMPOTENT)
        async def lend(cents: int, currency: str = "EUR") -> None:
            """Lend; releases before this one knew no currency."""
            self.done.append(("lend", (cents, currency)))

        self.tools: list[Tool] = [pay, mail, refund, charge, take_back, lend]

    @property
    def app(self) -> App:
        return App(one_agent([], []).agents, tools=self.tools)


async def forged(bench: Bench, tool: str, args: dict[str, Any], **more: Any) -> ActionKey:
    """Call the outbox's function as anybody who may execute it can."""
    same = digest(args)
    request = {
        "tool": tool,
        "args": dumps(args),
        "requested_digest": same,
        "effective_digest": same,
        "effect": "idempotent",
        "id": str(uuid.uuid4()),
        "idempotency_key": "order-1",
        **more,
    }
    rows = await bench.sql(
        "select action_key from commitline_intend(cast(%(request)s as json))",
        request=dumps(request),
    )
    return ActionKey(rows[0][0])


@pytest.mark.parametrize(
    ("tool", "args", "more", "kind"),
    [
        ("pay", {"cents": 9_999_999}, {}, "IntentRefused"),
        ("pay", {"cents": 100}, {}, "IntentRefused"),
        ("mail", {"too": "a@b"}, {}, "InvalidArguments"),
        ("lend", {"cents": 5}, {}, "ArgumentsChanged"),
        ("mail", {"to": "a@b"}, {"effective_digest": "another"}, "IntentRefused"),
        ("charge", {"order_id": "1", "cents": 1}, {}, "IntentRefused"),
        ("mail", {"to": "a@b"}, {"undoes_domain_key": "order-7"}, "IntentRefused"),
        ("take_back", {"order_id": "7"}, {}, "IntentRefused"),
        ("take_back", {"order_id": "8"}, {"undoes_domain_key": "order-7"}, "IntentRefused"),
        ("take_back", {"order_id": "7"}, {"domain_key": "re-7"}, "IntentRefused"),
    ],
    ids=[
        "nobody approved it",
        "an amount that needs no approval",
        "arguments that do not fit",
        "arguments to which a newer default would be added",
        "a digest of other arguments",
        "without its key from the domain",
        "undoes what it does not undo",
        "hides what it undoes, without a key",
        "undoes another one",
        "hides what it undoes",
    ],
)
async def test_what_the_definition_does_not_allow_is_refused_and_its_key_is_free_again(
    bench: Bench, tool: str, args: dict[str, Any], more: dict[str, Any], kind: str
) -> None:
    bank, bench = Bank(), relaying(bench)
    # An order of this test alone: Temporal may still have the settlement of another test's.
    seven = str(uuid.uuid4().int)
    args, more = parse(dumps([args, more]).replace("7", seven))
    async with ledger_of(bench) as ledger:
        charge = {"order_id": seven, "cents": 5}
        paid = await forged(bench, "charge", charge, domain_key=f"order-{seven}")
        async with bench.serving(bank.app):
            await ends(ledger, [paid])
            key = await forged(bench, tool, args, **more)
            (refused,) = await ends(ledger, [key])
            outcome = await ledger.outcome(key)
        still = await ledger.get(paid)
        queued = await ledger.relay.list()

    assert bank.done == [("charge", seven)]
    assert outcome is not None
    assert (outcome.kind, outcome.effect_possible) == ("error", False)
    assert outcome.value["type"] == kind
    assert "nothing was sent" in outcome.value["message"]
    assert refused.dispatched_at is None
    assert still is not None
    assert still.undone_by is None
    assert queued == []


async def test_the_effect_the_key_and_the_compensator_are_the_definitions(bench: Bench) -> None:
    bank, bench = Bank(), relaying(bench)
    async with ledger_of(bench) as ledger, bench.serving(bank.app):
        mailed = await forged(bench, "mail", {"to": "a@b"}, compensator="pay")
        charged = await forged(
            bench, "charge", {"order_id": "2", "cents": 5}, domain_key="order-2", key_ttl=1
        )
        mail, charge = await ends(ledger, [mailed, charged])

    assert (mail.state, mail.effect, mail.compensator) == ("unknown", Effect.AT_MOST_ONCE, None)
    assert mail.idempotency_key != "order-1"
    assert bank.done.count(("mail", "a@b")) == 1
    assert (charge.effect, charge.key_ttl, charge.compensator) == (
        Effect.IDEMPOTENT,
        None,
        "refund",
    )
    assert charge.recorded == Outcome.ok("null")


async def test_what_the_relay_sends_of_older_code_is_sent_to_the_letter_or_not_at_all(
    bench: Bench,
) -> None:
    """A detached call, and one that a relay had sent before it was lost or parked."""
    bank, bench = Bank(), relaying(bench)
    async with ledger_of(bench) as ledger:
        run = RunKey(f"run-{uuid.uuid4()}/first")
        detached = await intend(bench, ledger, "lend", {"cents": 1}, run=run)
        lost = await intend(bench, ledger, "lend", {"cents": 2}, sent=True)
        whole = {"cents": 3, "currency": "USD"}
        taken_over = await intend(bench, ledger, "lend", whole, sent=True)
        async with bench.serving(bank.app):
            refused, unknown, done = await ends(ledger, [detached, lost, taken_over])

    assert bank.done == [("lend", (3, "USD"))]
    assert refused.recorded is not None
    assert refused.recorded.value["type"] == "ArgumentsChanged"
    assert not refused.recorded.effect_possible
    assert unknown.state == "unknown"
    assert "an earlier attempt may have happened" in (unknown.parked_reason or "")
    assert done.state == "ok"

"""Charges and refunds at once keep the promises, and no two of them lock each other out.

Workers charge two orders, over and over, and refund them: in three runs, under one of two keys or
under none. An attempt may be lost before its request arrives, or after that; a call may be
declined, stay unknown, or be handed back; a person may settle it. Outside stands a provider that
answers a key as it did the first time, and refunds an order only if it stands as charged. What the
ledger says of each order must be what the provider has, whatever order the calls came in.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, Final

import pytest

from commitline.canonical import parse
from commitline.errors import Fenced, IdempotencyKeyConflict, SettlementRefused
from commitline.identity import ActionKey, RunKey
from commitline.ledger import (
    Action,
    ActionLedger,
    ActionRequest,
    AlreadyDone,
    Attempt,
    Dispatched,
    HeldClaim,
    Outcome,
)
from commitline.ledger.pool import Pool
from commitline.tests.builders import (
    DECLINED,
    DID_NOT_HAPPEN,
    LEASE,
    OVER,
    action_request,
    attempt,
    open_run,
)
from commitline.tests.integration.database import sql

RUNS: Final = [RunKey(f"support-{name}/e1") for name in "abc"]
ORDERS: Final = ("order-1", "order-2")
DONE: Final = Outcome.ok('"done"')


@dataclass
class Provider:
    """It charges an order, and refunds one that stands as charged."""

    answers: dict[str, Outcome] = field(default_factory=dict)
    """By key, as it was given first."""
    charged: Counter[str] = field(default_factory=Counter)
    """How often each order stands as charged."""

    def act(self, call: Dispatched, *, declined: bool = False) -> Outcome:
        """Answer a request."""
        if call.idempotency_key not in self.answers:
            order = parse(call.args)["order"]
            step = 1 if call.tool == "charge" else -1
            declined = declined or self.charged[order] + step < 0
            self.charged[order] += 0 if declined else step
            self.answers[call.idempotency_key] = DECLINED if declined else DONE
        return self.answers[call.idempotency_key]

    def happened(self, one: Action) -> bool:
        """Whether the call of this row took effect."""
        return self.answers.get(one.idempotency_key or "") == DONE


@dataclass
class Crowd:
    """Workers and a person."""

    ledger: ActionLedger
    pool: Pool
    chance: Random
    provider: Provider = field(default_factory=Provider)
    requests: list[ActionRequest] = field(default_factory=list)
    lost: list[ActionRequest] = field(default_factory=list)
    """Calls whose attempt is lost: the next attempt is to be expected."""
    numbers: count[int] = field(default_factory=count)

    async def work(self, steps: int) -> None:
        for _ in range(steps):
            with suppress(Fenced, IdempotencyKeyConflict, SettlementRefused):
                await self.step(self.chance.choice(["charge", *["refund"] * 3, "again", "settle"]))

    async def step(self, operation: str) -> None:
        order = self.chance.choice(ORDERS)
        if operation == "settle":
            await self.settle()
        elif self.lost or (operation == "again" and self.requests):
            await self.go_on(self.lost.pop() if self.lost else self.chance.choice(self.requests))
        elif operation == "charge":
            await self.go_on(self.charge(order))
        else:
            await self.go_on(
                self.refund(order, self.chance.choice([f"{order}-refund", f"{order}-back", None]))
            )

    def charge(self, order: str) -> ActionRequest:
        return self.new("charge", order, domain_key=f"{order}-charge")

    def refund(self, order: str, domain_key: str | None) -> ActionRequest:
        undone = f"{order}-charge"
        return self.new("refund", order, domain_key=domain_key, undoes_domain_key=undone)

    def new(self, tool: str, order: str, **given: Any) -> ActionRequest:
        position = f"{next(self.numbers)}.0"
        args = f'{{"order":"{order}"}}'
        request = action_request(self.chance.choice(RUNS), position, tool=tool, args=args, **given)
        self.requests.append(request)
        return request

    async def go_on(self, request: ActionRequest) -> None:
        ends = ["record"] * 4
        await self.play(
            request, self.chance.choice([*ends, "decline", "park", "hand back", "lose", "drop"])
        )

    async def play(self, request: ActionRequest, end: str) -> None:
        """Claim a call, and send it, if it is to be sent.

        Args:
            request: The call.
            end: How: it is recorded, declined, parked or handed back; it is lost before the
                provider has got it (``drop``), or after that.
        """
        by = attempt(next(self.numbers), lease=OVER if end == "drop" else LEASE)
        claim = await self.ledger.claim(request, by)
        if not isinstance(claim, Dispatched):
            return
        if end == "hand back":
            await self.ledger.hand_back(claim, by)
        elif end == "drop":
            self.lost.append(request)
        else:
            answer = self.provider.act(claim, declined=end == "decline")
            await asyncio.sleep(0)
            await self.tell(claim, by, request, answer, end)

    async def tell(
        self, claim: Dispatched, by: Attempt, request: ActionRequest, answer: Outcome, end: str
    ) -> None:
        if end == "park":
            await self.ledger.park(claim, "no answer")
        elif end == "lose":
            await sql(
                self.pool,
                "update agent_actions set lease_until = now(), sent_until = now() "
                "where claim_token = %(token)s",
                token=by.token,
            )
            self.lost.append(request)
        else:
            await self.ledger.record(claim, answer)

    async def settle(self) -> None:
        for one in (await self.ledger.list(only_parked=True))[:3]:
            await self.say(one)

    async def say(self, one: Action) -> None:
        """Say what became of it, as the provider has it."""
        if one.duplicate_of is None:
            outcome = DONE if self.provider.happened(one) else DID_NOT_HAPPEN
            await self.ledger.settle(one.key, outcome, by="ada")

    async def end(self) -> dict[ActionKey, Action]:
        """Let everything come to its end; return the rows."""
        await sql(
            self.pool,
            "update agent_actions set lease_until = now(), sent_until = now() "
            "where status = 'pending' and dispatched_at is not null",
        )
        for one in await self.ledger.list(limit=10_000):
            if one.state == "dispatched":
                assert one.claim_token is not None
                held = HeldClaim(one.key, one.claim_token, one.domain_key)
                sent = self.provider.answers.get(one.idempotency_key or "", DID_NOT_HAPPEN)
                await self.ledger.record(held, sent)
        for one in await self.ledger.list(only_parked=True):
            await self.say(one)
        return {row.key: row for row in await self.ledger.list(limit=10_000)}


async def each_kind_once(crowd: Crowd, order: str) -> None:
    """What the crowd does at random, and must have met."""
    early = crowd.refund(order, f"{order}-refund")
    await crowd.play(early, "hand back")
    first, second = crowd.charge(order), crowd.charge(order)
    for how in ("drop", "lose", "park"):
        await crowd.play(first, how)
        crowd.lost.clear()
    await crowd.play(second, "record")
    await crowd.settle()
    assert isinstance(await crowd.ledger.claim(second, attempt()), AlreadyDone)
    await crowd.play(early, "record")
    back = crowd.refund(order, f"{order}-back")
    await crowd.play(back, "decline")
    await crowd.play(crowd.refund(order, None), "park")
    await crowd.play(crowd.refund(order, f"{order}-refund"), "record")
    await crowd.settle()
    rows = [await crowd.ledger.get(one.key) for one in (first, second)]
    assert all(one is not None and one.undone_by is not None for one in rows)


@pytest.mark.parametrize("seed", range(2))
async def test_what_is_charged_is_refunded_once_and_all_who_were_told_of_it_read_so(
    ledger: ActionLedger, pool: Pool, seed: int
) -> None:
    for run in RUNS:
        await open_run(ledger, run)
    crowd = Crowd(ActionLedger(pool, statement_seconds=20), pool, Random(seed))
    for order in ORDERS:
        await each_kind_once(crowd, order)
    await asyncio.gather(*(crowd.work(15) for _ in range(8)))

    rows = await crowd.end()

    happened = [row for row in rows.values() if crowd.provider.happened(row)]
    refunds = Counter(row.undoes for row in happened if row.tool == "refund")
    standing = Counter(
        parse(row.args)["order"]
        for row in rows.values()
        if row.tool == "charge" and row.duplicate_of is None and row.effect_possible
        and row.undone_by is None
    )  # fmt: skip
    assert refunds[None] == 0, "what was refunded is known"
    assert max(refunds.values()) == 1, "no charge is refunded twice"
    assert standing == +crowd.provider.charged, "the ledger has what the provider has"
    assert max(standing.values(), default=0) <= 1, "an order is charged once"
    for row in rows.values():
        assert row.status == "done" or row.state == "intent"
        if row.tool != "charge" or not row.effect_possible:
            continue
        if row.duplicate_of is None:
            assert (row.undone_by is not None) == (row.key in refunds), "refunded is undone"
        else:
            assert row.undone_by == rows[row.duplicate_of].undone_by, "and so is its receipt"
            assert row.undone_by is None or told(row, rows), "and its conversation reads it"


def told(row: Action, rows: dict[ActionKey, Action]) -> bool:
    """Whether a conversation gets a notice, or has called the refund itself."""
    assert row.undone_by is not None
    return row.settled_at is not None or rows[row.undone_by].run_key == row.run_key

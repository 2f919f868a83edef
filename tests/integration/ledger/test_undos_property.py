"""Charges and refunds at once keep the promises, and no two of them lock each other out.

Workers charge two orders, over and over, and refund them: in three runs, under one of two keys or
under none. A refund may be declined, be lost, stay unknown, or be handed back; a person may settle
it. Outside stands a provider that answers a key as it did the first time. Another key is another
refund, whatever it refunds.
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

from commitline.errors import Fenced, IdempotencyKeyConflict, SettlementRefused
from commitline.identity import ActionKey, RunKey
from commitline.ledger import (
    Action,
    ActionLedger,
    ActionRequest,
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

RUNS: Final = [RunKey(f"support-{name}/e1") for name in "abc"]
ORDERS: Final = ("order-1", "order-2")
DONE: Final = Outcome.ok('"done"')


@dataclass
class Crowd:
    """Workers, a provider and a person."""

    ledger: ActionLedger
    chance: Random
    requests: list[ActionRequest] = field(default_factory=list)
    answers: dict[str, Outcome] = field(default_factory=dict)
    """By key, as the provider gave it first."""
    numbers: count[int] = field(default_factory=count)
    done: Counter[str] = field(default_factory=Counter)

    async def worker(self, steps: int) -> None:
        for _ in range(steps):
            operation = self.chance.choice(["charge", *["refund"] * 3, "again", "settle"])
            with suppress(Fenced, IdempotencyKeyConflict, SettlementRefused):
                await self.step(operation)

    async def step(self, operation: str) -> None:
        order = self.chance.choice(ORDERS)
        if operation == "settle":
            await self.settle()
        elif operation == "again" and self.requests:
            await self.claim(self.chance.choice(self.requests))
        elif operation == "charge":
            await self.claim(self.new("charge", order, domain_key=f"{order}-charge"))
        else:
            key = self.chance.choice([f"{order}-refund", f"{order}-back", None])
            undone = f"{order}-charge"
            await self.claim(self.new("refund", order, domain_key=key, undoes_domain_key=undone))

    def new(self, tool: str, order: str, **given: Any) -> ActionRequest:
        position = f"{next(self.numbers)}.0"
        args = f'{{"order":"{order}"}}'
        request = action_request(self.chance.choice(RUNS), position, tool=tool, args=args, **given)
        self.requests.append(request)
        return request

    async def claim(self, request: ActionRequest) -> None:
        lost = self.chance.random() < 0.2
        by = attempt(next(self.numbers), lease=OVER if lost else LEASE)
        claim = await self.ledger.claim(request, by)
        self.done[type(claim).__name__] += 1
        if not isinstance(claim, Dispatched):
            return
        # Of a charge that was handed back a refund may come before it is sent, and undo nothing.
        if claim.tool == "refund" and self.chance.random() < 0.2:
            await self.ledger.hand_back(claim, by)
            return
        answer = self.answers.setdefault(
            claim.idempotency_key, self.chance.choice([DONE, DONE, DECLINED])
        )
        await asyncio.sleep(0)
        if self.chance.random() < 0.3:
            await self.ledger.park(claim, "no answer")
        elif not lost:
            await self.ledger.record(claim, answer)

    async def settle(self) -> None:
        parked = await self.ledger.list(only_parked=True)
        for one in parked[:3]:
            await self.say(one)

    async def say(self, one: Action) -> None:
        """Say what became of it, as the provider has it."""
        if one.duplicate_of is None:
            happened = self.answers.get(one.idempotency_key or "") == DONE
            await self.ledger.settle(one.key, DONE if happened else DID_NOT_HAPPEN, by="ada")

    async def end(self) -> list[Action]:
        """Let everything come to its end; return the rows."""
        for one in await self.ledger.list(limit=10_000):
            if one.state == "dispatched":
                assert one.claim_token is not None
                held = HeldClaim(one.key, one.claim_token, one.domain_key)
                await self.ledger.record(held, self.answers[one.idempotency_key or ""])
        for one in await self.ledger.list(only_parked=True):
            await self.say(one)
        return list(await self.ledger.list(limit=10_000))


@pytest.mark.parametrize("seed", range(3))
async def test_what_is_charged_is_refunded_once_and_all_who_were_told_of_it_read_so(
    ledger: ActionLedger, pool: Pool, seed: int
) -> None:
    for run in RUNS:
        await open_run(ledger, run)
    crowd = Crowd(ActionLedger(pool, statement_seconds=20), Random(seed))
    await asyncio.gather(*(crowd.worker(25) for _ in range(8)))

    rows = {row.key: row for row in await crowd.end()}

    assert crowd.done["Dispatched"] > 20
    assert crowd.done["Busy"] > 0
    refunded = Counter(
        row.undoes
        for row in rows.values()
        if row.undoes is not None and crowd.answers.get(row.idempotency_key or "") == DONE
    )
    assert max(refunded.values(), default=0) == 1, "no charge is refunded twice"
    for row in rows.values():
        assert row.status == "done" or row.state == "intent"
        undone = row.undone_by is not None
        if row.duplicate_of is None and row.effect_possible and row.tool == "charge":
            assert undone == (refunded[row.key] == 1), "what was refunded is undone"
        elif row.duplicate_of is not None and row.effect_possible and row.tool == "charge":
            assert row.undone_by == rows[row.duplicate_of].undone_by, "and so is its receipt"
            assert not undone or told(row, rows), "and its conversation reads it"
    standing = Counter(
        row.domain_key
        for row in rows.values()
        if row.tool == "charge" and row.duplicate_of is None and row.effect_possible
        and row.undone_by is None
    )  # fmt: skip
    assert max(standing.values(), default=0) <= 1, "an order is charged once"


def told(row: Action, rows: dict[ActionKey, Action]) -> bool:
    """Whether a conversation gets a notice, or has called the refund itself."""
    assert row.undone_by is not None
    return row.settled_at is not None or rows[row.undone_by].run_key == row.run_key

"""Races between claims, records and stops.

Races are arranged: a session of the test holds a lock until Postgres shows that the others wait
for it, and only then releases it. A deadlock would not be resolved (see conftest).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import pytest

from commitline.errors import Fenced, RunNotRunning
from commitline.ledger import ActionLedger, AlreadyDone, Busy, Claim, Dispatched, Outcome
from commitline.ledger.pool import Pool
from commitline.tests.builders import DECLINED, attempt, dispatched
from commitline.tests.integration.database import holding, sql, until_blocked
from commitline.tests.integration.ledger.charges import (
    DOMAIN_KEY,
    RECEIPT,
    RUN_B,
    action,
    counts,
    expire_lease,
    row,
)

pytestmark = pytest.mark.usefixtures("two_runs")
T = TypeVar("T")


async def outcomes(works: list[Awaitable[T]]) -> list[T | BaseException]:
    return await asyncio.gather(*works, return_exceptions=True)


LOCK_RUN_A = "select from agent_runs where run_key = 'support-4821/e1' for update"


async def test_of_twenty_claims_of_one_domain_key_at_once_exactly_one_is_dispatched(
    ledger: ActionLedger, pool: Pool
) -> None:
    requests = [action(f"0.{call}", domain_key=DOMAIN_KEY) for call in range(20)]
    async with holding(pool, LOCK_RUN_A):
        # All twenty have looked for the key, and found it free, before any of them takes it.
        claims = asyncio.create_task(
            outcomes([ledger.claim(request, attempt()) for request in requests])
        )
        await until_blocked(pool, 20)

    settled = await claims

    won = [claim for claim in settled if isinstance(claim, Dispatched)]
    assert len(won) == 1
    assert settled.count(Busy(won[0].key)) == 19
    assert await counts(pool) == (1, 1)


async def test_of_two_attempts_that_claim_one_action_at_once_the_later_one_owns_it(
    ledger: ActionLedger, pool: Pool
) -> None:
    request = action(domain_key=DOMAIN_KEY)
    earlier, later = attempt(0), attempt(1)
    async with holding(pool, LOCK_RUN_A):
        claims = asyncio.create_task(
            outcomes([ledger.claim(request, by) for by in (earlier, later)])
        )
        await until_blocked(pool, 2)

    of_earlier, of_later = await claims

    assert isinstance(of_later, Dispatched)
    assert (await row(pool, request.key))["claim_token"] == later.token
    if isinstance(of_earlier, Dispatched):  # it came first, and was overtaken
        assert of_later.taken_over
        with pytest.raises(Fenced):
            await ledger.record(of_earlier, Outcome.ok("2"))
    else:
        assert isinstance(of_earlier, Fenced)
    assert await ledger.record(of_later, Outcome.ok(RECEIPT)) == Outcome.ok(RECEIPT)


async def test_of_two_attempts_that_began_at_one_time_one_is_fenced(
    ledger: ActionLedger, pool: Pool
) -> None:
    attempts = [attempt(), attempt()]
    async with holding(pool, LOCK_RUN_A):
        claims = asyncio.create_task(outcomes([ledger.claim(action(), by) for by in attempts]))
        await until_blocked(pool, 2)

    settled = await claims

    assert {type(claim) for claim in settled} == {Dispatched, Fenced}


async def test_a_takeover_and_a_late_record_at_once_agree_on_one_owner(
    ledger: ActionLedger, pool: Pool
) -> None:
    claim = await dispatched(ledger, action(domain_key=DOMAIN_KEY), attempt())
    works: list[Awaitable[Outcome | Claim]] = [
        ledger.record(claim, Outcome.ok(RECEIPT)),
        ledger.claim(action(domain_key=DOMAIN_KEY), attempt(1)),
    ]
    async with holding(pool, "select from agent_actions for update"):
        both = asyncio.create_task(outcomes(works))
        await until_blocked(pool, 2)

    recorded, taken = await both

    if isinstance(recorded, Outcome):
        assert isinstance(taken, AlreadyDone)
        assert taken.action.result == RECEIPT
    else:
        assert isinstance(recorded, Fenced)
        assert isinstance(taken, Dispatched)


async def test_a_release_that_claims_wait_for_gives_the_key_to_one_of_them(
    ledger: ActionLedger, pool: Pool
) -> None:
    holder = await dispatched(ledger, action(domain_key=DOMAIN_KEY), attempt())
    requests = [action(f"1.{call}", domain_key=DOMAIN_KEY) for call in range(5)]
    async with holding(pool, "select from agent_actions for update"):
        release = asyncio.create_task(ledger.record(holder, DECLINED))
        await until_blocked(pool, 1)  # it has the domain key, and waits for the action
        claims = asyncio.create_task(
            outcomes([ledger.claim(request, attempt(1)) for request in requests])
        )
        await until_blocked(pool, 6)

    settled = await claims

    assert await release == DECLINED
    won = [claim for claim in settled if isinstance(claim, Dispatched)]
    assert [claim.idempotency_key for claim in won] == ["order-4821-charge~2"]
    assert settled.count(Busy(won[0].key)) == 4


async def test_a_claim_that_a_release_waits_for_is_busy_and_has_the_key_afterwards(
    ledger: ActionLedger, pool: Pool
) -> None:
    holder = await dispatched(ledger, action(domain_key=DOMAIN_KEY), attempt())
    asking = action("1.0", domain_key=DOMAIN_KEY)
    by = attempt(1)
    async with holding(pool, "select from agent_actions for update"):
        claim = asyncio.create_task(ledger.claim(asking, by))
        await until_blocked(pool, 1)  # it has the domain key, and waits for the holder
        release = asyncio.create_task(ledger.record(holder, DECLINED))
        await until_blocked(pool, 2)

    first, recorded = await claim, await release
    again = await ledger.claim(asking, by)

    assert first == Busy(holder.key)
    assert recorded == DECLINED
    assert isinstance(again, Dispatched)
    assert again.idempotency_key == "order-4821-charge~2"


async def test_a_claim_waits_for_a_stop_that_is_about_to_commit_and_then_does_nothing(
    ledger: ActionLedger, pool: Pool
) -> None:
    async with holding(pool, "update agent_runs set state = 'stopping'", commits=True):
        claim = asyncio.create_task(outcomes([ledger.claim(action(), attempt())]))
        await until_blocked(pool, 1)

    (refused,) = await claim

    assert isinstance(refused, RunNotRunning)
    assert await counts(pool) == (0, 0)


@pytest.mark.parametrize("found", ["own row", "domain key"])
async def test_a_stop_waits_for_a_claim_that_is_about_to_commit(
    ledger: ActionLedger, pool: Pool, found: str
) -> None:
    original = action(run=RUN_B, domain_key=DOMAIN_KEY)
    request = action(domain_key=DOMAIN_KEY)
    if found == "own row":
        await ledger.claim(request, attempt())
    else:
        await ledger.claim(original, attempt())
        await expire_lease(pool, original.key)
    stop = sql(pool, "update agent_runs set state = 'stopping' returning clock_timestamp() as at")
    async with holding(pool, "select from agent_actions for update"):
        claiming = asyncio.create_task(ledger.claim(request, attempt(1)))
        await until_blocked(pool, 1)
        stopping = asyncio.create_task(stop)
        await until_blocked(pool, 2)

    claim = await claiming
    await stopping

    assert isinstance(claim, Dispatched)
    with pytest.raises(RunNotRunning):
        await ledger.claim(action("5.0"), attempt(9))

"""Rows that are gone, and statements that Postgres did not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest
import pytest_asyncio

from commitline.errors import Fenced, LedgerUnavailable
from commitline.ledger import ActionLedger, Dispatched, Effect, Outcome, ledger_pool
from commitline.ledger.pool import Pool
from commitline.testing.proxy import TcpProxy
from commitline.tests.builders import DECLINED, dispatched
from commitline.tests.integration.database import holding, sql, until_blocked
from commitline.tests.integration.ledger.shipments import DOMAIN_KEY, RECEIPT, action, attempt, row

pytestmark = pytest.mark.usefixtures("two_runs")


@pytest.mark.parametrize("outcome", [RECEIPT, DECLINED], ids=["ok", "without effect"])
@pytest.mark.parametrize("domain_key", [None, DOMAIN_KEY])
async def test_a_row_that_is_gone_is_told_apart_from_one_that_was_taken_over(
    ledger: ActionLedger, pool: Pool, domain_key: str | None, outcome: Outcome
) -> None:
    request = action(effect=Effect.IDEMPOTENT, domain_key=domain_key)
    lost = await dispatched(ledger, request, attempt())
    await dispatched(ledger, request, attempt(1))
    with pytest.raises(Fenced) as taken_over:
        await ledger.record(lost, outcome)
    await sql(pool, "delete from agent_actions")
    with pytest.raises(Fenced) as gone:
        await ledger.record(lost, outcome)

    assert (taken_over.value.lost, gone.value.lost) == (False, True)


@pytest_asyncio.fixture
async def proxied(ledger_database_url: str) -> AsyncIterator[tuple[ActionLedger, TcpProxy]]:
    """A hasty ledger behind a proxy, with one connection, which stands."""
    with TcpProxy.before(ledger_database_url) as proxy:
        async with ledger_pool(proxy.url(ledger_database_url), size=1) as pool:
            await pool.wait()
            yield ActionLedger(pool, statement_seconds=1.5), proxy
            proxy.thaw()


async def test_an_unreachable_database_was_not_reached(ledger_database_url: str) -> None:
    with TcpProxy.before(ledger_database_url) as proxy:
        proxy.cut()
        async with ledger_pool(proxy.url(ledger_database_url), size=1) as pool:
            with pytest.raises(LedgerUnavailable) as away:
                await ActionLedger(pool, statement_seconds=0.3).claim(action(), attempt())

    assert not away.value.reached


async def test_a_statement_whose_connection_is_cut_has_reached_the_database(
    ledger: ActionLedger, pool: Pool, proxied: tuple[ActionLedger, TcpProxy]
) -> None:
    hasty, proxy = proxied
    async with holding(pool, "select from agent_runs for update"):
        claiming = asyncio.create_task(hasty.claim(action(), attempt()))
        await until_blocked(pool, 1)
        proxy.cut()
        with pytest.raises(LedgerUnavailable) as cut:
            await claiming

    assert cut.value.reached
    assert isinstance(cut.value.__cause__, psycopg.OperationalError)


async def test_a_claim_that_was_committed_without_an_answer_says_so_and_is_claimed_again(
    ledger: ActionLedger, proxied: tuple[ActionLedger, TcpProxy]
) -> None:
    hasty, proxy = proxied
    by = attempt()
    proxy.freeze_answers()

    with pytest.raises(LedgerUnavailable) as unanswered:
        await hasty.claim(action(), by)

    assert unanswered.value.reached
    assert (await row(ledger, action().key)).claim_token == by.token
    assert isinstance(await ledger.claim(action(), by), Dispatched)

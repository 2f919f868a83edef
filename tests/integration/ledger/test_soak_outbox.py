"""The soak's application counts what the outbox answers, and notes what is no answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import count

import pytest
import pytest_asyncio

from commitline.identity import RunKey
from commitline.ledger import ActionLedger, Outcome, ledger_pool
from commitline.tests.builders import action_request, attempt, dispatched, open_run, parked
from commitline.tests.soak.app import TOOLS
from commitline.tests.soak.outbox import Outbox
from commitline.tests.soak.script import FIRST_INTENT, intent_script_of
from commitline.tests.soak.unforeseen import Unforeseen

RUN = RunKey("support-4821/e1")
SEED = next(
    seed
    for seed in count()
    if (script := intent_script_of(seed, FIRST_INTENT)).call[0] == "charge"
    and not script.rolled_back
    and script.pause < 0.1
)
"""Of a soak whose first transaction intends a charge."""


async def play(outbox: Outbox, until: Callable[[], object]) -> None:
    """Play transactions until something was counted."""
    async with asyncio.timeout(20):
        playing = asyncio.ensure_future(outbox.go_on())
        while not until():  # noqa: ASYNC110 - only a look tells
            await asyncio.sleep(0.01)
        outbox.stop()
        await playing


@pytest_asyncio.fixture
async def own_ledger(database_url: str) -> AsyncIterator[ActionLedger]:
    """Of a database of its own, in which the application has a table, too."""
    async with ledger_pool(database_url, size=1) as pool:
        yield ActionLedger(pool)


@pytest.fixture
def unforeseen() -> Unforeseen:
    return Unforeseen()


@pytest.fixture
def outbox(database_url: str, unforeseen: Unforeseen) -> Outbox:
    return Outbox(SEED, url=database_url, direct_url=database_url, unforeseen=unforeseen)


async def test_an_intent_that_is_refused_for_an_unknown_undo_is_counted_and_the_next_one_comes(
    own_ledger: ActionLedger, outbox: Outbox, unforeseen: Unforeseen
) -> None:
    tool, args = intent_script_of(SEED, FIRST_INTENT).call
    fact = TOOLS[tool].domain_key(TOOLS[tool].effective(args))
    await open_run(own_ledger, RUN)
    charged = await dispatched(own_ledger, action_request(RUN, tool=tool, domain_key=fact))
    await own_ledger.record(charged, Outcome.ok("1"))
    refund = action_request(RUN, "1.0", tool="refund", undoes_domain_key=fact)
    await parked(own_ledger, refund, attempt(1))
    await outbox.create()

    await play(outbox, lambda: outbox.counts.total() > 1)

    assert outbox.counts["refused"] >= 1
    assert unforeseen.violations == []
    assert all(one.action is None for one in (await outbox.intents())[:1])


async def test_what_is_no_answer_of_the_outbox_is_a_violation_and_the_next_one_comes(
    outbox: Outbox, unforeseen: Unforeseen
) -> None:
    await play(outbox, lambda: len(unforeseen.violations) > 1)  # it has no table of its own

    assert "met UndefinedTable" in str(unforeseen.violations[0])
    assert outbox.counts == {}

"""What the tests of the ledger begin with: two runs, or a conversation with its runs."""

from __future__ import annotations

import pytest
import pytest_asyncio

from commitline.ledger import ActionLedger, ThreadLedger
from commitline.tests.builders import open_run
from commitline.tests.integration.ledger import conversations, shipments


@pytest_asyncio.fixture
async def two_runs(ledger: ActionLedger) -> None:
    """Two runs, both running."""
    for run in (shipments.RUN_A, shipments.RUN_B):
        await open_run(ledger, run)


@pytest.fixture
def threads(ledger: ActionLedger) -> ThreadLedger:
    return ledger.threads


@pytest_asyncio.fixture
async def conversation(ledger: ActionLedger, threads: ThreadLedger) -> None:
    """A conversation of three runs, and one of a fourth."""
    await threads.open(conversations.THREAD, agent="support")
    await threads.open(conversations.OTHER, agent="support")
    for run in (conversations.RUN_A, conversations.RUN_B, conversations.RUN_C):
        await conversations.open_run(ledger, run)
    await conversations.open_run(ledger, conversations.RUN_D, thread_id=conversations.OTHER)

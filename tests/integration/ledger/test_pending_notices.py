"""Notices: what is pending for a conversation, from the rows of its runs."""

from __future__ import annotations

import pytest

from commitline.identity import RunKey
from commitline.ledger import ActionLedger
from commitline.tests.builders import DECLINED, after_noon, dispatched
from commitline.tests.integration.ledger.shipments import (
    DOMAIN_KEY,
    RECEIPT,
    RUN_A,
    RUN_B,
    action,
    attempt,
    repeated,
)

pytestmark = pytest.mark.usefixtures("two_runs")


async def pending(ledger: ActionLedger, run: RunKey = RUN_A) -> list[str]:
    """Return the positions of what is pending in the run's own conversation."""
    return [one.position for one in await ledger.threads.pending_notices(run)]


async def test_what_was_unknown_and_is_recorded_is_pending_with_its_repetition(
    ledger: ActionLedger,
) -> None:
    claim = await repeated(ledger, domain_key=DOMAIN_KEY)
    before = await pending(ledger)
    await ledger.record(claim, RECEIPT)

    first = await ledger.threads.pending_notices(RUN_A)
    again = await ledger.threads.pending_notices(RUN_A)

    assert before == []
    assert [one.position for one in first] == ["0.0", "1.0"]
    assert {one.recorded for one in first} == {RECEIPT}
    assert {one.notified_version for one in first} == {None}
    assert [one.key for one in again] == [one.key for one in first]


async def test_to_each_conversation_its_own_calls_are_pending(ledger: ActionLedger) -> None:
    claim = await repeated(ledger, domain_key=DOMAIN_KEY)
    await ledger.record(claim, RECEIPT)

    assert await pending(ledger) == ["0.0", "1.0"]
    assert await pending(ledger, RUN_B) == ["1.0"]


async def test_what_a_person_settled_is_pending_and_its_repetitions(ledger: ActionLedger) -> None:
    claim = await repeated(ledger, domain_key=DOMAIN_KEY)
    await ledger.settle(claim.key, DECLINED, by="ada")

    found = await ledger.threads.pending_notices(RUN_A)

    assert [(one.position, one.decided_by) for one in found] == [("0.0", "ada"), ("1.0", "ada")]
    assert await pending(ledger, RUN_B) == ["1.0"]


async def test_what_a_person_settled_after_it_was_reopened_is_pending(ledger: ActionLedger) -> None:
    claim = await dispatched(ledger, action(), attempt())
    await ledger.park(claim, "its answer was lost")  # the model has read that it is unknown
    await ledger.runs.end(RUN_A, attempt_at=after_noon(1))
    await ledger.undo.reopen(claim.key)

    await ledger.settle(claim.key, RECEIPT, by="ada")

    assert await pending(ledger) == ["0.0"]


async def test_what_is_settled_is_pending_in_the_order_in_which_it_became_known(
    ledger: ActionLedger,
) -> None:
    claims = [await dispatched(ledger, action(f"0.{call}"), attempt()) for call in (0, 1, 2)]
    for claim in claims:
        await ledger.park(claim, "its answer was lost")
    await ledger.record(claims[1], RECEIPT)
    first = await pending(ledger)
    await ledger.record(claims[0], RECEIPT)
    second = await pending(ledger)
    await ledger.settle(claims[2].key, RECEIPT, by="ada")

    assert first == ["0.1"]
    assert second == ["0.1", "0.0"]
    assert await pending(ledger) == ["0.1", "0.0", "0.2"]


async def test_what_was_never_unknown_is_not_pending(ledger: ActionLedger) -> None:
    claim = await dispatched(ledger, action("0.0", domain_key=DOMAIN_KEY), attempt())
    await ledger.record(claim, RECEIPT)
    await ledger.claim(action("1.0", domain_key=DOMAIN_KEY), attempt())
    unknown = await dispatched(ledger, action("2.0"), attempt())
    await ledger.park(unknown, "its answer was lost")

    assert await pending(ledger) == []

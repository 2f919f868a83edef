"""Notices of a run: each turn gets what became known since, and the same when it is repeated."""

from __future__ import annotations

import pytest

from commitline.identity import RunKey
from commitline.ledger import ActionLedger
from commitline.tests.builders import DECLINED, dispatched
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


async def told(ledger: ActionLedger, step: int, run: RunKey = RUN_A) -> list[str]:
    return [one.position for one in await ledger.take_notices(run, step)]


async def test_a_run_is_told_at_one_turn_what_was_unknown_and_is_known(
    ledger: ActionLedger,
) -> None:
    claim = await repeated(ledger, domain_key=DOMAIN_KEY)
    before = await told(ledger, 2)
    await ledger.record(claim, RECEIPT)

    first = await ledger.take_notices(RUN_A, 3)
    again = await ledger.take_notices(RUN_A, 3)

    assert before == []
    assert [one.position for one in first] == ["0.0", "1.0"]
    assert {one.recorded for one in first} == {RECEIPT}
    assert [one.key for one in again] == [one.key for one in first]
    assert {one.notified_step for one in again} == {3}
    assert await told(ledger, 4) == []
    assert await told(ledger, 2) == []
    assert await told(ledger, 3) == ["0.0", "1.0"]


async def test_each_run_is_told_of_its_own_calls(ledger: ActionLedger) -> None:
    claim = await repeated(ledger, domain_key=DOMAIN_KEY)
    await ledger.record(claim, RECEIPT)

    assert await told(ledger, 3) == ["0.0", "1.0"]
    assert await told(ledger, 7, RUN_B) == ["1.0"]

    assert await told(ledger, 4) == []
    assert await told(ledger, 8, RUN_B) == []
    assert await told(ledger, 7, RUN_B) == ["1.0"]


async def test_a_run_is_told_what_a_person_settled_and_of_its_repetitions(
    ledger: ActionLedger,
) -> None:
    claim = await repeated(ledger, domain_key=DOMAIN_KEY)
    await ledger.settle(claim.key, DECLINED, by="ada")

    found = await ledger.take_notices(RUN_A, 3)

    assert [(one.position, one.decided_by) for one in found] == [("0.0", "ada"), ("1.0", "ada")]
    assert await told(ledger, 3, RUN_B) == ["1.0"]


async def test_a_turn_that_is_repeated_is_told_also_what_came_since_and_later_turns_are_not(
    ledger: ActionLedger,
) -> None:
    claims = [await dispatched(ledger, action(f"0.{call}"), attempt()) for call in (0, 1, 2)]
    for claim in claims:
        await ledger.park(claim, "its answer was lost")
    await ledger.record(claims[1], RECEIPT)
    first = await told(ledger, 3)
    await ledger.record(claims[0], RECEIPT)

    again = await told(ledger, 3)
    await ledger.settle(claims[2].key, RECEIPT, by="ada")
    later = await told(ledger, 4)

    assert first == ["0.1"]
    assert again == ["0.1", "0.0"]
    assert later == ["0.2"]
    assert await told(ledger, 3) == ["0.1", "0.0"]


async def test_a_run_is_not_told_of_what_was_never_unknown(ledger: ActionLedger) -> None:
    claim = await dispatched(ledger, action("0.0", domain_key=DOMAIN_KEY), attempt())
    await ledger.record(claim, RECEIPT)
    await ledger.claim(action("1.0", domain_key=DOMAIN_KEY), attempt())
    unknown = await dispatched(ledger, action("2.0"), attempt())
    await ledger.park(unknown, "its answer was lost")

    assert await told(ledger, 3) == []

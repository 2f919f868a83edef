"""A person's word about an unknown action: when it counts, what it changes, who answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from commitline.errors import AmbiguousAction, SettlementRefused
from commitline.identity import ActionKey, RunKey
from commitline.ledger import (
    ActionLedger,
    ActionRequest,
    AlreadyDone,
    Dispatched,
    Effect,
    Outcome,
    Parked,
)
from commitline.ledger.pool import Pool
from commitline.operating import actions as operating
from commitline.tests.builders import (
    DID_NOT_HAPPEN,
    NOON,
    action_request,
    attempt,
    dispatched,
    open_run,
    parked,
)

RUN = RunKey("support-4821/e1")
RECEIPT = Outcome.ok('{"id":"ch_1"}')


@pytest.fixture(autouse=True)
async def _run(ledger: ActionLedger) -> None:
    await open_run(ledger, RUN)


def charge(position: str, *, domain_key: str | None = "order-4821-charge") -> ActionRequest:
    return action_request(
        RUN, position, tool="charge_card", effect=Effect.AT_MOST_ONCE, domain_key=domain_key
    )


async def test_what_happened_is_recorded_with_who_said_so(ledger: ActionLedger) -> None:
    request = charge("0.0")
    await parked(ledger, request)

    [settled] = await ledger.settle(request.key, RECEIPT, by="ada")

    assert (settled.state, settled.result, settled.decided_by) == ("ok", RECEIPT.result, "ada")
    assert settled.decided_at is not None
    assert settled.parked_reason is None
    replayed = await ledger.claim(request, attempt(9))
    assert isinstance(replayed, AlreadyDone)
    assert replayed.action.result == RECEIPT.result


@pytest.mark.parametrize("by", ["ad\x00a", "ad\udce9a"], ids=["nul", "surrogate"])
async def test_what_cannot_be_stored_of_a_name_or_a_reason_does_not_keep_the_rest_out(
    ledger: ActionLedger, by: str
) -> None:
    request = charge("0.0")
    claim = await ledger.claim(request, attempt())
    assert isinstance(claim, Dispatched)

    left = await ledger.park(claim, f"lost {by}")
    [settled] = await ledger.settle(request.key, RECEIPT, by=by)
    [again] = await ledger.settle(request.key, RECEIPT, by=by)

    assert left.parked_reason == "lost ad?a"
    assert (settled.state, settled.decided_by) == ("ok", "ad?a")
    assert (again.decided_by, again.decided_at) == ("ad?a", settled.decided_at)


async def test_what_did_not_happen_frees_the_domain_key_for_the_next_generation(
    ledger: ActionLedger,
) -> None:
    await parked(ledger, charge("0.0"))

    await ledger.settle(charge("0.0").key, DID_NOT_HAPPEN, by="ada")
    again = await ledger.claim(charge("1.0"), attempt())

    assert isinstance(again, Dispatched)
    assert again.idempotency_key == "order-4821-charge~2"


async def test_what_happened_keeps_the_domain_key_held(ledger: ActionLedger) -> None:
    await parked(ledger, charge("0.0"))

    await ledger.settle(charge("0.0").key, RECEIPT, by="ada")
    again = await ledger.claim(charge("1.0"), attempt())

    assert isinstance(again, AlreadyDone)
    assert again.action.duplicate_of == charge("0.0").key


async def test_calls_that_were_answered_with_the_unknown_are_settled_with_it(
    ledger: ActionLedger,
) -> None:
    await parked(ledger, charge("0.0"))
    repeated = await ledger.claim(charge("1.0"), attempt())

    settled = await ledger.settle(charge("0.0").key, RECEIPT, by="ada")

    assert isinstance(repeated, Parked)
    assert [one.position for one in settled] == ["0.0", "1.0"]
    assert {one.state for one in settled} == {"ok"}


async def test_a_tool_that_comes_back_after_the_settlement_does_not_change_it(
    ledger: ActionLedger,
) -> None:
    claim = await parked(ledger, charge("0.0"))

    await ledger.settle(charge("0.0").key, RECEIPT, by="ada")
    stands = await ledger.record(claim, Outcome.ok('"late"'))

    assert stands == RECEIPT


async def test_nobody_settles_what_an_attempt_may_still_be_doing(ledger: ActionLedger) -> None:
    left = await ledger.claim(charge("0.0", domain_key=None), attempt())
    lost = charge("0.1", domain_key=None)
    await ledger.claim(lost, attempt())
    await ledger.claim(lost, attempt(60))
    assert isinstance(left, Dispatched)
    await ledger.park(left, "its thread goes on", over=False)

    for position in ("0.0", "0.1"):
        with pytest.raises(SettlementRefused, match="an attempt may be at work"):
            await ledger.settle(charge(position).key, DID_NOT_HAPPEN, by="ada")

    assert [one.state for one in await ledger.list(RUN)] == ["unknown", "unknown"]


async def test_nobody_says_that_it_did_not_happen_while_a_lost_attempt_may_still_send(
    ledger: ActionLedger,
) -> None:
    request = action_request(RUN, tool="charge_card")
    await dispatched(ledger, request, attempt(0))  # taken for dead, and alive
    second = await dispatched(ledger, request, attempt(1))
    await ledger.park(second, "declined: charged already?")

    with pytest.raises(SettlementRefused, match="may still send"):
        await ledger.settle(request.key, DID_NOT_HAPPEN, by="ada")

    [settled] = await ledger.settle(request.key, RECEIPT, by="ada")
    assert settled.state == "ok"


@pytest.mark.parametrize("first_is_over", [True, False])
async def test_what_the_tries_before_may_still_send_counts_until_each_of_them_is_over(
    ledger: ActionLedger, first_is_over: bool
) -> None:
    request = action_request(RUN, tool="charge_card")
    first = await dispatched(ledger, request, attempt(0))
    await ledger.fail_try(first, over=first_is_over)  # if not, its thread goes on
    second = await dispatched(ledger, request, attempt(1))
    failures = await ledger.fail_try(second)
    third = await dispatched(ledger, request, attempt(2))
    await ledger.park(third, "no answer", failures=failures + 1)

    if first_is_over:
        [settled] = await ledger.settle(request.key, DID_NOT_HAPPEN, by="ada")
        assert settled.state == "error"
    else:
        with pytest.raises(SettlementRefused, match="may still send"):
            await ledger.settle(request.key, DID_NOT_HAPPEN, by="ada")


async def test_what_is_no_unknown_is_not_settled(ledger: ActionLedger, pool: Pool) -> None:
    claim = await ledger.claim(charge("0.0", domain_key=None), attempt())
    assert isinstance(claim, Dispatched)
    await ledger.record(claim, RECEIPT)
    mine = attempt()
    await ledger.claim(charge("0.1", domain_key=None), mine)
    await ledger.hand_back(charge("0.1", domain_key=None), mine)
    await parked(ledger, charge("0.2"))
    await ledger.claim(charge("1.0"), attempt())

    expected: dict[str, Any] = {
        "0.0": "is settled already: ok",
        "0.1": "was never sent",
        "1.0": "repeats support-4821/e1:0.2: settle that one",
        "7.7": "there is no action",
    }
    for position, why in expected.items():
        with pytest.raises(SettlementRefused, match=why):
            await ledger.settle(ActionKey(f"{RUN}:{position}"), DID_NOT_HAPPEN, by="ada")


async def test_a_name_that_two_runs_share_settles_neither(ledger: ActionLedger) -> None:
    later = RunKey("support-4821/e2")
    await ledger.runs.open(
        run_key=later, workflow_id="support-4821", agent="a", input_digest="", attempt_at=NOON
    )
    mine = await parked(ledger, charge("0.0", domain_key=None))
    other = await parked(ledger, replace(charge("0.0"), run_key=later))
    alone = await parked(ledger, charge("1.0", domain_key="another"))

    with pytest.raises(AmbiguousAction) as refused:
        await operating.settle(ledger, "support-4821:0.0", happened=None, by="ada")
    [by_key] = await operating.settle(ledger, other.key, happened="null", by="ada")
    [by_name] = await operating.settle(ledger, "support-4821:1.0", happened="null", by="ada")
    listed = await operating.find_actions(ledger, run="support-4821", parked=True, limit=9)
    of_one = await operating.find_actions(ledger, run=later, parked=False, limit=9)

    assert mine.key in str(refused.value)
    assert other.key in str(refused.value)
    assert (by_key.key, by_name.key) == (other.key, alone.key)
    assert [one.key for one in listed] == [mine.key]
    assert [one.key for one in of_one] == [other.key]

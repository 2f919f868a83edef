"""Undoing in the ledger: who may, under which key, what a success changes, and the races."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any, LiteralString

import psycopg
import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from commitline import App, tool
from commitline.activities.contract.encoding import pack, unpack
from commitline.activities.contract.undo import PlanUndo, UndoPlan
from commitline.activities.runs.undo import UndoActivities
from commitline.canonical import dumps, parse
from commitline.errors import IdempotencyKeyConflict, RunNotRunning, UndoRefused
from commitline.identity import ActionKey, Position, RunKey, sub_run_key
from commitline.ledger import (
    Accepted,
    Action,
    ActionLedger,
    ActionRequest,
    AlreadyDone,
    Busy,
    Dispatched,
    DueUndo,
    Effect,
    LookUp,
    Outcome,
    Parked,
)
from commitline.ledger.pool import Pool
from commitline.tests.builders import (
    DECLINED,
    DID_NOT_HAPPEN,
    NOON,
    action_request,
    after_noon,
    attempt,
    dispatched,
    open_run,
)
from commitline.tests.integration.database import blocked, holding, sql, until_blocked

RUN = RunKey("support-4821/e1")
OTHER_RUN = RunKey("support-4822/e1")
CHARGE_KEY = "order-4821-charge"
REFUND_KEY = "order-4821-refund"
RECEIPT = Outcome.ok('"ch_1"')
REFUNDED = Outcome.ok('"re_1"')
BY = ActivityEnvironment.default_info().workflow_id


@pytest.fixture(autouse=True)
async def _runs(ledger: ActionLedger) -> None:
    for run in (RUN, OTHER_RUN):
        await open_run(ledger, run)


def charge(position: str = "0.0", **other: Any) -> ActionRequest:
    request = action_request(
        RUN, position, tool="charge", domain_key=CHARGE_KEY, compensator="refund"
    )
    return replace(request, **other)


def undo(of: ActionRequest, number: int = 1, **other: Any) -> ActionRequest:
    """The undo of a call, as the workflow requests it."""
    request = action_request(
        of.run_key,
        f"undo-{of.position}" + (f"~{number}" if number > 1 else ""),
        tool="refund",
        domain_key=REFUND_KEY,
        undoes=of.key,
        purpose="undo",
    )
    return replace(request, **other)


def own_refund(position: str = "1.0", **other: Any) -> ActionRequest:
    """A refund that the model asks for."""
    request = undo(charge(position), undoes=None, purpose="forward", undoes_domain_key=CHARGE_KEY)
    return replace(request, position=Position(position), **other)


async def begin(
    ledger: ActionLedger, second: int = 100, *, run: RunKey = RUN, **options: Any
) -> bool:
    given: dict[str, Any] = {"why": "it failed", "failed": True, "attempt_at": after_noon(second)}
    given |= options
    return await ledger.undo.begin(run, **given)


async def finish(ledger: ActionLedger, second: int = 200, *passed: ActionKey) -> bool:
    return await ledger.undo.finish(RUN, attempt_at=after_noon(second), passed=frozenset(passed))


async def done(
    ledger: ActionLedger, request: ActionRequest, outcome: Outcome = RECEIPT, second: int = 0
) -> Dispatched:
    claim = await dispatched(ledger, request, attempt(second))
    await ledger.record(claim, outcome)
    return claim


async def get(ledger: ActionLedger, request: ActionRequest) -> Action:
    found = await ledger.get(request.key)
    assert found is not None
    return found


async def queued(pool: Pool) -> list[tuple[str, str, str]]:
    rows = await sql(pool, "select key, why, tool from agent_relay order by key")
    return [(row["key"], row["why"], row["tool"]) for row in rows]


async def plan(ledger: ActionLedger, *passed: ActionKey) -> list[DueUndo]:
    return list(await ledger.undo.plan(RUN, passed=frozenset(passed)))


# --- begin, plan, finish ---------------------------------------------------------------------


async def test_a_run_that_is_being_undone_starts_nothing_forward_and_undoes(
    ledger: ActionLedger,
) -> None:
    await done(ledger, charge())

    with pytest.raises(RunNotRunning):
        await ledger.claim(undo(charge()), attempt(1))
    assert await begin(ledger)

    with pytest.raises(RunNotRunning):
        await ledger.claim(charge("1.0", domain_key=None), attempt(101))
    with pytest.raises(RunNotRunning):
        await ledger.claim(own_refund(), attempt(101))
    assert (await dispatched(ledger, undo(charge()), attempt(101))).idempotency_key == REFUND_KEY
    run = await ledger.runs.get(RUN)
    assert run is not None
    assert (run.state, run.stop_reason) == ("undoing", "it failed")


async def test_an_undo_goes_on_by_the_workflow_that_began_it_or_by_one_that_a_person_starts(
    ledger: ActionLedger,
) -> None:
    own, of_person = "order-1", "undo:order-1/first"
    await done(ledger, charge())
    assert await begin(ledger, by=own)

    # Reset to before, its own workflow begins again; any other one does not.
    assert await begin(ledger, 110, by=own)
    assert not await begin(ledger, 110, by="another")
    assert not await ledger.undo.plan(RUN, by="another")
    assert await begin(ledger, 120, by=of_person, failed=False, again=True)
    assert not await ledger.undo.plan(RUN, by=own)
    assert await ledger.undo.finish(RUN, attempt_at=NOON, by=own, passed=frozenset())
    run = await ledger.runs.get(RUN)

    assert run is not None
    assert (run.state, run.undo_owner) == ("undoing", of_person)
    assert [one.at for one in await ledger.undo.plan(RUN, by=of_person)] == ["undo-0.0"]


async def test_an_undo_that_was_lost_goes_on_when_its_workflow_is_reset(
    ledger: ActionLedger,
) -> None:
    await done(ledger, charge())
    assert await begin(ledger, by="order-1")
    run = await ledger.runs.get(RUN)
    assert run is not None
    await ledger.relay.end_lost(run, workflow_status="terminated", ended_at=after_noon(150))

    with pytest.raises(RunNotRunning) as refused:
        await ledger.claim(charge("1.0", domain_key=None), attempt(160))
    assert refused.value.undoing
    assert await begin(ledger, 160, by="order-1")
    assert [one.at for one in await ledger.undo.plan(RUN, by="order-1")] == ["undo-0.0"]


async def test_an_undo_that_succeeds_marks_frees_and_is_not_due_again(
    ledger: ActionLedger,
) -> None:
    await done(ledger, charge())
    await begin(ledger)
    assert [step.at for step in await plan(ledger)] == ["undo-0.0"]
    assert not await finish(ledger)

    await done(ledger, undo(charge()), REFUNDED, 101)

    assert await plan(ledger) == []
    assert await finish(ledger)
    found = await get(ledger, charge())
    assert (found.undone_by, found.state) == (undo(charge()).key, "ok")
    assert (await ledger.undo.report(RUN)).state == "compensated"
    run = await ledger.runs.get(RUN)
    assert run is not None
    assert run.state == "ended"
    assert run.undo_ended_at is not None


async def test_the_business_fact_can_be_asked_for_again_and_the_next_undo_has_another_key(
    ledger: ActionLedger,
) -> None:
    await done(ledger, charge())
    await begin(ledger)
    await done(ledger, undo(charge()), REFUNDED, 101)
    await finish(ledger)

    second = charge(run_key=OTHER_RUN)
    claim = await done(ledger, second, second=300)

    assert claim.idempotency_key == f"{CHARGE_KEY}~2"
    await begin(ledger, 301, run=OTHER_RUN)
    again = undo(second, domain_key=f"{REFUND_KEY}~of2")
    assert (await done(ledger, again, REFUNDED, 302)).idempotency_key == f"{REFUND_KEY}~of2"
    assert (await get(ledger, second)).undone_by == again.key


async def test_nothing_opens_a_run_that_was_undone(ledger: ActionLedger) -> None:
    await done(ledger, charge())
    await begin(ledger)
    await done(ledger, undo(charge()), REFUNDED, 101)
    await finish(ledger)

    await open_run(ledger, RUN, 900)

    with pytest.raises(RunNotRunning, match="was stopped"):
        await ledger.claim(charge("1.0"), attempt(900))


async def test_what_is_not_to_be_undone_is_not(ledger: ActionLedger) -> None:
    assert not await begin(ledger), "it did nothing"
    await done(ledger, charge())
    assert not await begin(ledger, failed=False), "it was cancelled"
    with pytest.raises(UndoRefused):
        await begin(ledger, failed=False, again=True)
    with pytest.raises(RunNotRunning):
        await begin(ledger, run=RunKey("nobody/1"))

    await ledger.runs.stop(
        RUN, workflow_id="w", agent="", reason="enough", attempt_at=NOON, compensate=True
    )

    assert await begin(ledger, failed=False)
    run = await ledger.runs.get(RUN)
    assert run is not None
    assert run.stop_reason == "enough"


async def test_an_unwinding_that_was_cut_off_is_brought_to_its_end_by_the_next(
    ledger: ActionLedger,
) -> None:
    await done(ledger, charge())
    await begin(ledger)
    await done(ledger, undo(charge()), REFUNDED, 101)

    assert await begin(ledger, 300, failed=False, again=True), "though nothing is left to undo"

    assert await finish(ledger, 301)
    run = await ledger.runs.get(RUN)
    assert run is not None
    assert run.state == "ended"


@pytest.mark.parametrize("ended", [True, False])
async def test_what_is_accepted_and_not_sent_is_called_off_though_nothing_else_is_to_be_undone(
    ledger: ActionLedger, ended: bool
) -> None:
    await ledger.claim(charge(detached=True), attempt())
    if ended:
        await ledger.runs.end(RUN, attempt_at=after_noon(50))

    assert await begin(ledger, failed=not ended, again=ended)

    assert await finish(ledger)
    with pytest.raises(RunNotRunning):
        await ledger.claim(charge(purpose="relay"), attempt(300))
    assert (await ledger.undo.report(RUN)).state == "nothing to undo"


async def test_what_no_tool_takes_back_is_called_off_by_who_asks_and_not_by_a_failure(
    ledger: ActionLedger,
) -> None:
    letter = charge(detached=True, compensator=None)
    await ledger.claim(letter, attempt())

    assert not await begin(ledger)
    await ledger.runs.end(RUN, attempt_at=after_noon(150))
    assert await begin(ledger, 200, failed=False, again=True)

    assert await finish(ledger, 201)
    with pytest.raises(RunNotRunning):
        await ledger.claim(replace(letter, detached=False, purpose="relay"), attempt(300))


async def test_a_late_attempt_to_begin_does_not_begin_again_what_is_through(
    ledger: ActionLedger,
) -> None:
    await done(ledger, charge())
    await begin(ledger, 100)
    await done(ledger, undo(charge()), DECLINED, 101)
    await finish(ledger, 200)

    for again in (False, True):
        with pytest.raises(RunNotRunning):
            await begin(ledger, 100, again=again)
    assert await begin(ledger, 300, failed=False, again=True)


async def test_a_run_that_is_being_undone_is_not_closed_by_a_late_attempt_of_its_own(
    ledger: ActionLedger,
) -> None:
    await dispatched(ledger, charge())
    await begin(ledger)

    run = await ledger.runs.end(RUN, attempt_at=after_noon(150))

    assert run.state == "undoing"
    assert (await get(ledger, charge())).state == "dispatched"


async def test_what_is_passed_by_is_left_to_a_person_when_undoing_is_through(
    ledger: ActionLedger,
) -> None:
    await dispatched(ledger, charge())
    await begin(ledger)
    assert [(one.at, one.action.key) for one in await plan(ledger)] == [(None, charge().key)]
    assert not await finish(ledger, 200)

    assert await finish(ledger, 201, charge().key)

    assert (await get(ledger, charge())).state == "unknown"
    assert (await ledger.undo.report(RUN)).state == "partly compensated"


async def test_an_undo_without_effect_is_made_anew_by_the_next_unwinding_under_the_next_key(
    ledger: ActionLedger,
) -> None:
    await done(ledger, charge())
    await begin(ledger)
    await done(ledger, undo(charge()), DECLINED, 101)
    assert await plan(ledger) == []
    assert await finish(ledger)
    [standing] = (await ledger.undo.report(RUN)).standing
    assert standing.why.endswith("had no effect: declined")

    await begin(ledger, 300, failed=False, again=True)

    [step] = await plan(ledger)
    assert step.at == "undo-0.0~2"
    claim = await done(ledger, undo(charge(), 2), REFUNDED, 301)
    assert claim.idempotency_key == f"{REFUND_KEY}~2"
    assert await finish(ledger, 302)
    assert (await ledger.undo.report(RUN)).state == "compensated"


async def test_a_plan_travels_however_large_what_it_undoes_with(
    ledger: ActionLedger, temporal_client: Client
) -> None:
    @tool(effect=Effect.IDEMPOTENT)
    async def refund(note: str) -> None: ...

    @tool(effect=Effect.IDEMPOTENT, compensate=refund)
    async def charge_noted(note: str) -> None: ...

    for at_step, size in (("0.0", 1_100_000), ("1.0", 600_000), ("2.0", 600_000)):
        note = dumps({"note": "x" * size})
        noted = charge(at_step, tool=charge_noted.name, args=note, domain_key=None)
        await done(ledger, noted)
    await begin(ledger, by=BY)
    undoes = UndoActivities(App(tools=[charge_noted]), ledger.undo, heartbeat_seconds=1)

    worker = ActivityEnvironment(temporal_client)
    raw = await worker.run(undoes.plan, pack(PlanUndo(RUN, [])))

    assert [(step.key, step.problem) for step in unpack(UndoPlan, raw).steps] == [
        (charge(at_step).key, "") for at_step in ("2.0", "1.0", "0.0")
    ]
    assert len(raw.payload.data) < 10_000


# --- what is unknown -------------------------------------------------------------------------


async def test_to_settle_sends_what_has_a_key_and_only_in_an_unwinding(
    ledger: ActionLedger,
) -> None:
    await dispatched(ledger, charge())
    settle = charge(purpose="settle")
    with pytest.raises(RunNotRunning):
        await ledger.claim(settle, attempt(1))
    await begin(ledger)

    claim = await dispatched(ledger, settle, attempt(101))

    assert (claim.idempotency_key, claim.taken_over) == (CHARGE_KEY, True)
    await ledger.record(claim, RECEIPT)
    assert [step.at for step in await plan(ledger)] == ["undo-0.0"]


async def test_to_settle_sends_nothing_that_an_attempt_has_handed_back(
    ledger: ActionLedger,
) -> None:
    """The undo has planned to settle it; then the attempt says that it sent nothing."""
    by = attempt()
    await dispatched(ledger, charge(), by)
    await begin(ledger)
    assert [step.at for step in await plan(ledger)] == [None]
    await ledger.hand_back(charge(), by)

    with pytest.raises(RunNotRunning, match="was never sent"):
        await ledger.claim(charge(purpose="settle"), attempt(101))

    assert await plan(ledger) == []


async def test_who_only_asks_never_sends(ledger: ActionLedger) -> None:
    asked = charge(effect=Effect.LOOKUP, can_look_up=True)
    await dispatched(ledger, asked)
    await begin(ledger)
    asks = replace(asked, purpose="settle", lookup_only=True)

    claim = await ledger.claim(asks, attempt(101))

    assert isinstance(claim, LookUp)
    with pytest.raises(RunNotRunning):
        await ledger.send_after_lookup(asks, claim.call)
    await ledger.record(claim.call, DID_NOT_HAPPEN)
    assert await plan(ledger) == []
    assert isinstance(
        await ledger.claim(replace(asks, can_look_up=False), attempt(102)), AlreadyDone
    )


async def test_who_only_asks_and_cannot_parks(ledger: ActionLedger) -> None:
    await dispatched(ledger, charge())
    await begin(ledger)

    claim = await ledger.claim(charge(purpose="settle", lookup_only=True), attempt(101))

    assert isinstance(claim, Parked)
    assert "its run is over" in (claim.action.parked_reason or "")


async def test_an_undo_that_can_be_asked_about_is_sent_again_when_it_never_happened(
    ledger: ActionLedger,
) -> None:
    await done(ledger, charge())
    await begin(ledger)
    asked = undo(charge(), effect=Effect.LOOKUP, can_look_up=True)
    await dispatched(ledger, asked, attempt(101))
    claim = await ledger.claim(asked, attempt(102))
    assert isinstance(claim, LookUp)

    await ledger.send_after_lookup(asked, claim.call)

    await ledger.record(claim.call, REFUNDED)
    assert (await get(ledger, charge())).undone_by == asked.key


async def test_what_was_parked_is_reopened_unless_an_attempt_may_be_at_work(
    ledger: ActionLedger,
) -> None:
    over, at_work = (
        charge(position, domain_key=None, effective_digest=position) for position in ("0.0", "1.0")
    )
    await ledger.park(await dispatched(ledger, over), "no answer")
    await ledger.park(await dispatched(ledger, at_work), "no answer", over=False)

    assert await ledger.undo.reopen(over.key)
    assert await ledger.undo.reopen(over.key), "safe to repeat"
    assert not await ledger.undo.reopen(at_work.key)


# --- the model's own refund -------------------------------------------------------------------


async def test_a_refund_that_the_model_asks_for_marks_what_it_undid_and_frees_it(
    ledger: ActionLedger,
) -> None:
    await done(ledger, charge())

    await done(ledger, own_refund(), REFUNDED, 1)

    assert (await get(ledger, own_refund())).undoes == charge().key
    assert (await get(ledger, charge())).undone_by == own_refund().key
    assert not await begin(ledger), "nothing is left to undo"
    assert (
        await dispatched(ledger, charge("2.0"), attempt(2))
    ).idempotency_key == f"{CHARGE_KEY}~2"


async def test_the_refund_of_a_second_charge_is_not_the_refund_of_the_first(
    ledger: ActionLedger,
) -> None:
    keys = []
    for step in (0, 2):
        await done(ledger, charge(f"{step}.0"), second=step)
        keys.append(
            (await done(ledger, own_refund(f"{step + 1}.0"), REFUNDED, step)).idempotency_key
        )

    assert keys == [REFUND_KEY, f"{REFUND_KEY}~of2"]
    repeated = await ledger.claim(own_refund("4.0"), attempt(9))
    assert isinstance(repeated, AlreadyDone)
    assert repeated.action.duplicate_of == own_refund("3.0").key


async def test_a_refund_of_another_run_undoes_what_it_names(ledger: ActionLedger) -> None:
    await done(ledger, charge())

    await done(ledger, own_refund(run_key=OTHER_RUN), REFUNDED, 1)

    assert (await get(ledger, charge())).undone_by == own_refund(run_key=OTHER_RUN).key
    assert not await begin(ledger)


async def test_a_refund_that_is_known_late_or_by_a_person_marks_what_it_undid(
    ledger: ActionLedger,
) -> None:
    await done(ledger, charge())
    late = await dispatched(ledger, own_refund(), attempt(1))
    await ledger.park(late, "no answer")
    assert (await get(ledger, charge())).undone_by is None

    await ledger.settle(own_refund().key, REFUNDED, by="ada")

    assert (await get(ledger, charge())).undone_by == own_refund().key
    await done(ledger, charge("2.0"), second=2)
    late = await dispatched(ledger, own_refund("3.0"), attempt(3))
    await ledger.park(late, "no answer")
    await ledger.record(late, REFUNDED)
    assert (await get(ledger, charge("2.0"))).undone_by == own_refund("3.0").key


async def test_a_refund_without_effect_undoes_nothing(ledger: ActionLedger) -> None:
    await done(ledger, charge())

    await done(ledger, own_refund(), DECLINED, 1)

    assert (await get(ledger, charge())).undone_by is None
    again = await ledger.claim(charge("2.0"), attempt(2))
    assert isinstance(again, AlreadyDone)
    assert again.action.duplicate_of == charge().key


@pytest.mark.parametrize("told_by", ["a person", "its attempt", "its attempt, unparked"])
async def test_what_was_refunded_while_unknown_may_turn_out_never_to_have_happened(
    ledger: ActionLedger, told_by: str
) -> None:
    claim = await dispatched(ledger, charge())
    if told_by != "its attempt, unparked":
        await ledger.park(claim, "no answer")
    await done(ledger, own_refund(), REFUNDED, 1)
    assert (await get(ledger, charge())).undone_by == own_refund().key

    if told_by == "a person":
        await ledger.settle(charge().key, DID_NOT_HAPPEN, by="ada")
    else:
        await ledger.record(claim, DID_NOT_HAPPEN)

    found = await get(ledger, charge())
    assert (found.state, found.undone_by) == ("error", None)


async def test_what_was_refunded_while_unknown_is_free_when_it_is_known(
    ledger: ActionLedger,
) -> None:
    claim = await dispatched(ledger, charge())
    await ledger.park(claim, "no answer")
    await done(ledger, own_refund(), REFUNDED, 1)
    unknown = await ledger.claim(charge("2.0"), attempt(2))
    assert isinstance(unknown, Parked), "it holds the key until it is known"

    await ledger.record(claim, RECEIPT)

    assert (await get(ledger, charge())).undone_by == own_refund().key
    assert (
        await dispatched(ledger, charge("3.0"), attempt(3))
    ).idempotency_key == f"{CHARGE_KEY}~2"


async def test_what_was_refunded_while_at_work_is_free_when_it_is_known(
    ledger: ActionLedger,
) -> None:
    claim = await dispatched(ledger, charge())
    await done(ledger, own_refund(run_key=OTHER_RUN), REFUNDED, 1)

    await ledger.record(claim, RECEIPT)

    assert (await get(ledger, charge())).undone_by == own_refund(run_key=OTHER_RUN).key
    anew = await dispatched(ledger, charge("2.0"), attempt(2))
    assert anew.idempotency_key == f"{CHARGE_KEY}~2", "no receipt of what is undone"


# --- calls that were answered with what is undone ---------------------------------------------


async def told(ledger: ActionLedger, pool: Pool, run: RunKey) -> list[tuple[str, str | None]]:
    """What a conversation reads next: which of its actions, and what undid it."""
    found = await ledger.threads.pending_notices(run)
    keys = [one.key for one in found]
    await sql(
        pool, "update agent_actions set notified_version = 1 where key = any(%(keys)s)", keys=keys
    )
    return [(one.position, one.undone_by) for one in found]


@pytest.mark.parametrize("answer", ["its receipt", "that it is unknown"])
async def test_what_is_undone_reaches_the_calls_that_were_answered_with_it(
    ledger: ActionLedger, pool: Pool, answer: str
) -> None:
    claim = await dispatched(ledger, charge())
    repeat = charge("3.0", run_key=OTHER_RUN)
    if answer == "its receipt":
        await ledger.record(claim, RECEIPT)
        assert isinstance(await ledger.claim(repeat, attempt(1)), AlreadyDone)
        assert await told(ledger, pool, OTHER_RUN) == []
    else:
        await ledger.park(claim, "no answer")
        assert isinstance(await ledger.claim(repeat, attempt(1)), Parked)
        await ledger.settle(claim.key, RECEIPT, by="ada")
        assert await told(ledger, pool, OTHER_RUN) == [("3.0", None)]
        assert await told(ledger, pool, RUN) == [("0.0", None)]
    await begin(ledger)

    await done(ledger, undo(charge()), REFUNDED, 101)

    undone_by = undo(charge()).key
    assert (await get(ledger, repeat)).undone_by == undone_by
    assert await told(ledger, pool, OTHER_RUN) == [("3.0", undone_by)]
    assert await told(ledger, pool, RUN) == [("0.0", undone_by)]
    assert await told(ledger, pool, OTHER_RUN) == []
    again = await ledger.claim(repeat, attempt(300))
    assert isinstance(again, AlreadyDone), "a replay finds what the model read"
    assert again.action.result == RECEIPT.result


async def test_a_refund_that_a_model_called_is_told_to_all_but_its_own_conversation(
    ledger: ActionLedger, pool: Pool
) -> None:
    await done(ledger, charge())
    repeat = charge("3.0", run_key=OTHER_RUN)
    await ledger.claim(repeat, attempt(1))

    refund = own_refund("4.0", run_key=OTHER_RUN)
    await done(ledger, refund, REFUNDED, 2)

    assert (await get(ledger, repeat)).undone_by == refund.key
    assert await told(ledger, pool, OTHER_RUN) == [], "it has the reply"
    assert await told(ledger, pool, RUN) == [("0.0", refund.key)]


@pytest.mark.parametrize("happened", [True, False])
@pytest.mark.parametrize("told_by", ["a person", "its attempt"])
async def test_a_call_that_was_told_unknown_of_what_was_undone_meanwhile_reads_how_it_stands(
    ledger: ActionLedger, pool: Pool, told_by: str, happened: bool
) -> None:
    claim = await dispatched(ledger, charge())
    await ledger.park(claim, "no answer")
    before, after = charge("3.0", run_key=OTHER_RUN), charge("5.0", run_key=OTHER_RUN)
    await ledger.claim(before, attempt(1))
    await done(ledger, own_refund(), REFUNDED, 2)
    undone_by = own_refund().key
    assert await told(ledger, pool, OTHER_RUN) == [("3.0", undone_by)]
    assert isinstance(await ledger.claim(after, attempt(3)), Parked)

    outcome = RECEIPT if happened else DID_NOT_HAPPEN
    if told_by == "a person":
        await ledger.settle(claim.key, outcome, by="ada")
    else:
        await ledger.record(claim, outcome)

    now = undone_by if happened else None
    assert [(await get(ledger, one)).undone_by for one in (before, after)] == [now, now]
    assert sorted(await told(ledger, pool, OTHER_RUN)) == [("3.0", now), ("5.0", now)]


# --- one key, several undos -------------------------------------------------------------------


async def test_an_undo_whose_key_the_models_refund_has_used_is_its_receipt(
    ledger: ActionLedger,
) -> None:
    """The refund does not say what it undoes; its key does, and it came after the charge."""
    await done(ledger, charge())
    await done(ledger, own_refund(undoes_domain_key=None), REFUNDED, 1)
    assert (await get(ledger, charge())).undone_by is None
    await begin(ledger)

    claim = await ledger.claim(undo(charge()), attempt(101))

    assert isinstance(claim, AlreadyDone)
    assert claim.action.duplicate_of == own_refund().key
    assert (await get(ledger, charge())).undone_by == undo(charge()).key


async def test_who_settles_a_refund_locks_the_fact_before_the_charge_that_its_repeat_undoes(
    ledger: ActionLedger, pool: Pool
) -> None:
    """Whoever claims the fact locks them in this order: the other one would be a deadlock."""
    await done(ledger, charge())
    refund = own_refund(undoes_domain_key=None)
    await ledger.park(await dispatched(ledger, refund, attempt(1)), "no answer")
    await begin(ledger)
    assert isinstance(await ledger.claim(undo(charge()), attempt(101)), Parked)

    async with holding(pool, LOCK_CHARGE_KEY):
        settling = asyncio.create_task(ledger.settle(refund.key, REFUNDED, by="ada"))
        await until_blocked(pool, 1)
        free = await sql(pool, LOCK_CHARGE)
    await settling

    assert len(free) == 1
    assert (await get(ledger, charge())).undone_by == undo(charge()).key


async def test_an_undo_of_another_action_or_of_before_is_no_undo_of_this_one(
    ledger: ActionLedger,
) -> None:
    first, second = (charge(position, domain_key=None) for position in ("0.0", "1.0"))
    before = own_refund("0.1", undoes_domain_key=None, domain_key="another-refund")
    await done(ledger, before, REFUNDED)
    await done(ledger, first)
    await done(ledger, second)
    await begin(ledger)
    await done(ledger, undo(first), REFUNDED, 101)

    for request in (undo(second), undo(second, 2, domain_key="another-refund")):
        with pytest.raises(IdempotencyKeyConflict, match="did not undo"):
            await ledger.claim(request, attempt(102))

    assert (await get(ledger, second)).undone_by is None
    stands = (await ledger.undo.report(RUN)).standing
    assert {one.key for one in stands} == {second.key, before.key}


async def test_nobody_relies_on_a_business_fact_that_is_being_undone(
    ledger: ActionLedger,
) -> None:
    await done(ledger, charge())
    await begin(ledger)
    other = charge(run_key=OTHER_RUN)

    assert await ledger.claim(other, attempt(101)) == Busy(charge().key)

    await done(ledger, undo(charge()), REFUNDED, 102)
    assert (await dispatched(ledger, other, attempt(103))).idempotency_key == f"{CHARGE_KEY}~2"


async def test_nobody_relies_on_what_a_stop_is_about_to_undo(ledger: ActionLedger) -> None:
    """Not on what a sub-agent of that run did, either, whose own run has ended."""
    below = sub_run_key(RUN, Position("0.0"))
    given: dict[str, Any] = {"agent": "b", "input_digest": "", "attempt_at": NOON}
    await ledger.sub_runs.assign(below, workflow_id="c", by="support-4821", **given)
    own, sub = charge(), charge(run_key=below, domain_key="order-4822-charge", owner="c")
    for request in (own, sub):
        await done(ledger, request)
    await ledger.runs.end(below, attempt_at=after_noon(50), owner="c")
    stop: dict[str, Any] = {
        "workflow_id": "w",
        "agent": "a",
        "reason": "no",
        "attempt_at": after_noon(60),
    }
    await ledger.runs.stop(RUN, **stop)
    stands = await ledger.claim(charge(run_key=OTHER_RUN), attempt(61))
    await ledger.runs.stop(RUN, **stop, compensate=True)

    for position, request in (("1.0", own), ("2.0", sub)):
        other = replace(request, run_key=OTHER_RUN, position=Position(position), owner=None)
        assert await ledger.claim(other, attempt(62)) == Busy(request.key)

    assert isinstance(stands, AlreadyDone), "a plain stop takes nothing back"


async def test_nobody_relies_on_what_the_relay_is_to_undo_unless_no_relay_takes_it_up(
    ledger: ActionLedger, pool: Pool
) -> None:
    claim = await unknown_after_the_undo(ledger)
    await finish(ledger)
    await ledger.settle(claim.key, RECEIPT, by="ada")
    other = charge(run_key=OTHER_RUN, effect=Effect.AT_MOST_ONCE)

    assert await ledger.claim(other, attempt(201)) == Busy(claim.key)
    await sql(pool, "update agent_relay set due_at = now() - interval '3 minutes'")
    late = await ledger.claim(other, attempt(202))

    assert isinstance(late, AlreadyDone)
    assert late.action.duplicate_of == claim.key


@pytest.mark.parametrize("by", ["an unwinding", "the model"])
async def test_nobody_relies_on_what_may_have_been_undone(
    ledger: ActionLedger, pool: Pool, by: str
) -> None:
    await done(ledger, charge())
    refund = own_refund() if by == "the model" else undo(charge())
    if by == "an unwinding":
        await begin(ledger)
    sent = await dispatched(ledger, refund, attempt(101))
    other = charge(run_key=OTHER_RUN)

    at_work = await ledger.claim(other, attempt(102))
    await ledger.park(sent, "no answer")
    if by == "an unwinding":
        await finish(ledger)
    told = await ledger.claim(other, attempt(201))
    again = await ledger.claim(other, attempt(202))

    assert at_work == Busy(charge().key)
    assert isinstance(told, AlreadyDone)
    assert isinstance(again, AlreadyDone)
    assert again.action.result == told.action.result, "as a replay finds it"
    assert (told.action.state, told.action.effect_possible) == ("error", False)
    assert (told.action.result or "").startswith('{"type":"MayBeUndone"')
    await ledger.settle(refund.key, DID_NOT_HAPPEN, by="ada")
    stands = await ledger.claim(replace(other, position=Position("1.0")), attempt(203))
    assert isinstance(stands, AlreadyDone)
    assert stands.action.duplicate_of == charge().key


async def test_nobody_waits_for_ever_for_an_undo_that_was_lost(
    ledger: ActionLedger, pool: Pool
) -> None:
    await done(ledger, charge())
    await dispatched(ledger, own_refund(), attempt(1))
    other = charge(run_key=OTHER_RUN)

    await sql(pool, "update agent_actions set lease_until = now() where undoes is not null")
    soon = await ledger.claim(other, attempt(2))
    await sql(
        pool,
        "update agent_actions set lease_until = now() - interval '3 minutes' "
        "where undoes is not null",
    )
    later = await ledger.claim(other, attempt(3))

    assert soon == Busy(charge().key), "another attempt is to be expected"
    assert isinstance(later, AlreadyDone)
    assert later.action.state == "error"


async def test_an_undo_that_was_handed_back_is_not_void_while_its_run_unwinds(
    ledger: ActionLedger,
) -> None:
    await done(ledger, charge())
    await begin(ledger)
    by = attempt(101)
    claim = await ledger.claim(undo(charge()), by)
    assert isinstance(claim, Dispatched)
    assert await ledger.hand_back(claim, by)

    other = await ledger.claim(own_refund(run_key=OTHER_RUN), attempt(102))

    assert isinstance(other, Dispatched), "it carries that undo out, and gets its receipt"
    assert other.settles_for == own_refund(run_key=OTHER_RUN).key
    await ledger.record(other, REFUNDED)
    assert (await get(ledger, charge())).undone_by == undo(charge()).key


async def test_two_undos_with_equal_arguments_are_two_though_the_first_is_unknown(
    ledger: ActionLedger,
) -> None:
    first, second = (charge(f"{n}.0", domain_key=None) for n in range(2))
    for one in (first, second):
        await done(ledger, one)
    await begin(ledger)
    keyless = [undo(one, domain_key=None, effect=Effect.AT_MOST_ONCE) for one in (first, second)]
    await ledger.park(await dispatched(ledger, keyless[0], attempt(101)), "no answer")

    assert isinstance(await ledger.claim(keyless[1], attempt(102)), Dispatched)


async def test_a_refund_that_came_before_the_charge_was_sent_undoes_nothing(
    ledger: ActionLedger,
) -> None:
    detached = await ledger.claim(charge(detached=True), attempt())
    assert isinstance(detached, Accepted)
    await done(ledger, own_refund(), REFUNDED, 1)
    assert (await get(ledger, own_refund())).undoes == charge().key
    assert (await get(ledger, charge())).undone_by is None

    await done(ledger, charge(purpose="relay"), second=2)
    await begin(ledger)
    with pytest.raises(IdempotencyKeyConflict, match="did not undo"):
        await ledger.claim(undo(charge()), attempt(101))

    assert (await get(ledger, charge())).undone_by is None
    assert [one.key for one in (await ledger.undo.report(RUN)).standing] == [charge().key]


# --- two undos of one action ------------------------------------------------------------------


def second_refunds() -> list[ActionRequest]:
    """A refund of the same charge by another run, under another key and under none."""
    other = own_refund(run_key=OTHER_RUN, domain_key="another-refund")
    return [other, replace(other, domain_key=None), replace(other, effect=Effect.AT_MOST_ONCE)]


def the_undo(**other: Any) -> ActionRequest:
    """The undo of the run that charged, under another key than the refund of the model."""
    return undo(charge(), domain_key="the-undo", **other)


async def refused(ledger: ActionLedger, request: ActionRequest, second: int) -> str:
    """Claim an undo that is not made; return the type of the error that its call reads."""
    claim = await ledger.claim(request, attempt(second))
    assert isinstance(claim, AlreadyDone), claim
    again = await ledger.claim(request, attempt(second + 1))
    assert isinstance(again, AlreadyDone), "as a replay finds it"
    assert again.action.result == claim.action.result
    assert (claim.action.state, claim.action.effect_possible) == ("error", False)
    return str(parse(claim.action.result or "{}")["type"])


@pytest.mark.parametrize("second", second_refunds(), ids=["another key", "no key", "at most once"])
async def test_a_charge_is_refunded_once_whatever_key_the_second_refund_has(
    ledger: ActionLedger, second: ActionRequest
) -> None:
    await done(ledger, charge())
    first = await dispatched(ledger, own_refund(), attempt(1))

    at_work = await ledger.claim(second, attempt(2))
    await ledger.record(first, REFUNDED)

    assert at_work == Busy(first.key)
    assert await refused(ledger, second, 3) == "AlreadyUndone"
    assert (await get(ledger, charge())).undone_by == first.key
    anew = await dispatched(ledger, charge("2.0"), attempt(5))
    assert anew.idempotency_key == f"{CHARGE_KEY}~2", "the one that was refused holds nothing"
    await ledger.record(anew, RECEIPT)
    later = replace(second, position=Position("3.0"))
    assert isinstance(await ledger.claim(later, attempt(6)), Dispatched), "a charge of its own"


@pytest.mark.parametrize("second", second_refunds(), ids=["another key", "no key", "at most once"])
async def test_a_refund_that_is_unknown_is_not_made_by_another_call_until_it_is_settled(
    ledger: ActionLedger, second: ActionRequest
) -> None:
    await done(ledger, charge())
    await ledger.park(await dispatched(ledger, own_refund(), attempt(1)), "no answer")

    assert await refused(ledger, second, 2) == "MayBeUndone"

    await ledger.settle(own_refund().key, DID_NOT_HAPPEN, by="ada")
    later = replace(second, position=Position("2.0"))
    assert isinstance(await ledger.claim(later, attempt(4)), Dispatched)


async def test_the_undo_of_a_run_waits_for_a_refund_that_another_run_makes(
    ledger: ActionLedger,
) -> None:
    await done(ledger, charge())
    elsewhere = own_refund(run_key=OTHER_RUN)
    first = await dispatched(ledger, elsewhere, attempt(1))
    await begin(ledger)
    assert [step.at for step in await plan(ledger)] == ["undo-0.0"]

    at_work = await ledger.claim(the_undo(), attempt(101))
    await ledger.park(first, "no answer")
    unknown = await refused(ledger, the_undo(), 102)
    await finish(ledger)
    report = await ledger.undo.report(RUN)

    assert at_work == Busy(first.key)
    assert unknown == "MayBeUndone"
    [one] = report.standing
    assert (one.fate, one.why) == ("unknown", f"its undo {first.key} is unknown: no answer")
    await ledger.settle(first.key, REFUNDED, by="ada")
    assert (await ledger.undo.report(RUN)).state == "compensated"


async def test_a_refund_of_the_model_waits_for_the_undo_of_the_run_that_charged(
    ledger: ActionLedger,
) -> None:
    await done(ledger, charge())
    await begin(ledger)
    first = await dispatched(ledger, the_undo(), attempt(101))
    second = own_refund(run_key=OTHER_RUN)

    at_work = await ledger.claim(second, attempt(102))
    await ledger.record(first, REFUNDED)

    assert at_work == Busy(first.key)
    assert await refused(ledger, second, 103) == "AlreadyUndone"


async def test_a_refund_that_was_handed_back_is_ended_when_another_one_was_made_meanwhile(
    ledger: ActionLedger, pool: Pool
) -> None:
    await done(ledger, charge())
    handed_back = own_refund(run_key=OTHER_RUN)
    claim = await dispatched(ledger, handed_back, by := attempt(1))
    assert await ledger.hand_back(claim, by)
    first = await dispatched(ledger, own_refund(domain_key="another-refund"), attempt(2))

    at_work = await ledger.claim(handed_back, attempt(3))
    await ledger.record(first, REFUNDED)

    assert at_work == Busy(first.key)
    assert await refused(ledger, handed_back, 4) == "AlreadyUndone"
    [key] = await sql(
        pool, "select held_by from agent_domain_keys where domain_key = %(key)s", key=REFUND_KEY
    )
    assert key["held_by"] is None


# --- an undo that was asked for before what it would undo --------------------------------------


async def handed_back(ledger: ActionLedger, request: ActionRequest) -> None:
    """Claim a call and send nothing: its worker is told to go, or its tool was not attempted."""
    claim = await dispatched(ledger, request, by := attempt(1))
    assert await ledger.hand_back(claim, by)


async def test_a_refund_that_waited_does_not_undo_a_charge_that_came_after_it(
    ledger: ActionLedger,
) -> None:
    await handed_back(ledger, own_refund(run_key=OTHER_RUN))
    await done(ledger, charge(), second=2)

    assert await refused(ledger, own_refund(run_key=OTHER_RUN), 3) == "UndoesAnother"

    again = own_refund("3.0", run_key=OTHER_RUN)
    await done(ledger, again, REFUNDED, 5)
    assert (await get(ledger, again)).undoes == charge().key
    assert (await get(ledger, charge())).undone_by == again.key


async def test_a_refund_is_not_made_by_carrying_out_one_that_was_asked_for_before_the_charge(
    ledger: ActionLedger,
) -> None:
    """The row of the older one names no charge: a third refund would not see that it is made."""
    await handed_back(ledger, own_refund(run_key=OTHER_RUN))
    await done(ledger, charge(), second=2)

    claim = await dispatched(ledger, own_refund(), attempt(3))

    assert (claim.key, claim.settles_for) == (own_refund().key, None)
    for second in second_refunds():
        third = replace(second, position=Position("5.0"))
        assert await ledger.claim(third, attempt(4)) == Busy(claim.key)
    await ledger.record(claim, REFUNDED)
    assert (await get(ledger, charge())).undone_by == own_refund().key
    older = await get(ledger, own_refund(run_key=OTHER_RUN))
    assert (older.state, older.effect_possible) == ("error", False)


async def test_a_refund_that_waited_does_not_undo_the_next_charge_either(
    ledger: ActionLedger,
) -> None:
    first = await dispatched(ledger, charge())
    await handed_back(ledger, own_refund(run_key=OTHER_RUN))
    await ledger.record(first, DECLINED)
    await done(ledger, charge("2.0"), second=2)

    assert await refused(ledger, own_refund(run_key=OTHER_RUN), 3) == "UndoesAnother"

    assert (await get(ledger, charge("2.0"))).undone_by is None


async def test_a_refund_that_waited_finds_that_the_charge_after_it_was_undone(
    ledger: ActionLedger,
) -> None:
    waited = own_refund("0.1", run_key=OTHER_RUN, domain_key="another-refund")
    await handed_back(ledger, waited)
    await done(ledger, charge(), second=2)
    await done(ledger, own_refund(), REFUNDED, 3)

    assert await refused(ledger, waited, 4) == "AlreadyUndone"


async def test_the_relay_sends_no_refund_of_a_charge_that_came_after_it(
    ledger: ActionLedger,
) -> None:
    await ledger.claim(own_refund(detached=True), attempt(1))
    await done(ledger, charge("2.0"), second=2)

    claim = await ledger.claim(
        own_refund(purpose="relay", undoes_domain_key=None, undoes=None), attempt(3)
    )

    assert isinstance(claim, AlreadyDone)
    assert '"UndoesAnother"' in (claim.action.result or "")


async def test_nobody_charges_while_a_refund_that_was_sent_before_may_still_arrive(
    ledger: ActionLedger,
) -> None:
    refund = await dispatched(ledger, own_refund(run_key=OTHER_RUN), attempt(1))
    assert (await get(ledger, own_refund(run_key=OTHER_RUN))).undoes is None

    at_work = await ledger.claim(charge(), attempt(2))
    await ledger.park(refund, "no answer")
    unknown = await refused(ledger, charge(), 3)
    await ledger.settle(refund.key, DECLINED, by="ada")

    assert at_work == Busy(refund.key)
    assert unknown == "MayBeUndone"
    await done(ledger, charge("2.0"), second=5)
    assert (await get(ledger, charge("2.0"))).undone_by is None


async def test_a_charge_that_was_handed_back_waits_for_the_refund_that_was_sent_meanwhile(
    ledger: ActionLedger,
) -> None:
    claim = await dispatched(ledger, charge(), by := attempt())
    refund = await dispatched(ledger, own_refund(run_key=OTHER_RUN), attempt(1))
    assert await ledger.hand_back(claim, by)

    at_work = await ledger.claim(charge(), attempt(2))
    await ledger.record(refund, REFUNDED)
    await done(ledger, charge(), second=3)

    assert at_work == Busy(refund.key)
    assert (await get(ledger, charge())).undone_by is None, "the refund came before it"


@pytest.mark.parametrize("domain_key", [CHARGE_KEY, None], ids=["a fact", "no fact"])
async def test_of_two_undos_at_once_one_is_sent(
    ledger: ActionLedger, pool: Pool, domain_key: str | None
) -> None:
    charged = charge(domain_key=domain_key)
    await done(ledger, charged)
    await begin(ledger)
    undos = [undo(charged, number, domain_key=f"undo {number}") for number in (1, 2)]
    async with holding(pool, LOCK_ACTIONS):
        claims = [asyncio.create_task(ledger.claim(one, attempt(101))) for one in undos]
        await until_blocked(pool, 2)

    claimed = await asyncio.gather(*claims)

    [sent] = [claim for claim in claimed if isinstance(claim, Dispatched)]
    assert Busy(sent.key) in claimed
    with pytest.raises(psycopg.errors.UniqueViolation):  # the database holds it
        await sql(
            pool,
            "insert into agent_actions (key, tool, args, run_key, position, idempotency_key, "
            "effect, requested_digest, effective_digest, claim_token, claimed_by, attempt_at, "
            "lease_until, sent_until, dispatched_at, undoes) "
            "select 'x', tool, args, run_key, 'x', 'x', effect, '', '', claim_token, claimed_by, "
            "now(), now(), now(), now(), undoes from agent_actions where key = %(key)s",
            key=sent.key,
        )


# --- late successes and races -----------------------------------------------------------------


async def unknown_after_the_undo(ledger: ActionLedger) -> Dispatched:
    claim = await dispatched(ledger, charge(effect=Effect.AT_MOST_ONCE))
    await ledger.park(claim, "no answer")
    await begin(ledger)
    return claim


@pytest.mark.parametrize("told_by", ["a person", "its attempt"])
async def test_what_happened_after_its_run_was_undone_is_queued_to_be_undone(
    ledger: ActionLedger, pool: Pool, told_by: str
) -> None:
    claim = await unknown_after_the_undo(ledger)
    assert await finish(ledger)
    assert await queued(pool) == []

    if told_by == "a person":
        await ledger.settle(claim.key, RECEIPT, by="ada")
    else:
        await ledger.record(claim, RECEIPT)

    assert await queued(pool) == [(claim.key, "undo", "refund")]
    assert (await ledger.undo.report(RUN)).state == "partly compensated"
    await done(ledger, undo(charge()), REFUNDED, 300)
    assert (await ledger.undo.report(RUN)).state == "compensated"


async def test_what_the_relay_was_sending_meanwhile_is_queued_to_be_undone(
    ledger: ActionLedger, pool: Pool
) -> None:
    await ledger.claim(charge(detached=True), attempt())
    await done(ledger, charge("1.0", domain_key=None))
    claim = await dispatched(ledger, charge(purpose="relay"), attempt(2))
    await begin(ledger)
    await done(ledger, undo(charge("1.0"), domain_key=None), REFUNDED, 101)
    assert await finish(ledger, 200, claim.key)

    await ledger.record(claim, RECEIPT)

    assert await queued(pool) == [(claim.key, "undo", "refund")]


async def test_a_run_that_is_given_up_while_it_is_being_undone_goes_on_being_undone(
    ledger: ActionLedger,
) -> None:
    await done(ledger, charge())
    below = sub_run_key(RUN, Position("1.0"))
    given: dict[str, Any] = {
        "agent": "a",
        "input_digest": "",
        "attempt_at": after_noon(1),
        "ended": None,
    }
    await ledger.sub_runs.assign(below, workflow_id="c", by="support-4821", **given)
    lower = charge(run_key=below, owner="c", domain_key=None)
    await done(ledger, lower, second=2)
    await begin(ledger)
    by = attempt(101)
    claim = await ledger.claim(undo(lower, domain_key=None), by)
    assert await ledger.hand_back(undo(lower), by)
    assert isinstance(claim, Dispatched)
    assert not await begin(ledger, 101, run=below, by="c"), "it is undone with what is above it"
    await ledger.threads.open("t", agent="a")

    await ledger.threads.close_turn(RUN, [Position("1.0")], by=OTHER_RUN, thread_id="t", version=0)

    runs = [await ledger.runs.get(key) for key in (RUN, below)]
    assert [run.state for run in runs if run] == ["undoing", "undoing"]
    for one in (undo(charge()), undo(lower, domain_key=None)):
        await done(ledger, one, REFUNDED, 102)
    assert await finish(ledger)


async def test_what_never_happened_or_stands_in_a_run_that_was_not_undone_is_not_queued(
    ledger: ActionLedger, pool: Pool
) -> None:
    claim = await unknown_after_the_undo(ledger)
    await finish(ledger)
    await ledger.settle(claim.key, DID_NOT_HAPPEN, by="ada")
    other = await dispatched(ledger, charge(run_key=OTHER_RUN), attempt(1))
    await ledger.park(other, "no answer")
    await ledger.runs.end(OTHER_RUN, attempt_at=after_noon(200))
    await ledger.record(other, RECEIPT)

    assert await queued(pool) == []


async def until_blocked_or_done(pool: Pool, tasks: Collection[asyncio.Task[Any]]) -> None:
    """Not every one of these waits for every lock."""
    deadline = time.monotonic() + 20
    while await blocked(pool) < sum(not task.done() for task in tasks):
        assert time.monotonic() < deadline, "it neither waits nor ends"
        await asyncio.sleep(0.01)


LOCK_CHARGE_KEY: LiteralString = (
    "select from agent_domain_keys where domain_key = 'order-4821-charge' for update"
)
LOCK_CHARGE: LiteralString = (
    "select key from agent_actions where key = 'support-4821/e1:0.0' for update skip locked"
)
LOCK_RUN: LiteralString = "select from agent_runs where run_key = 'support-4821/e1' for update"
LOCK_ACTIONS: LiteralString = "select from agent_actions for update"


@pytest.mark.parametrize("parked", [True, False], ids=["unknown", "at work"])
@pytest.mark.parametrize("first", ["record", "finish"])
@pytest.mark.parametrize("lock", [LOCK_RUN, LOCK_ACTIONS], ids=["at the run", "at the row"])
async def test_a_success_at_the_very_end_of_an_unwinding_is_undone_by_it_or_queued(
    ledger: ActionLedger, pool: Pool, parked: bool, first: str, lock: LiteralString
) -> None:
    if parked:
        claim = await unknown_after_the_undo(ledger)
    else:
        claim = await dispatched(ledger, charge())
        await begin(ledger)
    async with holding(pool, lock):
        works = {"record": ledger.record(claim, RECEIPT), "finish": finish(ledger, 200, claim.key)}
        tasks: dict[str, asyncio.Task[Any]] = {}
        for name in sorted(works, key=lambda name: name != first):
            tasks[name] = asyncio.create_task(works[name])
            await until_blocked_or_done(pool, tasks.values())
    await tasks["record"]

    finished = await tasks["finish"]

    if finished:
        assert await queued(pool) == [(claim.key, "undo", "refund")]
    else:
        assert [step.at for step in await plan(ledger, claim.key)] == ["undo-0.0"]


async def test_undoing_and_settling_and_charging_again_do_not_lock_each_other_out(
    ledger: ActionLedger, pool: Pool
) -> None:
    """In this database a deadlock is not resolved: it would not come back."""
    unknown = await dispatched(ledger, charge("0.1", domain_key="order-1-charge"))
    await ledger.park(unknown, "no answer")
    await done(ledger, charge())
    await begin(ledger)
    refund = await dispatched(ledger, undo(charge()), attempt(101))
    async with holding(pool, LOCK_ACTIONS):
        works = [
            asyncio.create_task(work)
            for work in (
                ledger.record(refund, REFUNDED),
                ledger.settle(unknown.key, RECEIPT, by="ada"),
                ledger.claim(charge(run_key=OTHER_RUN), attempt(102)),
                finish(ledger, 200),
            )
        ]
        await until_blocked(pool, 4)

    recorded, _, claim, finished = await asyncio.gather(*works)

    assert recorded == REFUNDED
    assert isinstance(claim, Busy | Dispatched)
    assert finished is False
    assert (await get(ledger, charge())).undone_by == undo(charge()).key
    assert [step.at for step in await plan(ledger)] == ["undo-0.1"]


async def test_an_undo_that_is_a_receipt_and_a_refund_do_not_lock_each_other_out(
    ledger: ActionLedger, pool: Pool
) -> None:
    """Both lock the charge's key before the refund's."""
    await done(ledger, charge())
    await done(ledger, own_refund(undoes_domain_key=None), REFUNDED, 1)
    await begin(ledger)
    async with holding(
        pool, "select from agent_domain_keys where domain_key = 'order-4821-charge' for update"
    ):
        other = asyncio.create_task(ledger.claim(own_refund(run_key=OTHER_RUN), attempt(2)))
        await until_blocked(pool, 1)
        undoing = asyncio.create_task(ledger.claim(undo(charge()), attempt(101)))
        await until_blocked(pool, 2)

    assert isinstance(await other, AlreadyDone)
    assert isinstance(await undoing, AlreadyDone)
    assert (await get(ledger, charge())).undone_by == own_refund(run_key=OTHER_RUN).key

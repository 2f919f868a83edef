"""Every row has an exit: it ends, a person may settle it, or somebody brings it to its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from commitline import Effect, Tool, tool
from commitline.activities.runs.gone_runs import GoneRuns
from commitline.identity import ActionKey, Position, RunKey
from commitline.ledger import (
    Accepted,
    Action,
    ActionLedger,
    ActionRequest,
    Busy,
    Dispatched,
    Outcome,
    Parked,
    QuestionRequest,
    intend,
    keys_without_exit,
)
from commitline.ledger.pool import Pool
from commitline.tests.builders import (
    DID_NOT_HAPPEN,
    OVER,
    action_request,
    after_noon,
    attempt,
    dispatched,
    open_run,
    relay_request,
)
from commitline.tests.integration.database import sql
from commitline.tests.integration.ledger.conversations import turn

RUN_A = RunKey("support-4821/6ba7b810-9dad-11d1-80b4-00c04fd430c8")
RUN_B = RunKey("support-4822/6ba7b810-9dad-11d1-80b4-00c04fd430c9")
ARGS = {"order_id": "1"}
RECEIPT = Outcome.ok('"ch_1"')


@tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge")
async def charge(order_id: str) -> str:
    """Charge an order."""
    raise NotImplementedError


@tool(effect=Effect.IDEMPOTENT, undoes="order-{order_id}-charge", idempotency_key="re-{order_id}")
async def take_back(order_id: str) -> None:
    """Take a charge back."""


@pytest_asyncio.fixture(autouse=True)
async def _runs(ledger: ActionLedger) -> None:
    for run in (RUN_A, RUN_B):
        await open_run(ledger, run, spec="{}", namespace="default")


def request(position: str = "0.0", *, run: RunKey = RUN_A, **given: Any) -> ActionRequest:
    """The same charge as `intended` has the outbox make."""
    return action_request(
        run,
        position,
        tool="charge",
        args=charge.effective(ARGS),
        domain_key="order-1-charge",
        **given,
    )


async def intended(url: str, made: Tool = charge) -> ActionKey:
    async with await psycopg.AsyncConnection.connect(url) as conn:
        return await intend(conn, made, ARGS)


async def stop(ledger: ActionLedger, run: RunKey) -> None:
    """Stop a run; its workflow ends."""
    at = after_noon(600)
    await ledger.runs.stop(run, workflow_id="w", agent="support", reason="ada", attempt_at=at)
    await ledger.runs.end(run, attempt_at=at)


async def sweep(ledger: ActionLedger, pool: Pool, temporal: Client) -> None:
    """Have the relay look at the runs; the workflows of those that have ended are gone."""
    await sql(
        pool,
        "update agent_runs set created_at = created_at - interval '2 hours' where state = 'ended'",
    )
    await ActivityEnvironment().run(GoneRuns(ledger, temporal).close_gone_runs)


async def the(ledger: ActionLedger, key: ActionKey) -> Action:
    found = await ledger.get(key)
    assert found is not None
    return found


async def queued(ledger: ActionLedger, key: ActionKey) -> str | None:
    """What the relay has to do about an action."""
    found = await ledger.relay.entry(key)
    return None if found is None else found[0].why


async def without_exit(ledger: ActionLedger) -> Sequence[ActionKey]:
    return [row.key for row in await ledger.relay.without_exit()]


async def handed_back(ledger: ActionLedger, **given: Any) -> ActionKey:
    """An intent between two tries: nothing was sent."""
    by = attempt(1)
    claim = await dispatched(ledger, request(**given), by)
    assert await ledger.hand_back(claim, by)
    return claim.key


async def test_a_row_that_nobody_brings_to_its_end_is_found(
    ledger: ActionLedger, ledger_database_url: str, pool: Pool
) -> None:
    key = await intended(ledger_database_url)
    before = await without_exit(ledger)

    await sql(pool, "delete from agent_relay")

    assert (before, await without_exit(ledger)) == ([], [key])
    assert await keys_without_exit(ledger_database_url, limit=5) == [key]


# --- an intent that ends --------------------------------------------------------------------


async def test_what_repeats_an_intent_is_settled_when_that_is_called_off(
    ledger: ActionLedger,
) -> None:
    first = request(detached=True)
    await ledger.claim(first, attempt(1))
    await ledger.park_unsent(first.key, "not sent: declined three times")
    repeat = await ledger.claim(request(run=RUN_B), attempt(2))
    assert isinstance(repeat, Parked)
    await ledger.relay.reopen(first.key)
    await stop(ledger, RUN_A)

    await ledger.relay.give_up(first.key, "its run was stopped")

    settled = await the(ledger, repeat.action.key)
    assert settled.recorded == (await the(ledger, first.key)).recorded
    assert (settled.state, settled.effect_possible) == ("error", False)
    assert settled.settled_at is not None  # its conversation gets a notice
    assert await without_exit(ledger) == []


# --- an undo that comes before what it undoes ----------------------------------------------------


async def undone_by_the_outbox(ledger: ActionLedger, url: str) -> ActionKey:
    """Have the charge taken back, successfully, by the outbox."""
    refund = await the(ledger, await intended(url, take_back))
    assert refund.undoes is not None
    await ledger.record(await dispatched(ledger, relay_request(refund), attempt(9)), RECEIPT)
    return refund.key


async def test_what_was_undone_while_it_was_unknown_is_looked_up_and_never_sent_again(
    ledger: ActionLedger, ledger_database_url: str
) -> None:
    claim = await dispatched(ledger, request(), attempt(1, lease=OVER))
    run = await ledger.runs.get(RUN_A)
    assert run is not None
    await ledger.relay.end_lost(run, workflow_status="terminated", ended_at=after_noon(2))

    refund = await undone_by_the_outbox(ledger, ledger_database_url)
    by_the_relay = relay_request(await the(ledger, claim.key))
    queued_before = await queued(ledger, claim.key)
    taken = await ledger.claim(by_the_relay, attempt(10))

    assert queued_before == "lookup"
    assert isinstance(taken, Parked), "sent again, it would happen after its refund"
    assert refund in (taken.action.parked_reason or "")


# --- an intent that others rely on ----------------------------------------------------------------


async def asks_a_person(ledger: ActionLedger) -> ActionKey:
    """An intent that waits for an answer."""
    claim = await dispatched(ledger, request(), attempt(1))
    asked = QuestionRequest(
        RUN_A, Position("0.0"), RUN_A, "charge", 0, "Really?", "{}", timedelta(hours=1)
    )
    await ledger.questions.raise_question(asked, claim, attempt_at=after_noon(1))
    return claim.key


@pytest.mark.parametrize("intent", [handed_back, asks_a_person])
async def test_what_an_application_relies_on_is_sent_though_its_run_was_stopped(
    ledger: ActionLedger,
    ledger_database_url: str,
    pool: Pool,
    temporal_client: Client,
    intent: Callable[[ActionLedger], Awaitable[ActionKey]],
) -> None:
    key = await intent(ledger)
    intended_keys = [await intended(ledger_database_url)]
    await stop(ledger, RUN_A)
    left = await without_exit(ledger)

    await sweep(ledger, pool, temporal_client)
    intended_keys.append(await intended(ledger_database_url))
    claim = await dispatched(ledger, relay_request(await the(ledger, key)), attempt(2))
    await ledger.record(claim, RECEIPT)

    assert intended_keys == [key, key]
    assert left == [key]
    assert await ledger.outcome(key) == RECEIPT
    await sweep(ledger, pool, temporal_client)
    assert await sql(pool, "select from agent_intents where relies") == []


async def test_who_asks_for_what_others_rely_on_waits_for_the_relay(
    ledger: ActionLedger, ledger_database_url: str
) -> None:
    key = await handed_back(ledger)
    await intended(ledger_database_url)
    await stop(ledger, RUN_A)

    claim = await ledger.claim(request(run=RUN_B), attempt(2))

    assert claim == Busy(key)
    assert (await the(ledger, key)).adopted
    assert await queued(ledger, key) == "send"


async def test_what_an_application_relies_on_is_sent_though_its_conversation_went_on_without_it(
    ledger: ActionLedger, ledger_database_url: str
) -> None:
    await ledger.threads.open("talk", agent="support")
    key = await handed_back(ledger)
    await intended(ledger_database_url)

    closed = await ledger.threads.close_turn(
        RUN_A, [Position("0.0")], by=RUN_B, thread_id="talk", version=0
    )
    claim = await dispatched(ledger, relay_request(await the(ledger, key)), attempt(2))

    assert closed[Position("0.0")].adopted
    assert claim.key == key
    assert await queued(ledger, key) == "send"


async def test_a_detached_call_relies_on_what_it_was_told_of(
    ledger: ActionLedger, pool: Pool, temporal_client: Client
) -> None:
    key = await handed_back(ledger)
    accepted = await ledger.claim(request(run=RUN_B, detached=True), attempt(2))
    assert isinstance(accepted, Accepted)
    assert accepted.action.key == key
    await stop(ledger, RUN_A)

    await sweep(ledger, pool, temporal_client)

    assert await queued(ledger, key) == "send"
    assert (await the(ledger, key)).adopted


async def test_a_detached_call_that_an_application_relies_on_survives_the_stop_and_its_undo(
    ledger: ActionLedger, ledger_database_url: str
) -> None:
    first = request(detached=True, compensator="take_back")
    await ledger.claim(first, attempt(1))
    await intended(ledger_database_url)
    await ledger.undo.begin(RUN_A, why="it failed", failed=True, attempt_at=after_noon(2))
    await ledger.undo.finish(RUN_A, attempt_at=after_noon(3), passed=frozenset())

    adopted = await ledger.relay.give_up(first.key, "its run was undone")
    claim = await dispatched(ledger, relay_request(adopted), attempt(4))
    await ledger.record(claim, RECEIPT)

    assert (await the(ledger, first.key)).state == "ok"
    assert await queued(ledger, first.key) is None  # it is not undone


async def test_a_person_may_call_off_what_is_left_to_them_and_was_never_sent(
    ledger: ActionLedger,
) -> None:
    key = await handed_back(ledger)
    await ledger.park_unsent(key, "not sent")
    await stop(ledger, RUN_A)

    (settled,) = await ledger.settle(key, DID_NOT_HAPPEN, by="ada")

    assert (settled.state, settled.effect_possible) == ("error", False)


# --- what ended runs have left -------------------------------------------------------------------


async def each_owner_left_it_to_the_other(ledger: ActionLedger, pool: Pool) -> ActionKey:
    claim = await dispatched(ledger, request(), attempt(1, lease=OVER))
    taken = await dispatched(ledger, request(run=RUN_B), attempt(2, lease=timedelta(hours=1)))
    assert taken.settles_for == request(run=RUN_B).key
    await stop(ledger, RUN_A)
    await stop(ledger, RUN_B)
    return claim.key


async def the_run_whose_call_carried_it_out_was_forked(
    ledger: ActionLedger, pool: Pool
) -> ActionKey:
    claim = await dispatched(ledger, request(), attempt(1, lease=OVER))
    await ledger.threads.open("talk", agent="support")
    await open_run(ledger, RUN_B, thread_id="talk")
    await ledger.threads.commit(turn(0, RUN_B, thread_id="talk"))
    taken = await dispatched(ledger, request(run=RUN_B), attempt(2, lease=timedelta(hours=1)))
    assert taken.key == claim.key
    await ledger.runs.end(RUN_A, attempt_at=after_noon(600))
    await ledger.threads.fork(RUN_B, 0)
    return claim.key


async def its_attempt_began_after_the_end_by_a_clock_that_stepped_back(
    ledger: ActionLedger, pool: Pool
) -> ActionKey:
    claim = await dispatched(ledger, request(), attempt(3_000))
    await ledger.runs.end(RUN_A, attempt_at=after_noon(600))
    return claim.key


async def it_is_a_refund_that_the_model_called(ledger: ActionLedger, pool: Pool) -> ActionKey:
    charged = await dispatched(ledger, request(), attempt(1))
    await ledger.record(charged, RECEIPT)
    refund = action_request(RUN_A, "1.0", tool="take_back", undoes=charged.key)
    claim = await dispatched(ledger, refund, attempt(3_000))
    await ledger.runs.end(RUN_A, attempt_at=after_noon(600))
    return claim.key


@pytest.mark.parametrize(
    "left",
    [
        each_owner_left_it_to_the_other,
        the_run_whose_call_carried_it_out_was_forked,
        its_attempt_began_after_the_end_by_a_clock_that_stepped_back,
        it_is_a_refund_that_the_model_called,
    ],
)
async def test_what_an_ended_run_has_left_dispatched_is_looked_up(
    ledger: ActionLedger,
    pool: Pool,
    temporal_client: Client,
    left: Callable[[ActionLedger, Pool], Awaitable[ActionKey]],
) -> None:
    key = await left(ledger, pool)
    while_leased = await without_exit(ledger)
    await sql(pool, "update agent_actions set lease_until = clock_timestamp()")
    before = await without_exit(ledger)

    await sweep(ledger, pool, temporal_client)

    assert (while_leased, before) == ([], [key])
    assert await queued(ledger, key) == "lookup"
    assert await without_exit(ledger) == []


async def test_an_ended_run_whose_workflow_may_go_on_is_left_alone(
    ledger: ActionLedger, pool: Pool, temporal_client: Client
) -> None:
    key = await its_attempt_began_after_the_end_by_a_clock_that_stepped_back(ledger, pool)
    await sql(pool, "update agent_actions set lease_until = clock_timestamp()")

    await ActivityEnvironment().run(GoneRuns(ledger, temporal_client).close_gone_runs)

    assert await queued(ledger, key) is None
    assert await without_exit(ledger) == [key]  # the next sweep looks again


async def test_the_undo_of_a_lost_undo_is_left_to_a_person(
    ledger: ActionLedger, pool: Pool, temporal_client: Client
) -> None:
    charged = await dispatched(ledger, request(compensator="take_back"), attempt(1))
    await ledger.record(charged, RECEIPT)
    await ledger.undo.begin(RUN_A, why="it failed", failed=True, attempt_at=after_noon(2))
    undo = action_request(RUN_A, "undo-0.0", tool="take_back", undoes=charged.key, purpose="undo")
    await dispatched(ledger, undo, attempt(3, lease=OVER))
    run = await ledger.runs.get(RUN_A)
    assert run is not None
    await ledger.relay.end_lost(run, workflow_status="terminated", ended_at=after_noon(4))

    await sweep(ledger, pool, temporal_client)

    assert "the undo of its run was lost" in ((await the(ledger, undo.key)).parked_reason or "")
    await ledger.undo.begin(
        RUN_A, why="ada", failed=False, again=True, attempt_at=after_noon(9_000)
    )
    (due,) = await ledger.undo.plan(RUN_A)
    assert due.begun is not None
    assert due.begun.key == undo.key


async def test_what_the_relay_has_lost_from_its_queue_is_sent_all_the_same(
    ledger: ActionLedger, ledger_database_url: str, pool: Pool, temporal_client: Client
) -> None:
    key = await intended(ledger_database_url)
    await sql(pool, "delete from agent_relay")

    await sweep(ledger, pool, temporal_client)

    assert await queued(ledger, key) == "send"


async def happened_late(ledger: ActionLedger, **given: Any) -> Dispatched:
    """Have a charge turn out to have happened, after its run was undone without it."""
    late = await dispatched(ledger, request(compensator="take_back", **given), attempt(1))
    await ledger.undo.begin(RUN_A, why="it failed", failed=True, attempt_at=after_noon(2))
    await ledger.undo.finish(RUN_A, attempt_at=after_noon(3), passed=frozenset([late.key]))
    await ledger.record(late, RECEIPT)
    return late


async def undo_of(ledger: ActionLedger, key: ActionKey, *, seconds: float = 9) -> Dispatched:
    """Have the relay begin the undo of an action."""
    due = await ledger.undo.plan_one(await the(ledger, key))
    assert due is not None
    assert due.at is not None
    undo = action_request(RUN_A, due.at, tool="take_back", undoes=key, purpose="undo")
    return await dispatched(ledger, undo, attempt(seconds, lease=OVER))


@pytest.mark.parametrize("begun", [False, True])
async def test_an_undo_that_the_relay_has_lost_from_its_queue_is_made_all_the_same(
    ledger: ActionLedger, pool: Pool, temporal_client: Client, begun: bool
) -> None:
    late = await happened_late(ledger)
    await sweep(ledger, pool, temporal_client)
    if begun:
        await undo_of(ledger, late.key)
    queued_before = await queued(ledger, late.key)
    await sql(pool, "delete from agent_relay")
    before = await without_exit(ledger)

    await sweep(ledger, pool, temporal_client)

    assert queued_before == await queued(ledger, late.key) == "undo"
    assert late.key in before
    assert await without_exit(ledger) == []
    undo = await undo_of(ledger, late.key, seconds=99)
    await ledger.record(undo, RECEIPT)
    assert (await the(ledger, late.key)).undone_by == undo.key


async def test_a_late_success_is_undone_also_if_its_run_had_left_nothing_to_look_after(
    ledger: ActionLedger, pool: Pool, temporal_client: Client
) -> None:
    late = await dispatched(ledger, request(compensator="take_back"), attempt(1))
    await ledger.undo.begin(RUN_A, why="it failed", failed=True, attempt_at=after_noon(2))
    await ledger.undo.finish(RUN_A, attempt_at=after_noon(3), passed=frozenset([late.key]))
    await sweep(ledger, pool, temporal_client)  # it is parked, and a person's
    await ledger.record(late, RECEIPT)
    await sql(pool, "delete from agent_relay")

    await sweep(ledger, pool, temporal_client)

    assert await queued(ledger, late.key) == "undo"


async def test_what_an_undo_passed_by_or_tried_in_vain_is_not_queued_by_the_sweep(
    ledger: ActionLedger, pool: Pool, temporal_client: Client
) -> None:
    passed = await dispatched(
        ledger, request("1.0", effective_digest="another", compensator="take_back"), attempt(1)
    )
    await ledger.record(passed, RECEIPT)
    await ledger.undo.begin(RUN_A, why="it failed", failed=True, attempt_at=after_noon(2))
    (due,) = await ledger.undo.plan(RUN_A)
    await ledger.undo.finish(RUN_A, attempt_at=after_noon(3), passed=frozenset([due.passes]))

    await sweep(ledger, pool, temporal_client)

    assert await queued(ledger, passed.key) is None


async def test_an_undo_that_had_no_effect_or_that_a_person_has_is_not_begun_anew(
    ledger: ActionLedger, pool: Pool, temporal_client: Client
) -> None:
    late = await happened_late(ledger)
    await ledger.relay.leave_to_person(late.key, "no worker serves take_back")
    await sweep(ledger, pool, temporal_client)
    kept = await ledger.relay.entry(late.key)
    await sql(pool, "update agent_relay set due_at = now()")
    await ledger.record(await undo_of(ledger, late.key), DID_NOT_HAPPEN)
    await sql(pool, "update agent_runs set cleared_at = null")

    await sweep(ledger, pool, temporal_client)

    assert kept is not None
    assert kept[0].due_at is None
    assert await queued(ledger, late.key) is None
    assert await without_exit(ledger) == []


async def test_what_repeats_an_action_that_has_an_end_is_settled_with_it_sooner_or_later(
    ledger: ActionLedger, pool: Pool, temporal_client: Client
) -> None:
    first = await dispatched(ledger, request(), attempt(1))
    await ledger.park(first, "its answer was lost")
    repeat = await ledger.claim(request(run=RUN_B), attempt(2))
    assert isinstance(repeat, Parked)
    await sql(
        pool,
        "update agent_actions set status = 'done', outcome = 'ok', effect_possible = true,"
        " result = '1', done_at = now(), parked_at = null, parked_reason = null"
        " where key = %(key)s",
        key=first.key,
    )
    before = await without_exit(ledger)

    await sweep(ledger, pool, temporal_client)

    assert before == [repeat.action.key]
    assert (await the(ledger, repeat.action.key)).recorded == Outcome.ok("1")


async def test_a_run_that_has_left_nothing_is_looked_at_once_until_it_goes_on(
    ledger: ActionLedger, pool: Pool, temporal_client: Client
) -> None:
    claim = await dispatched(ledger, request(), attempt(1))
    await ledger.record(claim, RECEIPT)
    await ledger.runs.end(RUN_A, attempt_at=after_noon(600))
    await sweep(ledger, pool, temporal_client)
    now = await ledger.relay.now()
    looked_at = [(await ledger.relay.clear_runs(limit=10, before=now))[0]]

    await open_run(ledger, RUN_A, 700)
    await ledger.runs.end(RUN_A, attempt_at=after_noon(800))

    now = await ledger.relay.now()
    looked_at.append((await ledger.relay.clear_runs(limit=10, before=now))[0])
    assert looked_at == [0, 1]


async def test_an_outbox_that_waits_is_looked_through_once_and_not_by_each_sweep(
    ledger: ActionLedger, pool: Pool, temporal_client: Client, ledger_database_url: str
) -> None:
    key = await intended(ledger_database_url)
    await sweep(ledger, pool, temporal_client)
    looked_at = [(await ledger.relay.clear_runs(limit=10, before=await ledger.relay.now()))[0]]

    await sql(pool, "update agent_runs set looked_at = looked_at - interval '10 minutes'")

    looked_at.append((await ledger.relay.clear_runs(limit=10, before=await ledger.relay.now()))[0])
    assert looked_at == [0, 1]
    assert await queued(ledger, key) == "send"

"""The relay's queue, and the runs that are gone: who gets what, when, and what it leads to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, LiteralString

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from commitline.activities.contract.encoding import pack, unpack
from commitline.activities.contract.outcomes import SettleEnded
from commitline.activities.contract.reply import Reply
from commitline.activities.runs.gone_runs import GoneRuns
from commitline.activities.runs.outcomes import OutcomeActivities
from commitline.errors import ApprovalRefused, ReopenRefused, RunNotRunning
from commitline.identity import ActionKey, Position, RunKey, action_key, sub_run_key
from commitline.ledger import (
    ActionLedger,
    ActionRequest,
    ApprovalRequest,
    Busy,
    Dispatched,
    Effect,
    Outcome,
    Parked,
    QueuedAction,
    Run,
    Sweep,
)
from commitline.ledger.pool import Pool
from commitline.tests import builders
from commitline.tests.builders import DID_NOT_HAPPEN, NOON, OVER, action_request, open_run
from commitline.tests.integration.database import holding, sql, until_blocked

RUN = RunKey("support-4821/6ba7b810-9dad-11d1-80b4-00c04fd430c8")
OTHER = RunKey("support-4822/6ba7b810-9dad-11d1-80b4-00c04fd430c9")
LIVE = timedelta(minutes=5)
RECEIPT = Outcome.ok('{"id":"ch_1"}')


@pytest.fixture(autouse=True)
async def _runs(ledger: ActionLedger) -> None:
    for run in (RUN, OTHER):
        await open_run(ledger, run, workflow_id="w", spec="{}")


def request(position: str, *, run: RunKey = RUN, **given: Any) -> ActionRequest:
    return action_request(run, position, tool="charge", **given)


attempt = partial(builders.attempt, lease=OVER)


async def dispatched(
    ledger: ActionLedger, position: str, *, lease: timedelta = OVER, **given: Any
) -> Dispatched:
    return await builders.dispatched(ledger, request(position, **given), attempt(lease=lease))


async def parked(ledger: ActionLedger, position: str, **given: Any) -> Dispatched:
    claim = await dispatched(ledger, position, **given)
    await ledger.park(claim, "who knows")
    return claim


async def intent(ledger: ActionLedger, pool: Pool, position: str, **given: Any) -> ActionKey:
    """What nobody has sent yet, and the relay is to send."""
    by = attempt()
    claim = await ledger.claim(request(position, **given), by)
    assert isinstance(claim, Dispatched)
    assert await ledger.hand_back(claim, by)
    await sql(pool, "update agent_actions set relayed = true where key = %(key)s", key=claim.key)
    return claim.key


async def queue(
    pool: Pool,
    key: ActionKey,
    *,
    why: str = "send",
    tool: str = "charge",
    order: str | None = None,
    due_in: int = 0,
) -> None:
    await sql(
        pool,
        "insert into agent_relay (key, why, tool, order_key, due_at) values (%(key)s, %(why)s,"
        " %(tool)s, %(order)s, clock_timestamp() + make_interval(secs => %(due_in)s))",
        key=key,
        why=why,
        tool=tool,
        order=order,
        due_in=due_in,
    )


async def take(ledger: ActionLedger, *, limit: int = 100) -> list[ActionKey]:
    return [one.key for one in await ledger.relay.take_due(["charge"], limit=limit)]


async def due_in(pool: Pool, key: ActionKey) -> float | None:
    """Seconds until a row is due; None where it waits for a person."""
    (row,) = await sql(
        pool,
        "select extract(epoch from due_at - clock_timestamp())::float as left from agent_relay"
        " where key = %(key)s",
        key=key,
    )
    left: float | None = row["left"]
    return left


async def is_queued(ledger: ActionLedger, key: ActionKey) -> bool:
    return await ledger.relay.entry(key) is not None


# --- the queue -----------------------------------------------------------------------------


async def run_of(ledger: ActionLedger) -> Run:
    found = await ledger.runs.get(RUN)
    assert found is not None
    return found


async def test_of_many_relays_each_due_row_goes_to_one_and_no_other_row_to_any(
    ledger: ActionLedger, pool: Pool
) -> None:
    due = [await intent(ledger, pool, f"0.{number}") for number in range(40)]
    later, unserved, elsewhere = [await intent(ledger, pool, f"1.{n}") for n in range(2)] + [
        await intent(ledger, pool, "0.0", run=OTHER)
    ]
    await asyncio.gather(*(queue(pool, key) for key in due))
    await queue(pool, later, due_in=600)
    await queue(pool, unserved, tool="mail")
    await sql(pool, "update agent_runs set namespace = 'theirs' where run_key = %(run)s", run=OTHER)
    await queue(pool, elsewhere)

    taken = await asyncio.gather(*(take(ledger, limit=7) for _ in range(12)))
    again = await take(ledger)
    theirs = await ledger.relay.take_due(["charge"], limit=9, namespace="theirs")

    assert sorted(key for keys in taken for key in keys) == sorted(due)
    assert again == []
    assert [one.key for one in theirs] == [elsewhere]
    left = await due_in(pool, due[0])
    assert left is not None
    assert 5 < left <= 15  # whoever took it and died delays it so much


async def test_of_rows_in_order_only_the_first_is_taken_until_it_has_an_end(
    ledger: ActionLedger, pool: Pool
) -> None:
    first, second, third, free = [await intent(ledger, pool, f"0.{n}") for n in range(4)]
    for key in (first, second, third):
        await queue(pool, key, order="account-1")
    await queue(pool, free, order="account-2")

    begun = await take(ledger)
    waiting = await sql(pool, "select key from agent_relay where waits_for is not null")
    turns = [(await ledger.relay.entry(key) or (None, None))[1] for key in (first, second)]
    await ledger.park_unsent(first, "not sent")
    await ledger.relay.dequeue_if_settled(first)
    held_back = await take(ledger)
    await ledger.settle(first, DID_NOT_HAPPEN, by="ada")
    freed = await take(ledger)
    await ledger.relay.call_off(second, "nobody wants it any more", kind="NeverSent")

    assert begun == [first, free]
    assert len(waiting) == 2
    assert turns == [True, False]
    assert held_back == []
    assert freed == [second]
    assert await take(ledger) == [third]


async def test_many_that_wait_for_a_parked_one_of_their_order_hold_up_no_other(
    ledger: ActionLedger, pool: Pool
) -> None:
    first = await parked(ledger, "0.0")
    fresh = await intent(ledger, pool, "0.1")
    await queue(pool, first.key, order="account-1")
    await ledger.relay.dequeue_if_settled(first.key)
    await sql(
        pool,
        "with run as (insert into agent_runs (run_key, workflow_id, agent, input_digest,"
        " opened_attempt_at) select 'outbox/' || n, 'outbox', '', '', now()"
        " from generate_series(1, 1000) n returning run_key), action as (insert into"
        " agent_actions (key, tool, args, run_key, position, effect, requested_digest,"
        " effective_digest, relayed) select run_key || ':0', 'charge', '{}', run_key, '0',"
        " 'at_most_once', '', '', true from run returning key)"
        " insert into agent_relay (key, why, tool, order_key, due_at)"
        " select key, 'send', 'charge', 'account-1', now() - interval '1 hour' from action",
    )
    await queue(pool, fresh)

    taken = await take(ledger)
    (left,) = await sql(
        pool, "select count(*) as looked_at from agent_relay where waits_for is null"
    )

    assert taken == [fresh]
    assert left["looked_at"] == 2  # the first, which is parked, and what was taken


async def test_what_waits_for_one_of_its_order_is_taken_when_that_ends_during_a_look(
    ledger: ActionLedger, pool: Pool
) -> None:
    first, second, third = [await intent(ledger, pool, f"0.{n}") for n in range(3)]
    for key in (first, second, third):
        await queue(pool, key, order="account-1")
    await take(ledger)
    await sql(pool, "update agent_relay set waits_for = null, due_at = clock_timestamp()")

    ends = "delete from agent_relay where key = %(key)s"
    async with holding(pool, ends, commits=True, key=first):
        during = await take(ledger)  # it waits for no lock
    begins_to_wait = "update agent_relay set waits_for = %(first)s where key = %(key)s"
    after = await take(ledger)
    async with holding(pool, begins_to_wait, commits=True, first=second, key=third):
        ending = asyncio.create_task(ledger.relay.call_off(second, "not wanted", kind="NotWanted"))
        await until_blocked(pool, 1)
    await ending

    assert during == []
    assert after == [second]
    assert await take(ledger) == [third]


async def test_what_no_worker_here_may_take_holds_up_no_other(
    ledger: ActionLedger, pool: Pool
) -> None:
    await sql(pool, "update agent_runs set namespace = 'theirs' where run_key = %(run)s", run=OTHER)
    unserved, ours = [await intent(ledger, pool, f"0.{n}") for n in range(2)]
    elsewhere = await intent(ledger, pool, "0.0", run=OTHER)
    for key, tool in ((unserved, "mail"), (elsewhere, "charge"), (ours, "charge")):
        await queue(pool, key, tool=tool)

    assert await take(ledger, limit=1) == [ours]


async def test_each_lost_settling_is_followed_by_another_one_later_and_later(
    ledger: ActionLedger, pool: Pool
) -> None:
    key = await intent(ledger, pool, "0.0")
    await queue(pool, key)
    waits = []
    for _ in range(9):
        await sql(pool, "update agent_relay set due_at = clock_timestamp()")
        (taken,) = await ledger.relay.take_due(["charge"], limit=1)
        await ledger.relay.count_start(taken)
        await ledger.relay.count_start(taken)  # its answer was lost: it counts once
        waits.append(round(await due_in(pool, key) or 0, -1))

    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    counted = await ledger.relay.entry(key)
    assert counted is not None
    assert counted[0].starts == 9


async def test_a_start_does_not_count_once_the_settling_has_said_what_is_next(
    ledger: ActionLedger, pool: Pool
) -> None:
    kept, again = [await parked(ledger, at) for at in ("0.0", "0.1")]
    for one in (kept, again):
        await queue(pool, one.key)
    taken = await ledger.relay.take_due(["charge"], limit=2)

    await ledger.relay.dequeue_if_settled(kept.key)
    await ledger.relay.reopen(again.key)
    for row in taken:
        await ledger.relay.count_start(row)

    assert await due_in(pool, kept.key) is None
    assert (await due_in(pool, again.key) or 0) <= 0


async def test_a_row_leaves_the_queue_when_its_action_has_an_end(
    ledger: ActionLedger, pool: Pool
) -> None:
    done, unknown, open_ = [await dispatched(ledger, f"0.{n}") for n in range(3)]
    for claim in (done, unknown, open_):
        await queue(pool, claim.key)
    await ledger.record(done, RECEIPT)
    await ledger.park(unknown, "who knows")

    for claim in (done, unknown, open_):
        await ledger.relay.dequeue_if_settled(claim.key)
    found = {one.key: one for one in await ledger.relay.list()}

    assert set(found) == {unknown.key, open_.key}
    assert found[unknown.key].due_at is None
    assert found[unknown.key].parked_reason == "who knows"
    assert found[open_.key].due_at is not None
    await ledger.record(unknown, RECEIPT)  # late: it is known after all
    assert not await is_queued(ledger, unknown.key)


async def test_who_reopens_a_row_while_it_leaves_for_a_person_finds_it_due(
    ledger: ActionLedger, pool: Pool
) -> None:
    claim = await parked(ledger, "0.0")
    await queue(pool, claim.key)

    async with holding(pool, "select from agent_relay for update"):
        reopening = asyncio.create_task(ledger.relay.reopen(claim.key))
        await until_blocked(pool, 1)
        leaving = asyncio.create_task(ledger.relay.dequeue_if_settled(claim.key))
        await until_blocked(pool, 2)
    await asyncio.gather(reopening, leaving)

    assert await due_in(pool, claim.key) is not None


async def test_an_undo_leaves_the_queue_when_it_is_on_record_what_became_of_it(
    ledger: ActionLedger, pool: Pool
) -> None:
    rows = [await dispatched(ledger, f"0.{n}", compensator="refund") for n in range(4)]
    never_begun, lost, refused, unknown = rows
    for claim in rows:
        await ledger.record(claim, RECEIPT)
    await ledger.undo.begin(RUN, why="failed", failed=True, attempt_at=NOON)
    for claim in rows:
        await queue(pool, claim.key, why="undo", tool="refund")
    undos = {
        claim.key: await dispatched(
            ledger,
            f"undo-{ActionKey(claim.key).rpartition(':')[2]}",
            undoes=claim.key,
            purpose="undo",
        )
        for claim in (lost, refused, unknown)
    }
    await ledger.record(undos[refused.key], DID_NOT_HAPPEN)
    await queue(pool, refused.key, why="undo", tool="refund")  # as if it had been left there
    await ledger.park(undos[unknown.key], "who knows")

    for claim in rows:
        await ledger.relay.dequeue_if_settled(claim.key)
    waiting = {one.key for one in await ledger.relay.list()}
    await ledger.relay.leave_to_person(never_begun.key, "no worker serves refund")
    await ledger.record(undos[lost.key], RECEIPT)

    assert waiting == {never_begun.key, lost.key}
    assert await due_in(pool, never_begun.key) is None
    assert not await is_queued(ledger, lost.key)


async def test_an_undo_is_planned_whatever_else_of_the_run_is_unknown(
    ledger: ActionLedger, pool: Pool
) -> None:
    late = await dispatched(ledger, "0.0", compensator="refund")
    await parked(ledger, "0.1", compensator="refund")  # in vain: before the undo began
    await ledger.undo.begin(RUN, why="failed", failed=True, attempt_at=NOON)
    await ledger.record(late, RECEIPT)
    row = await ledger.get(late.key)
    assert row is not None

    planned = await ledger.undo.plan_one(row)

    assert planned is not None
    assert (planned.action.key, planned.at) == (late.key, "undo-0.0")


async def test_what_is_called_off_was_never_sent_and_frees_its_business_fact(
    ledger: ActionLedger, pool: Pool
) -> None:
    key = await intent(ledger, pool, "0.0", domain_key="order-1")
    sent = await dispatched(ledger, "0.1")
    for one in (key, sent.key):
        await queue(pool, one)

    called_off = [
        await ledger.relay.call_off(one, "it was stopped", kind="NeverSent")
        for one in (key, sent.key)
    ]
    again = await ledger.relay.call_off(key, "it was stopped", kind="NeverSent")
    next_one = await ledger.claim(request("0.0", run=OTHER, domain_key="order-1"), attempt())

    assert (called_off, again) == ([True, False], False)
    found = await ledger.get(key)
    assert found is not None
    assert (found.state, found.effect_possible) == ("error", False)
    assert isinstance(next_one, Dispatched)
    assert next_one.idempotency_key == "order-1~2"
    assert [one.key for one in await ledger.relay.list()] == [sent.key]


async def test_what_is_given_up_is_a_persons_unless_an_attempt_is_at_work(
    ledger: ActionLedger, pool: Pool
) -> None:
    dead = await dispatched(ledger, "0.0")
    live = await dispatched(ledger, "0.1", lease=LIVE)
    for claim in (dead, live):
        await queue(pool, claim.key)
        await ledger.relay.leave_to_person(claim.key, "tried in vain")
    unsent = await ledger.park_unsent(live.key, "not sent")

    states = [(await ledger.get(claim.key)) for claim in (dead, live)]
    assert [one.state for one in states if one] == ["unknown", "dispatched"]
    assert unsent.state == "dispatched"  # it was, so nobody may say that it was not
    assert await due_in(pool, dead.key) is None
    assert await due_in(pool, live.key) is not None


# --- what the relay may claim ----------------------------------------------------------------


async def test_the_relay_claims_nothing_of_a_run_that_goes_on_or_was_stopped(
    ledger: ActionLedger,
) -> None:
    lost = await dispatched(ledger, "0.0")
    sees_to = request("0.0", purpose="relay")
    asks = request("0.0", purpose="relay", lookup_only=True)

    for wanted in (sees_to, asks):
        with pytest.raises(RunNotRunning, match="goes on"):
            await ledger.claim(wanted, attempt(10))
    await ledger.relay.end_lost(
        await run_of(ledger), workflow_status="terminated", ended_at=NOON + timedelta(seconds=5)
    )
    taken_over = await ledger.claim(sees_to, attempt(10))
    await ledger.runs.stop(RUN, workflow_id="w", agent="", reason="no", attempt_at=NOON)
    with pytest.raises(RunNotRunning):
        await ledger.claim(sees_to, attempt(20))
    left = await ledger.claim(asks, attempt(20))

    assert isinstance(taken_over, Dispatched)
    assert (taken_over.taken_over, taken_over.idempotency_key) == (True, lost.idempotency_key)
    assert isinstance(left, Parked)


async def test_the_relay_waits_for_anothers_live_attempt_and_not_for_its_own(
    ledger: ActionLedger,
) -> None:
    await dispatched(ledger, "0.0", lease=LIVE)
    await ledger.relay.end_lost(await run_of(ledger), workflow_status="terminated", ended_at=NOON)
    sees_to = request("0.0", purpose="relay")

    anothers = await ledger.claim(sees_to, attempt(10, scheduled=9))
    own = await ledger.claim(sees_to, attempt(10, scheduled=0))

    assert isinstance(anothers, Busy)
    assert isinstance(own, Dispatched)


# --- runs that are gone ------------------------------------------------------------------------


async def test_what_a_gone_run_left_dispatched_is_queued_once_no_attempt_can_be_at_work(
    ledger: ActionLedger, pool: Pool
) -> None:
    dead = await dispatched(ledger, "0.0")
    live = await dispatched(ledger, "0.1", lease=LIVE)
    done = await dispatched(ledger, "0.2")
    await ledger.record(done, RECEIPT)
    unknown = await parked(ledger, "0.3")
    asked_again = await parked(ledger, "0.4")
    await queue(pool, asked_again.key, why="lookup")
    await ledger.relay.dequeue_if_settled(asked_again.key)
    await ledger.undo.reopen(asked_again.key)  # by an undo, which is lost
    unsent = await intent(ledger, pool, "0.5")
    # Its run's own, and not the relay's.
    await sql(pool, "update agent_actions set relayed = false where key = %(key)s", key=unsent)
    end = NOON + timedelta(seconds=5)

    seen = await run_of(ledger)
    ended = [
        await ledger.relay.end_lost(seen, workflow_status="terminated", ended_at=end)
        for _ in range(2)
    ]
    waiting = {one.key: one for one in await ledger.relay.list()}
    gone = await ledger.relay.list_lost()

    assert ended == [True, False]
    assert set(waiting) == {dead.key, live.key, asked_again.key}
    assert {one.why for one in waiting.values()} == {"lookup"}
    assert sorted(await take(ledger)) == sorted([dead.key, asked_again.key])
    left = await due_in(pool, live.key)
    assert left is not None
    assert 200 < left <= 300
    assert [(one.workflow_status, one.stands, one.unknown) for one in gone] == [
        ("terminated", 1, 4)
    ]
    with pytest.raises(RunNotRunning):
        await ledger.claim(request("0.5"), attempt(5))
    assert (await ledger.get(unsent)) is not None
    assert (await ledger.get(unknown.key)) is not None
    again = await ledger.claim(request("0.5"), attempt(6))
    run = await ledger.runs.get(RUN)
    assert isinstance(again, Dispatched)  # a reset: it lives
    assert run is not None
    assert (run.state, run.workflow_status) == ("running", None)
    assert await ledger.relay.list_lost() == []


async def test_what_nobody_could_ask_about_is_a_persons_at_once(ledger: ActionLedger) -> None:
    lost = await dispatched(ledger, "0.0")

    await ledger.relay.end_lost(
        await run_of(ledger), workflow_status="timed_out", ended_at=NOON, can_look_up=False
    )

    found = await ledger.get(lost.key)
    assert found is not None
    assert found.state == "unknown"
    assert "timed_out" in (found.parked_reason or "")
    assert await ledger.relay.list() == []


async def test_a_run_that_has_come_to_another_state_since_it_was_looked_at_is_not_gone(
    ledger: ActionLedger,
) -> None:
    await ledger.record(await dispatched(ledger, "0.0", compensator="refund"), RECEIPT)
    seen = await run_of(ledger)
    await ledger.undo.begin(RUN, why="failed", failed=True, attempt_at=NOON)

    assert not await ledger.relay.end_lost(seen, workflow_status="terminated", ended_at=NOON)
    assert (await run_of(ledger)).state == "undoing"
    assert await ledger.relay.end_lost(
        await run_of(ledger), workflow_status="failed", ended_at=NOON
    )


async def test_who_looked_last_before_the_decision_is_told_of_it(ledger: ActionLedger) -> None:
    """A child that a reset parent begins anew waits under another workflow id."""
    approvals = ledger.approvals
    given = (Position("0.0"), "t", "charge", "{}", "d", None)
    await run_of(ledger)
    asked = await approvals.request(ApprovalRequest(RUN, *given, waiting_workflow="first"))
    again = await approvals.request(ApprovalRequest(RUN, *given, waiting_workflow="second"))
    await approvals.look(asked.key, waiting_workflow="third")

    decided = await approvals.decide(asked.key, approve=True, by="ada")
    late, _ = await approvals.look(asked.key, waiting_workflow="fourth")

    assert late is not None
    told = [one.waiting_workflow for one in (asked, again, decided, late)]
    assert told == ["first", "second", "third", "third"]


async def test_an_approval_of_a_run_that_was_taken_for_gone_is_decided_once_it_goes_on(
    ledger: ActionLedger,
) -> None:
    approvals = ledger.approvals
    given = (Position("0.0"), "t", "charge", "{}", "d", None)
    asked = await approvals.request(ApprovalRequest(RUN, *given))
    end = NOON + timedelta(seconds=5)
    await ledger.relay.end_lost(await run_of(ledger), workflow_status="terminated", ended_at=end)

    await approvals.reopen_run(RUN, attempt_at=end)
    with pytest.raises(ApprovalRefused, match="acts no more"):
        await approvals.decide(asked.key, approve=True, by="ada")
    await ledger.questions.reopen_run(RUN, attempt_at=end + timedelta(seconds=1))

    assert (await approvals.decide(asked.key, approve=True, by="ada")).state == "approved"
    assert (await run_of(ledger)).workflow_status is None


async def test_a_run_that_ends_leaves_the_relay_what_is_the_relays(
    ledger: ActionLedger, pool: Pool
) -> None:
    """A reset run lives on, and ends well: what the relay was at work on is not parked."""
    mine, theirs = [await dispatched(ledger, f"0.{n}") for n in range(2)]
    await queue(pool, theirs.key)

    await ledger.runs.end(RUN, attempt_at=NOON + timedelta(seconds=1))

    states = [(await ledger.get(claim.key)) for claim in (mine, theirs)]
    assert [one.state for one in states if one] == ["unknown", "dispatched"]


async def test_runs_are_looked_at_in_turn_each_once_a_sweep(
    ledger: ActionLedger, pool: Pool
) -> None:
    await sql(pool, "update agent_runs set created_at = created_at - interval '1 minute'")
    await sql(pool, "update agent_runs set namespace = 'a' where run_key = %(run)s", run=OTHER)
    await ledger.runs.open(
        run_key=RunKey("young/r"), workflow_id="y", agent="a", input_digest="", attempt_at=NOON
    )
    relay = ledger.relay
    began = await relay.now()

    looked = [
        [run.run_key for run in await relay.take_runs(limit=1, before=began, namespace=name)]
        for name in ("b", "b", "a", "a")
    ]

    assert looked == [[RUN], [], [OTHER], []]


async def test_the_run_of_a_sub_agent_whose_workflow_nobody_knows_is_gone(
    ledger: ActionLedger, pool: Pool, temporal_client: Client
) -> None:
    """Its key names a position where that of another run names an execution."""
    below = sub_run_key(RUN, Position("0.0"))
    await ledger.runs.open(
        run_key=below, workflow_id="nobody", agent="a", input_digest="", attempt_at=NOON
    )
    await sql(
        pool,
        "update agent_runs set created_at = now() - interval '2 hours' where run_key = %(run)s",
        run=below,
    )

    gone = GoneRuns(ledger, temporal_client)
    assert await ActivityEnvironment().run(gone.close_gone_runs) == 1
    found = await ledger.runs.get(below)
    assert found is not None
    assert found.workflow_status == "not found"


async def test_a_detached_call_whose_time_is_up_is_the_relays_unless_its_run_was_stopped(
    ledger: ActionLedger,
) -> None:
    detached = request("0.0", detached=True)
    await ledger.claim(detached, attempt())
    assert isinstance(await ledger.claim(request("0.0", purpose="relay"), attempt(1)), Dispatched)
    outcomes = OutcomeActivities(ledger)

    told = []
    for _ in range(2):
        raw = await outcomes.settle_ended(pack(SettleEnded(detached.key, 1_000)))
        told.append(unpack(Reply, raw))
        await ledger.runs.stop(RUN, workflow_id="w", agent="", reason="no", attempt_at=NOON)

    assert [one.status for one in told] == ["ok", "unknown"]
    assert [one.action_key for one in told] == [detached.key] * 2
    found = await ledger.get(detached.key)
    assert found is not None
    assert found.state == "unknown"


# --- a person's word -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effect", "change", "refused"),
    [
        (Effect.IDEMPOTENT, "failures = 3", None),
        (Effect.LOOKUP, "failures = 3", None),
        (Effect.AT_MOST_ONCE, "dispatched_at = null", None),
        (Effect.AT_MOST_ONCE, "failures = 3", "must not be sent twice"),
        (Effect.IDEMPOTENT, "key_ttl = interval '0'", "has forgotten the key"),
        (Effect.IDEMPOTENT, "duplicate_of = 'other/r:0.0'", "reopen that one"),
        (Effect.IDEMPOTENT, "lease_until = now() + interval '1 hour'", "at work"),
        (Effect.IDEMPOTENT, "parked_at = null, parked_reason = null", "not left to a person"),
    ],
)
async def test_what_may_be_tried_again(
    ledger: ActionLedger, pool: Pool, effect: Effect, change: LiteralString, refused: str | None
) -> None:
    key = (await parked(ledger, "0.0", effect=effect)).key
    await sql(pool, "update agent_actions set " + change + " where key = %(key)s", key=key)

    if refused is not None:
        with pytest.raises(ReopenRefused, match=refused):
            await ledger.relay.reopen(key)
        assert not await is_queued(ledger, key)
        return
    reopened = [await ledger.relay.reopen(key) for _ in range(2)]

    assert [(one.parked, one.failures) for one in reopened] == [(False, 0), (False, 0)]
    assert await take(ledger) == [key]


async def test_what_is_settled_or_was_stopped_is_not_tried_again(ledger: ActionLedger) -> None:
    settled, stopped = await parked(ledger, "0.0"), await parked(ledger, "0.0", run=OTHER)
    await ledger.settle(settled.key, RECEIPT, by="ada")
    await ledger.runs.stop(OTHER, workflow_id="w", agent="", reason="no", attempt_at=NOON)

    for key, why in (
        (settled.key, "is settled"),
        (stopped.key, "was stopped"),
        (action_key(RUN, Position("7.7")), "there is no action"),
    ):
        with pytest.raises(ReopenRefused, match=why):
            await ledger.relay.reopen(key)


async def test_what_the_relay_has_no_tool_of_is_not_tried_again(
    ledger: ActionLedger, pool: Pool
) -> None:
    """Of a workflow that is not ours, unless it was detached; not so of a sub-agent's run."""
    keys = [(await parked(ledger, f"0.{n}", run=run)).key for n, run in enumerate((RUN, OTHER))]
    await sql(pool, "update agent_runs set spec = null")

    with pytest.raises(ReopenRefused, match="does not have"):
        await ledger.relay.reopen(keys[0])

    await sql(pool, "update agent_actions set relayed = true where key = %(key)s", key=keys[0])
    await sql(
        pool,
        "update agent_runs set parent_key = %(above)s, owner = 'w' where run_key = %(run)s",
        above=RUN,
        run=OTHER,
    )
    assert [(await ledger.relay.reopen(key)).parked for key in keys] == [False, False]


async def test_a_persons_word_calls_off_an_intent_of_the_relays(
    ledger: ActionLedger, pool: Pool
) -> None:
    key = await intent(ledger, pool, "0.0", domain_key="order-1")
    await queue(pool, key)

    (settled,) = await ledger.settle(key, DID_NOT_HAPPEN, by="ada")

    assert (settled.state, settled.decided_by) == ("error", "ada")
    assert await ledger.relay.list() == []
    next_one = await ledger.claim(request("0.0", run=OTHER, domain_key="order-1"), attempt())
    assert isinstance(next_one, Dispatched)


async def test_a_word_a_record_and_a_reopening_at_once_leave_one_outcome_and_no_row_behind(
    ledger: ActionLedger, pool: Pool
) -> None:
    given: dict[str, Any] = {"domain_key": "order-1", "compensator": "refund"}
    claim = await parked(ledger, "0.0", **given)
    await queue(pool, claim.key)

    seen = await run_of(ledger)

    def at_once() -> Sequence[Any]:
        return (
            ledger.record(claim, RECEIPT),
            ledger.settle(claim.key, DID_NOT_HAPPEN, by="ada"),
            ledger.relay.reopen(claim.key),
            ledger.relay.dequeue_if_settled(claim.key),
            ledger.relay.leave_to_person(claim.key, "in vain"),
            ledger.relay.end_lost(seen, workflow_status="terminated", ended_at=NOON),
            ledger.relay.take_due(["charge"], limit=9),
        )

    async with holding(pool, "select from agent_actions for update"):
        working = [asyncio.ensure_future(work) for work in at_once()]
        await until_blocked(pool, 4)
    ended = await asyncio.gather(*working, return_exceptions=True)
    await ledger.relay.dequeue_if_settled(claim.key)

    found = await ledger.get(claim.key)
    assert found is not None
    assert found.status == "done"
    assert ended[0] == found.recorded  # the record tells which one stands
    assert await ledger.relay.list() == []


def test_what_is_long_overdue_is_said_to_be() -> None:
    def waits(due: datetime | None) -> bool:
        key = ActionKey("r/x:0.0")
        return QueuedAction(
            key, 1, "send", "gone", None, due, 0, False, NOON, RUN, "0.0", None, None, NOON
        ).overdue

    assert [waits(None), waits(NOON), waits(NOON - timedelta(minutes=3))] == [False, False, True]


async def test_of_workers_that_ask_at_once_one_sweeps_and_the_next_after_it_or_its_death(
    ledger: ActionLedger, pool: Pool
) -> None:
    async def taken(every: int, queue: str = "q") -> list[Sweep]:
        ask = partial(ledger.relay.sweeps.take, namespace="default", task_queue=queue)
        asked = await asyncio.gather(*(ask(every=timedelta(seconds=every)) for _ in range(6)))
        return [one for one in asked if one is not None]

    first, other = await taken(0), await taken(0, "another")
    while_busy = await taken(0)
    await ledger.relay.sweeps.keep(first[0], seconds=0)
    too_early = await taken(60)
    second = await taken(0)
    await ledger.relay.sweeps.keep(first[0], seconds=0)  # its worker comes back late
    while_second = await taken(0)
    await sql(pool, "update agent_sweeps set busy_until = now()")  # it died
    third = await taken(0)
    # The clock of the server was ahead by a day, and is right by now.
    day = "began_at = began_at + interval '1 day', busy_until = busy_until + interval '1 day'"
    await sql(pool, f"update agent_sweeps set {day}")
    fourth = await taken(60)

    assert [len(one) for one in (first, other, second, third, fourth)] == [1, 1, 1, 1, 1]
    assert while_busy == too_early == while_second == []
    assert await ledger.relay.sweeps.last(namespace="default", task_queue="q") == fourth[0]


async def test_what_is_parked_of_ended_runs_is_queued_to_be_shown_up_to_the_limit(
    ledger: ActionLedger, pool: Pool
) -> None:
    oldest = await intent(ledger, pool, "0.0")
    keys = [await intent(ledger, pool, f"1.{at}") for at in range(3)]
    for key in (oldest, *keys):
        await ledger.park_unsent(key, "a test")
    show = partial(ledger.relay.queue_parked, ["charge"])
    while_open = await show(most=9)
    await sql(pool, "update agent_runs set state = 'ended', ended_attempt_at = now()")
    await sql(pool, "update agent_actions set duplicate_of = 'x' where key = %(key)s", key=keys[2])

    first = await show(most=2)
    full = await show(most=2)
    unserved = await ledger.relay.queue_parked(["ship"], most=9)
    rest = await show(most=9)

    assert while_open == []
    assert (first, full, unserved, rest) == ([oldest, keys[0]], [], [], [keys[1]])


async def test_what_is_settled_leaves_the_queue_also_where_no_worker_has_its_tool_any_more(
    ledger: ActionLedger, pool: Pool
) -> None:
    first = (await parked(ledger, "0.0")).key
    behind = await intent(ledger, pool, "0.1")
    await queue(pool, first, order="order-1", tool="ship")
    await queue(pool, behind, order="order-1")
    await ledger.relay.dequeue_if_settled(first, shown=True)
    waits = [await take(ledger), await ledger.relay.drop_settled()]
    await ledger.settle(first, RECEIPT, by="ada")
    at_once = await ledger.relay.drop_settled()
    in_time = await take(ledger)
    await sql(pool, "update agent_relay set due_at = due_at - interval '6 minutes'")

    late = await ledger.relay.drop_settled()

    assert (waits, at_once, in_time, late) == ([[], []], [], [], [first])
    assert await take(ledger) == [behind]


async def test_what_waits_behind_another_of_its_order_names_the_first(
    ledger: ActionLedger, pool: Pool
) -> None:
    keys = [await intent(ledger, pool, f"0.{at}") for at in range(4)]
    for key in keys[:3]:
        await queue(pool, key, order="order-1", due_in=-3600)
    await queue(pool, keys[3], due_in=-3600)

    listed = {one.key: (one.behind, one.overdue) for one in await ledger.relay.list()}

    assert listed == {
        keys[0]: (None, True),
        keys[1]: (keys[0], False),
        keys[2]: (keys[0], False),
        keys[3]: (None, True),
    }

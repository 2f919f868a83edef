"""Calls that a person has to approve: what is asked, what a decision does, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowUpdateFailedError
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ApplicationError

from commitline import (
    Agent,
    AgentClient,
    App,
    Effect,
    Intervention,
    RunHandle,
    ScriptedModel,
    tool,
)
from commitline.activities.contract.approvals import Decide
from commitline.activities.contract.conversation import Completion
from commitline.activities.contract.encoding import pack
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import call, say
from commitline.canonical import dumps, parse
from commitline.errors import (
    ApprovalRefused,
    CommitlineError,
    InvalidArguments,
    ModelUnavailable,
    NotAuthorized,
    RunFailed,
    RunNotRunning,
)
from commitline.identity import Position, RunKey
from commitline.ledger import Approval
from commitline.ledger.approvals import ApprovalRequest, check_same_call
from commitline.tests.builders import open_run
from commitline.workflows.base_run import DECISION

from .bench import Bench, eventually, fresh_id, one_agent
from .playing import replies_of
from .relay_bench import LONG_AGO, ledger_of


class Paid:
    """A tool that pays, and what it paid."""

    def __init__(self, **options: Any) -> None:
        self.calls: list[tuple[str, int]] = []

        @tool(
            effect=Effect.IDEMPOTENT,
            idempotency_key="order-{order_id}-refund",
            **{"approval": True, **options},
        )
        async def refund(order_id: str, cents: int = 500) -> dict[str, Any]:
            """Refund an order."""
            self.calls.append((order_id, cents))
            return {"refunded": cents}

        self.tool = refund


@tool(effect=Effect.READ)
async def look_up(order_id: str) -> str:
    """Look an order up."""
    return f"order {order_id}"


def asks(*orders: str, **arguments: Any) -> Completion:
    return call(*(("refund", {"order_id": one, **arguments}) for one in orders))


async def waiting(run: RunHandle, count: int = 1) -> Sequence[Approval]:
    """Wait until so many calls of the run wait for a person."""

    async def found() -> Sequence[Approval] | None:
        asked = await run.approvals()
        return asked if len(asked) == count else None

    asked = await eventually(found)
    assert asked is not None
    return asked


async def test_a_call_waits_and_is_carried_out_once_it_is_approved(bench: Bench) -> None:
    paid = Paid()

    async with bench.serving(one_agent([paid.tool], [asks("4821"), say("Done.")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        (asked,) = await waiting(run)
        before = (list(paid.calls), await run.actions(), (await run.status()).progress)
        await run.decide("0.0", approve=True, by="ada")
        result = await run.result()
        (action,) = await run.actions()
        (decided,) = await run.approvals(only_waiting=False)

    assert before[:2] == ([], [])
    assert before[2] is not None
    assert [one.state for one in before[2].calls] == ["awaiting_approval"]
    assert (asked.tool, asked.args) == ("refund", '{"order_id":"4821","cents":500}')
    assert asked.expires_at is not None
    assert timedelta(hours=71) < asked.expires_at - asked.now <= timedelta(hours=72)
    assert (result.output, paid.calls) == ("Done.", [("4821", 500)])
    assert (action.position, action.state, action.args) == ("0.0", "ok", asked.args)
    assert (decided.decision, decided.decided_by) == ("approved", "ada")


async def test_a_rejected_call_is_told_with_who_and_why_to_the_model_and_in_the_timeline(
    bench: Bench,
) -> None:
    paid = Paid()

    async with bench.serving(one_agent([paid.tool], [asks("4821"), say("Done.")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await waiting(run)
        await run.decide("0.0", approve=False, by="ada", reason="not now")
        await run.result()
        results, actions = await replies_of(run), await run.actions()
        progress = (await run.status()).progress
        rows = [one.user_metadata.summary.data for one in (await bench.history(run.id)).events]

    assert progress is not None
    assert [one.words for one in progress.calls] == ["not done: rejected by ada: not now"]
    assert [row for row in rows if b"turn" in row or b"rejects" in row] == [
        b'"scripted, turn 1"',
        b'"ada rejects 0.0: not now"',
        b'"scripted, turn 2; 0.0 rejected"',
    ]
    assert paid.calls == []
    assert actions == []
    assert results == [
        (
            "error",
            '{"error":{"type":"Rejected","message":"not executed: rejected by ada: not now",'
            '"effect":"none"}}',
        )
    ]


@pytest.mark.parametrize("edited", [None, {"text": "b" * 150_000}])
async def test_what_was_approved_travels_once_if_it_is_large_and_is_carried_out_whole(
    bench: Bench, edited: dict[str, str] | None
) -> None:
    sent: list[str] = []

    @tool(effect=Effect.AT_MOST_ONCE, approval=True)
    async def mail(text: str) -> str:
        """Mail a long text."""
        sent.append(text)
        return "mailed"

    wanted = call(("mail", {"text": "a" * 150_000}))
    async with bench.serving(one_agent([mail], [wanted, say("Done.")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await waiting(run)
        await run.decide("0.0", approve=True, by="ada", args=edited)
        await run.result()
        again = await bench.rerun(client, run.id)
        events = (await bench.history(run.id)).events

    large = [one.event_type for one in events if one.ByteSize() > 100_000]
    assert sent == [(edited or {"text": "a" * 150_000})["text"]]
    assert [one.state for one in again.actions] == ["ok"]
    decision = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ADMITTED
    assert [one for one in large if one != decision] == [
        EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED,  # the model's answer
        EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,  # the call, as the model wanted it
    ]


async def test_a_mixed_batch_settles_call_by_call_over_a_restart_of_the_worker(
    bench: Bench,
) -> None:
    paid = Paid()
    batch = call(
        ("look_up", {"order_id": "1"}),
        ("refund", {"order_id": "2"}),
        ("refund", {"order_id": "3"}),
    )
    app = one_agent([look_up, paid.tool], [batch, say("Done.")])

    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await waiting(run, 2)
    async with bench.serving(app) as client:
        run = client.run(run.id)
        await run.decide("0.1", approve=True, by="ada")
        await waiting(run, 1)
        await run.decide("0.2", approve=False, by="ada", reason="not now")
        await run.result()
        results = await replies_of(run)

    assert paid.calls == [("2", 500)]
    assert [status for status, _ in results] == ["ok", "ok", "error"]
    assert [content for _, content in results][:2] == ['"order 1"', '{"refunded":500}']
    assert "not now" in results[2][1]


async def test_only_what_the_predicate_asks_for_waits(bench: Bench) -> None:
    paid = Paid(approval=lambda arguments: arguments["cents"] > 1_000)
    first, second = asks("1", cents=1_000), asks("2", cents=1_001)
    answers = [first, second, say("Done.")]

    async with bench.serving(one_agent([paid.tool], answers)) as client:
        run = await client.start("agent", "go", id=fresh_id())
        (asked,) = await waiting(run)
        paid_before = list(paid.calls)
        await run.decide("1.0", approve=True, by="ada")
        await run.result()

    assert (asked.position, paid_before) == ("1.0", [("1", 1_000)])
    assert paid.calls == [("1", 1_000), ("2", 1_001)]


async def test_a_predicate_that_fails_means_that_a_person_is_asked(bench: Bench) -> None:
    paid = Paid(approval=lambda arguments: arguments["no such"])

    async with bench.serving(one_agent([paid.tool], [asks("4821"), say("Done.")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await waiting(run)
        await run.decide("0.0", approve=False, by="ada")
        await run.result()

    assert paid.calls == []


async def test_one_of_many_decisions_at_once_counts(bench: Bench) -> None:
    paid = Paid()

    async with bench.serving(one_agent([paid.tool], [asks("4821"), say("Done.")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await waiting(run)
        people = [("ada", True), ("bob", False), ("cy", True), ("di", False), ("eve", True)]
        said = await asyncio.gather(
            *(run.decide("0.0", approve=approve, by=by) for by, approve in people),
            return_exceptions=True,
        )
        await run.result()
        (decided,) = await run.approvals(only_waiting=False)

    counted = [people[at] for at, one in enumerate(said) if one is None]
    assert counted == [(decided.decided_by, decided.decision == "approved")]
    assert {type(one) for one in said if one is not None} == {ApprovalRefused}
    assert paid.calls == ([("4821", 500)] if counted[0][1] else [])


async def test_the_same_decision_by_the_same_person_may_be_repeated(bench: Bench) -> None:
    paid = Paid()
    answers = [call(*[("refund", {"order_id": one}) for one in "12"]), say("Done.")]

    async with bench.serving(one_agent([paid.tool], answers)) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await waiting(run, 2)
        await run.decide("0.0", approve=True, by="ada")
        await run.decide("0.0", approve=True, by="ada")
        with pytest.raises(ApprovalRefused, match="approved by ada"):
            await run.decide("0.0", approve=False, by="ada")
        await run.decide("0.1", approve=False, by="ada")
        await run.result()

    assert paid.calls == [("1", 500)]


async def test_edited_arguments_are_validated_kept_keyed_and_carried_out(bench: Bench) -> None:
    paid = Paid()

    async with bench.serving(one_agent([paid.tool], [asks("4821"), say("Done.")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await waiting(run)
        with pytest.raises(InvalidArguments, match="cents"):
            await run.decide("0.0", approve=True, by="ada", args={"order_id": "1", "cents": "all"})
        still = await waiting(run)
        await run.decide("0.0", approve=True, by="ada", args={"order_id": "4822", "cents": 80})
        await run.result()
        (action,) = await run.actions()
        (decided,) = await run.approvals(only_waiting=False)

    assert len(still) == 1
    assert paid.calls == [("4822", 80)]
    assert (action.args, action.domain_key) == (
        '{"order_id":"4822","cents":80}',
        "order-4822-refund",
    )
    assert (decided.args, decided.edited_args) == (
        '{"order_id":"4821","cents":500}',
        '{"order_id":"4822","cents":80}',
    )


async def test_edited_arguments_may_be_as_large_as_a_models_and_no_larger(bench: Bench) -> None:
    noted: list[int] = []

    @tool(effect=Effect.IDEMPOTENT, approval=True)
    async def note(text: str) -> None:
        """Note it."""
        noted.append(len(text))

    largest = "x" * (262_144 - len('{"text":""}'))
    over = {"text": f"{largest}x"}
    told = "note: the arguments have 262,145 bytes, over 256 KiB"
    answers = [call(("note", {"text": "short"})), say("Done.")]

    async with bench.serving(one_agent([note], answers)) as client:
        run = await client.start("agent", "go", id=fresh_id())
        (asked,) = await waiting(run)
        with pytest.raises(InvalidArguments, match=told):
            await run.decide("0.0", approve=True, by="ada", args=over)
        # Of a client that does not look by itself.
        workflow = bench.temporal.get_workflow_handle(run.id)
        said = Decide(asked.run_key, asked.position, approve=True, by="ada", arguments=dumps(over))
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await workflow.execute_update(DECISION, pack(said), result_type=RawValue)
        await run.decide("0.0", approve=True, by="ada", args={"text": largest})
        await run.result()

    assert isinstance(refused.value.cause, ApplicationError)
    assert refused.value.cause.type == "InvalidArguments"
    assert told in refused.value.cause.message
    assert noted == [len(largest)]


async def test_what_nobody_approves_in_time_is_not_carried_out(bench: Bench) -> None:
    paid = Paid(approval_expires=timedelta(seconds=1))

    async with bench.serving(one_agent([paid.tool], [asks("4821"), say("Done.")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await run.result()
        (asked,) = await run.approvals(only_waiting=False)
        with pytest.raises(ApprovalRefused, match="has ended: completed"):
            await run.decide("0.0", approve=True, by="ada")
        results = await replies_of(run)

    assert (paid.calls, asked.state) == ([], "expired")
    assert "not executed: nobody approved it until" in results[0][1]


async def test_a_decision_outlives_a_reset_and_counts_once(bench: Bench) -> None:
    paid = Paid()

    async with bench.serving(one_agent([paid.tool], [asks("4821"), say("Done.")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await waiting(run)
        await run.decide("0.0", approve=True, by="ada")
        await run.result()
        await run.reset(to_step=0)
        result = await run.result()

    assert (result.output, paid.calls) == ("Done.", [("4821", 500)])


async def test_a_retried_run_does_not_ask_again(bench: Bench) -> None:
    paid = Paid()
    failed: list[int] = []

    def fails_once(request: ModelRequest) -> Completion:
        if not failed:
            failed.append(1)
            raise ModelUnavailable("500")
        return say("Done.")

    model = ScriptedModel("scripted", [asks("4821"), fails_once])
    app = App([Agent("agent", model, "Do it.", tools=[paid.tool], model_tries=1)])
    policy = RetryPolicy(initial_interval=timedelta(milliseconds=100), maximum_attempts=2)

    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id(), retry_policy=policy)
        await waiting(run)
        await run.decide("0.0", approve=True, by="ada")
        result = await run.result()
        asked = await run.approvals(only_waiting=False)

    assert (result.output, paid.calls, len(asked)) == ("Done.", [("4821", 500)], 1)


async def test_a_stop_ends_the_wait_and_nothing_can_be_decided_any_more(bench: Bench) -> None:
    paid = Paid()

    async with bench.serving(one_agent([paid.tool], [asks("4821"), say("Done.")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await waiting(run)
        status = await run.stop()
        with pytest.raises(ApprovalRefused, match="has ended: canceled"):
            await run.decide("0.0", approve=True, by="ada")
        left = await run.approvals()
        with pytest.raises(RunFailed):
            await run.result()

    assert (status.state, paid.calls, left) == ("canceled", [], [])


async def test_who_may_decide_is_the_applications_word(bench: Bench) -> None:
    paid = Paid()
    seen: list[tuple[str, str, str | None]] = []

    async def authorize(by: str, wanted: Intervention) -> bool:
        assert isinstance(wanted.about, Approval)
        seen.append((by, wanted.verb, wanted.args))
        return by == "ada"

    async with bench.serving(one_agent([paid.tool], [asks("4821"), say("Done.")])) as served:
        guarded = AgentClient(served.temporal, bench.settings, authorize=authorize)
        async with guarded as client:
            run = await client.start("agent", "go", id=fresh_id())
            await waiting(run)
            with pytest.raises(NotAuthorized, match="'eve'"):
                await run.decide("0.0", approve=True, by="eve")
            still = await waiting(run)
            await run.decide("0.0", approve=True, by="ada")
            await run.result()

    assert len(still) == 1
    shown = '{"order_id":"4821","cents":500}'
    assert seen == [("eve", "approve", shown), ("ada", "approve", shown)]
    assert paid.calls == [("4821", 500)]


async def test_who_may_decide_depends_on_the_arguments_that_would_be_carried_out(
    bench: Bench,
) -> None:
    paid = Paid()

    def up_to_300(by: str, wanted: Intervention) -> bool:
        return int(parse(wanted.args or "{}").get("cents", 0)) <= 300

    answers = [asks("4821", cents=100), say("Done.")]
    async with bench.serving(one_agent([paid.tool], answers)) as served:
        guarded = AgentClient(served.temporal, bench.settings, authorize=up_to_300)
        async with guarded as client:
            run = await client.start("agent", "go", id=fresh_id())
            await waiting(run)
            for too_much in ({"order_id": "4821", "cents": 9_999_999}, {"cents": 301}):
                with pytest.raises(NotAuthorized, match="approve"):
                    await run.decide("0.0", approve=True, by="ada", args=too_much)
            for other_than_it_looks in ({"order_id": "4821"}, {"order_id": "1", "cents": "200"}):
                # A default of 500, and a text that is read as a number.
                with pytest.raises(InvalidArguments, match="not with what was authorized"):
                    await run.decide("0.0", approve=True, by="ada", args=other_than_it_looks)
            args = {"cents": 200, "order_id": "4821"}
            await run.decide("0.0", approve=True, by="ada", args=args)
            await run.result()

    assert paid.calls == [("4821", 200)]


async def test_arguments_that_do_not_fit_are_refused_before_anybody_is_asked(
    bench: Bench,
) -> None:
    paid = Paid()
    answers = [call(("refund", {"order_id": "1", "cents": "all"})), say("Done.")]

    async with bench.serving(one_agent([paid.tool], answers)) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await run.result()
        results, asked = await replies_of(run), await run.approvals(only_waiting=False)

    assert (paid.calls, asked) == ([], [])
    assert "InvalidArguments" in results[0][1]


async def test_a_decision_about_nothing_is_refused(bench: Bench) -> None:
    paid = Paid()

    async with bench.serving(one_agent([paid.tool], [asks("4821"), say("Done.")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await waiting(run)
        with pytest.raises(ApprovalRefused, match="nothing was asked"):
            await run.decide("7.0", approve=True, by="ada")
        await run.decide("0.0", approve=False, by="ada")
        await run.result()


@pytest.mark.parametrize("odd", ["a\x00b", "a\udce9b"], ids=["nul", "surrogate"])
async def test_a_name_and_a_reason_that_cannot_be_stored_wedge_nothing(
    bench: Bench, odd: str
) -> None:
    paid = Paid()
    seen: list[str] = []

    def authorize(by: str, about: object) -> bool:
        seen.append(by)
        return True

    async with bench.serving(one_agent([paid.tool], [asks("4821"), say("Done.")])) as served:
        guarded = AgentClient(served.temporal, bench.settings, authorize=authorize)
        async with guarded as client:
            run = await client.start("agent", "go", id=fresh_id())
            await waiting(run)
            for _ in range(2):
                await run.decide("0.0", approve=False, by=odd, reason=f"not {odd}")
            await run.result()
            (decided,) = await run.approvals(only_waiting=False)
            results = await replies_of(run)

    assert (decided.decision, decided.decided_by, decided.reason) == ("rejected", "a?b", "not a?b")
    assert seen == ["a?b", "a?b"]
    assert "rejected by a?b: not a?b" in results[0][1]


async def test_what_can_never_be_stored_is_refused_and_not_tried_for_ever(bench: Bench) -> None:
    paid = Paid()

    async with bench.serving(one_agent([paid.tool], [asks("4821"), say("Done.")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        (asked,) = await waiting(run)
        workflow = bench.temporal.get_workflow_handle(run.id)
        said = Decide(asked.run_key, Position("0.0\x00"), approve=True, by="ada")
        async with asyncio.timeout(20):
            with pytest.raises(WorkflowUpdateFailedError) as refused:
                await workflow.execute_update(DECISION, pack(said), result_type=RawValue)
        await run.decide("0.0", approve=True, by="ada")
        await run.result()

    assert isinstance(refused.value.cause, ApplicationError)
    assert refused.value.cause.type == "Unstorable"
    assert "CL220" in refused.value.cause.message
    assert paid.calls == [("4821", 500)]


async def test_an_approval_is_for_one_call_alone(bench: Bench) -> None:
    paid = Paid()

    async with bench.serving(one_agent([paid.tool], [asks("4821"), say("Done.")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        (asked,) = await waiting(run)
        await run.decide("0.0", approve=False, by="ada")
        await run.result()

    check_same_call(asked, "refund", asked.requested_digest)
    for other in (("charge", asked.requested_digest), ("refund", "another")):
        with pytest.raises(CommitlineError, match="was requested for refund"):
            check_same_call(asked, *other)


async def test_who_asks_in_a_run_that_is_being_stopped_is_told_that_it_is(bench: Bench) -> None:
    run = RunKey(f"{fresh_id()}/1")
    asked = ApprovalRequest(run, Position("0.0"), run, "refund", "{}", "digest", None)
    async with ledger_of(bench) as ledger:
        await open_run(ledger, run, attempt_at=LONG_AGO)
        await ledger.runs.stop(
            run, workflow_id="w", agent="a", reason="no", attempt_at=LONG_AGO, compensate=True
        )

        with pytest.raises(RunNotRunning) as raised:
            await ledger.approvals.request(asked)

    # It is to be cancelled, and undone; taken for a failure, it would end as one, and stand.
    assert raised.value.stopping


async def test_who_asks_after_the_end_goes_on_with_the_run_as_a_claim_does(bench: Bench) -> None:
    run, second = RunKey(f"{fresh_id()}/1"), timedelta(seconds=1)
    asked = ApprovalRequest(run, Position("0.0"), run, "refund", "{}", "digest", None)
    async with ledger_of(bench) as ledger:
        await open_run(ledger, run, attempt_at=LONG_AGO)
        await ledger.runs.end(run, attempt_at=LONG_AGO + second)

        with pytest.raises(RunNotRunning):
            await ledger.approvals.request(asked, attempt_at=LONG_AGO)
        found = await ledger.approvals.request(asked, attempt_at=LONG_AGO + 2 * second)
        reopened = await ledger.runs.get(run)

    assert found.state == "waiting"
    assert reopened is not None
    assert reopened.state == "running"

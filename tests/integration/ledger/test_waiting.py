"""What waits is counted by kind, with the age of the oldest; what waits for nobody is not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from commitline.errors import LedgerUnavailable
from commitline.identity import Position, RunKey
from commitline.ledger import ActionLedger, ApprovalRequest, Parked, QuestionRequest, ledger_pool
from commitline.ledger.pool import Pool
from commitline.ledger.waiting import Waiting, WaitingLedger
from commitline.metrics import LEDGER_CALL_DURATION, LEDGER_OUTAGES, Metric, reporting_to
from commitline.tests.builders import (
    NOON,
    action_request,
    after_noon,
    attempt,
    open_run,
    parked,
)

RUN, OVER = RunKey("waits/1"), RunKey("is-over/1")

APPROVAL = ApprovalRequest(RUN, Position("1.0"), RUN, "refund", "{}", "d", None, 1)
QUESTION = QuestionRequest(
    run_key=RUN,
    position=Position("2.0"),
    thread_id=RUN,
    tool="refund",
    index=0,
    message="Which one?",
    payload="{}",
    expires_after=None,
)


async def test_only_what_somebody_has_to_act_on_is_counted(
    ledger: ActionLedger, pool: Pool
) -> None:
    for run in (RUN, OVER):
        await open_run(ledger, run)
    nothing = await WaitingLedger.beside(ledger).look()
    await parked(ledger, action_request(RUN))
    repeats = await ledger.claim(action_request(RUN, "1.0"), attempt(1))
    behind = await parked(ledger, action_request(RUN, "3.0", args="{}"))
    await ledger.approvals.request(APPROVAL, attempt_at=NOON)
    await ledger.approvals.request(
        replace(APPROVAL, position=Position("1.1"), expires_after=timedelta(seconds=-1)),
        attempt_at=NOON,
    )
    await ledger.approvals.request(replace(APPROVAL, run_key=OVER), attempt_at=NOON)
    for number in range(2):
        at = Position(f"2.{number}")
        await ledger.questions.raise_question(replace(QUESTION, position=at), None, attempt_at=NOON)
    await ledger.runs.end(OVER, attempt_at=after_noon(60))
    async with pool.connection() as connection:
        await connection.execute(
            "update agent_approvals set requested_at = requested_at - interval '1 hour'"
        )
        await connection.execute(
            "update agent_actions set parked_at = parked_at - interval '1 hour'"
        )
        await connection.execute(
            "insert into agent_relay (key, why, tool, due_at, waits_for) values"
            " (%(first)s, 'lookup', 'ship', clock_timestamp() - interval '1 hour', null),"
            " (%(second)s, 'lookup', 'ship', clock_timestamp() + interval '1 hour', null),"
            " (%(behind)s, 'lookup', 'ship', clock_timestamp() - interval '2 hours', %(first)s)",
            {
                "first": action_request(RUN).key,
                "second": action_request(RUN, "1.0").key,
                "behind": behind.key,
            },
        )

    found = {one.kind: one for one in await WaitingLedger.beside(ledger).look()}

    assert isinstance(repeats, Parked)  # a person settles both at once
    kinds = ("approval", "question", "relay", "unknown")
    assert sorted(nothing, key=lambda one: one.kind) == [Waiting(kind, 0, 0) for kind in kinds]
    assert {kind: found[kind].number for kind in kinds} == {
        "approval": 1,
        "question": 2,
        "relay": 1,
        "unknown": 2,
    }
    assert {kind: round(found[kind].oldest_seconds / 60) for kind in kinds} == {
        "approval": 60,
        "question": 0,
        "relay": 60,
        "unknown": 60,
    }


class Reports:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[tuple[str, tuple[str, ...]]] = []

    def add(self, metric: Metric, number: int, values: tuple[str, ...]) -> None:
        self.got.append((metric.name, values))

    def record(self, metric: Metric, seconds: float, values: tuple[str, ...]) -> None:
        assert 0 < seconds < 10
        self.got.append((metric.name, values))

    def put(self, metric: Metric, number: float, values: tuple[str, ...]) -> None:
        raise AssertionError("no gauge is set by a call")


async def test_a_ledger_call_is_measured_by_its_method_or_query_and_an_outage_counts(
    ledger: ActionLedger,
) -> None:
    reports = Reports()
    await open_run(ledger, RUN)
    closed = ledger_pool("postgresql://127.0.0.1:1/none")
    away = ActionLedger(closed, statement_seconds=0.1)

    with reporting_to(reports):
        await parked(ledger, action_request(RUN))
        await ledger.get(action_request(RUN).key)
        with pytest.raises(LedgerUnavailable):
            await away.list(RUN)
    await ledger.get(action_request(RUN).key)  # nobody is told

    assert reports.got == [
        (LEDGER_CALL_DURATION.name, ("ActionLedger.claim", "answered")),
        (LEDGER_CALL_DURATION.name, ("ActionLedger.park", "answered")),
        (LEDGER_CALL_DURATION.name, ("get_action", "answered")),
        (LEDGER_OUTAGES.name, ()),
        (LEDGER_CALL_DURATION.name, ("list_actions", "unavailable")),
    ]

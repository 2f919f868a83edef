"""Questions on their rows: what asking does to a call, and who may touch that meanwhile."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest
import pytest_asyncio

from commitline.errors import AnswerRefused, Fenced, RunNotRunning
from commitline.identity import Position, RunKey
from commitline.ledger import (
    ActionLedger,
    ActionRequest,
    AlreadyDone,
    Dispatched,
    Effect,
    Outcome,
    Parked,
    QuestionRequest,
)
from commitline.ledger.pool import Pool
from commitline.tests.builders import NOON, action_request, attempt, dispatched, open_run
from commitline.tests.integration.database import sql

RUN_A = RunKey("support-1/e1")
RUN_B = RunKey("support-2/e1")
DONE = Outcome.ok('"done"')


def refund(run: RunKey = RUN_A, effect: Effect = Effect.IDEMPOTENT) -> ActionRequest:
    return action_request(run, tool="refund", effect=effect, domain_key="order-4821-refund")


QUESTION = QuestionRequest(
    run_key=RUN_A,
    position=Position("0.0"),
    thread_id=RUN_A,
    tool="refund",
    index=0,
    message="Refund?",
    payload='{"a": 1, "b": 2}',
    expires_after=timedelta(hours=1),
)
KEY = QUESTION.key


@pytest_asyncio.fixture(autouse=True)
async def runs(ledger: ActionLedger) -> None:
    """Two runs that run."""
    for run in (RUN_A, RUN_B):
        await open_run(ledger, run, workflow_id=run)


async def expire(pool: Pool) -> None:
    await sql(pool, "update agent_questions set expires_at = clock_timestamp()")


async def test_asking_hands_the_row_back_and_may_be_repeated(ledger: ActionLedger) -> None:
    claim = await dispatched(ledger, refund(), attempt())

    first, _ = await ledger.questions.raise_question(QUESTION, claim, attempt_at=NOON)
    again, _ = await ledger.questions.raise_question(
        replace(QUESTION, payload='{"b":2,"a":1}'), claim, attempt_at=NOON
    )
    action = await ledger.get(KEY)
    other = replace(QUESTION, message="Another?")
    with pytest.raises(Fenced):
        await ledger.questions.raise_question(other, claim, attempt_at=NOON)

    assert action is not None
    assert (first.number, again.number, first.state) == (1, 1, "waiting")
    assert (action.state, action.tries, action.claim_token) == ("intent", 0, None)


async def test_a_later_attempt_finds_what_was_asked_and_another_question_replaces_it(
    ledger: ActionLedger,
) -> None:
    questions = ledger.questions
    claim = await dispatched(ledger, refund(), attempt())
    await questions.raise_question(QUESTION, claim, attempt_at=NOON)
    await questions.answer(KEY, 1, '"yes"', by="ada")
    second = await dispatched(ledger, refund(), attempt(1))
    await questions.raise_question(replace(QUESTION, index=1), second, attempt_at=NOON)
    third = await dispatched(ledger, refund(), attempt(2))

    await questions.raise_question(replace(QUESTION, payload="3"), third, attempt_at=NOON)
    asked = await questions.list(RUN_A, only_waiting=False)
    fourth = await dispatched(ledger, refund(), attempt(3))

    assert [one.answer for one in second.questions] == ['"yes"']
    assert [(one.number, one.state) for one in asked] == [
        (1, "replaced"),
        (2, "replaced"),
        (3, "waiting"),
    ]
    assert [one.number for one in fourth.questions] == [3]


@pytest.mark.parametrize("answered", [False, True], ids=["waits", "is answered"])
async def test_another_action_leaves_a_waiting_one_alone_and_goes_on_with_an_answered_one(
    ledger: ActionLedger, *, answered: bool
) -> None:
    claim = await dispatched(ledger, refund(), attempt())
    await ledger.questions.raise_question(QUESTION, claim, attempt_at=NOON)
    if answered:
        await ledger.questions.answer(KEY, 1, '"yes"', by="ada")

    other = await ledger.claim(refund(RUN_B), attempt(1))
    again = await ledger.claim(refund(RUN_B), attempt(2))
    own = await ledger.get(KEY)

    assert own is not None
    if answered:
        assert isinstance(other, Dispatched)
        assert (other.key, [one.answer for one in other.questions]) == (KEY, ['"yes"'])
    else:
        assert isinstance(other, AlreadyDone)
        assert isinstance(again, AlreadyDone)
        assert other.action.recorded is not None
        assert again.action.recorded == other.action.recorded
        assert "waits for a person" in other.action.recorded.value["message"]
        assert (own.state, own.tries) == ("intent", 0)


async def test_what_has_expired_gives_the_business_fact_free_and_takes_no_answer(
    ledger: ActionLedger, pool: Pool
) -> None:
    claim = await dispatched(ledger, refund(), attempt())
    await ledger.questions.raise_question(QUESTION, claim, attempt_at=NOON)
    await expire(pool)

    other = await dispatched(ledger, refund(RUN_B), attempt(1))
    own = await ledger.claim(refund(), attempt(2))
    with pytest.raises(AnswerRefused, match="has expired"):
        await ledger.questions.answer(KEY, 1, '"late"', by="ada")

    assert (other.key, other.settles_for) == (refund(RUN_B).key, None)
    assert isinstance(own, AlreadyDone)
    assert (own.action.state, own.action.effect_possible) == ("error", False)


async def test_what_an_earlier_attempt_may_have_sent_rests_and_is_parked_when_it_expires(
    ledger: ActionLedger, pool: Pool
) -> None:
    await dispatched(ledger, refund(), attempt())
    taken_over = await dispatched(ledger, refund(), attempt(1))
    await ledger.questions.raise_question(QUESTION, taken_over, attempt_at=NOON, over=False)

    away = await ledger.claim(refund(RUN_B), attempt(2))
    resting = await ledger.get(KEY)
    await expire(pool)
    question, parked = await ledger.questions.look(KEY, 1)

    assert isinstance(away, AlreadyDone)
    assert resting is not None
    assert (resting.state, resting.leased) == ("dispatched", False)
    assert question is not None
    assert parked is not None
    assert (question.state, parked.state) == ("expired", "unknown")
    assert isinstance(await ledger.claim(refund(), attempt(3)), Parked)


async def test_in_a_run_that_ends_nothing_is_asked_and_its_intent_is_nobodys(
    ledger: ActionLedger,
) -> None:
    claim = await dispatched(ledger, refund(), attempt())
    stop = {"workflow_id": RUN_A, "agent": "a", "reason": "r", "attempt_at": NOON}
    await ledger.runs.stop(RUN_A, **stop)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    with pytest.raises(RunNotRunning) as refused:
        await ledger.questions.raise_question(QUESTION, claim, attempt_at=NOON)
    left = await ledger.get(KEY)
    asked = await ledger.questions.list(only_waiting=False)
    other = await dispatched(ledger, refund(RUN_B), attempt(1))

    assert left is not None
    assert (refused.value.stopping, left.state, asked) == (True, "intent", [])
    assert other.key == refund(RUN_B).key


async def test_an_attempt_that_was_overtaken_asks_nothing(ledger: ActionLedger) -> None:
    zombie = await dispatched(ledger, refund(), attempt())
    later = await dispatched(ledger, refund(), attempt(1))

    with pytest.raises(Fenced):
        await ledger.questions.raise_question(QUESTION, zombie, attempt_at=NOON)

    assert await ledger.record(later, DONE) == DONE


async def test_an_answer_is_a_value_and_signed(ledger: ActionLedger, pool: Pool) -> None:
    claim = await dispatched(ledger, refund(), attempt())
    await ledger.questions.raise_question(QUESTION, claim, attempt_at=NOON)

    with pytest.raises(AnswerRefused, match="needs a value"):
        await ledger.questions.answer(KEY, 1, "null", by="ada")
    with pytest.raises(psycopg.errors.CheckViolation, match="answer_has_a_value"):
        await sql(
            pool,
            "update agent_questions set answer = 'null', answered_by = 'x', answered_at = now()",
        )
    with pytest.raises(psycopg.errors.CheckViolation, match="answer_is_signed"):
        await sql(pool, "update agent_questions set answer = '1'")

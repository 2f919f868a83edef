"""Asking midway: which answer a question gets, and what is a pause."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from commitline import Effect, ToolContext, tool
from commitline.activities.app.interrupt import AttemptQuestions, Interrupted, is_interrupt
from commitline.errors import CannotInterrupt, UnrepresentableValue
from commitline.identity import ActionKey, Position, RunKey
from commitline.ledger import Question
from commitline.tests.builders import NOON


def context(questions: AttemptQuestions | None = None) -> ToolContext:
    return ToolContext(
        "key", ActionKey("r/1:0.0"), RunKey("r/1"), Position("0.0"), "t", False, questions=questions
    )


def question(payload: str, answer: str | None, number: int = 1) -> Question:
    return Question(
        key=ActionKey("r/1:0.0"),
        number=number,
        run_key=RunKey("r/1"),
        position=Position("0.0"),
        thread_id="r/1",
        tool="t",
        message="",
        payload=payload,
        raised_at=NOON,
        expires_at=None,
        replaced_at=None,
        answer=answer,
        answered_by=None if answer is None else "ada",
        answered_at=None if answer is None else NOON,
        workflow_id="r",
        now=NOON,
    )


async def outcome(asked: Sequence[Question], *payloads: Any) -> tuple[list[Any], Any]:
    """Return the answers that a tool gets, and what it is left asking."""
    questions = AttemptQuestions(asked)
    got: list[Any] = []
    for payload in payloads:
        try:
            got.append(await context(questions).interrupt(payload))
        except Interrupted:
            got.append("paused")
    return got, questions.open_question and (
        questions.open_question.index,
        questions.open_question.payload,
    )


@pytest.mark.parametrize(
    ("asked", "payloads", "answers", "open_question"),
    [
        ([], ["a"], ["paused"], (0, '"a"')),
        ([question('"a"', None)], ["a"], ["paused"], (0, '"a"')),
        ([question('"a"', "[1]")], ["a", "b"], [[1], "paused"], (1, '"b"')),
        ([question('"a"', "1"), question('"b"', "2", 2)], ["a", "b"], [1, 2], None),
        ([question('{"x":1,"y":2}', "false")], [{"y": 2, "x": 1}], [False], None),
        # One question at a time, and nothing after one that is asked differently.
        ([], ["a", "b"], ["paused", "paused"], (0, '"a"')),
        (
            [question('"a"', "1"), question('"b"', "2", 2)],
            ["other", "b"],
            ["paused", "paused"],
            (0, '"other"'),
        ),
    ],
)
async def test_an_answer_is_for_the_same_question_at_the_same_place(
    asked: list[Question], payloads: list[Any], answers: list[Any], open_question: Any
) -> None:
    assert await outcome(asked, *payloads) == (answers, open_question)


async def test_nobody_is_asked_outside_a_run() -> None:
    @tool(effect=Effect.READ)
    async def asks(ctx: ToolContext) -> Any:
        """Ask."""
        return await ctx.interrupt("What?")

    with pytest.raises(CannotInterrupt, match="nobody can be asked here"):
        await asks.fn(context())


def test_a_plain_function_is_told_that_it_cannot_ask() -> None:
    with pytest.raises(CannotInterrupt, match="make the tool `async def`"):
        _ = context(AttemptQuestions()).interrupt("What?")


async def test_a_payload_without_json_is_the_tools_error() -> None:
    with pytest.raises(UnrepresentableValue):
        _ = context(AttemptQuestions()).interrupt(object())


def test_a_pause_is_one_in_a_group_and_not_beside_an_error() -> None:
    cancelled = asyncio.CancelledError()

    assert not isinstance(Interrupted(), Exception)
    assert is_interrupt(BaseExceptionGroup("", [Interrupted(), cancelled]))
    assert is_interrupt(BaseExceptionGroup("", [BaseExceptionGroup("", [Interrupted()])]))
    assert not is_interrupt(BaseExceptionGroup("", [Interrupted(), ValueError()]))
    assert not is_interrupt(BaseExceptionGroup("", [cancelled]))
    assert not is_interrupt(cancelled)

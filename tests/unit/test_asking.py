"""Asking midway: which answer a question gets, and what is a pause."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio import activity

from commitline import Effect, ToolContext, tool
from commitline.activities.app.interrupt import Asking, Paused, is_pause
from commitline.activities.guard.guarded_activity import GuardedActivity
from commitline.errors import CannotInterrupt, UnrepresentableValue
from commitline.identity import ActionKey, Position, RunKey
from commitline.ledger import Question

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def context(asking: Asking | None = None) -> ToolContext:
    return ToolContext(
        "key", ActionKey("r/1:0.0"), RunKey("r/1"), Position("0.0"), "t", False, asking=asking
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
        asked_at=NOON,
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
    asking = Asking(asked)
    got: list[Any] = []
    for payload in payloads:
        try:
            got.append(await context(asking).interrupt(payload))
        except Paused:
            got.append("paused")
    return got, asking.wanted and (asking.wanted.index, asking.wanted.payload)


@pytest.mark.parametrize(
    ("asked", "payloads", "answers", "wanted"),
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
    asked: list[Question], payloads: list[Any], answers: list[Any], wanted: Any
) -> None:
    assert await outcome(asked, *payloads) == (answers, wanted)


async def test_nobody_is_asked_outside_a_run() -> None:
    @tool(effect=Effect.READ)
    async def asks(ctx: ToolContext) -> Any:
        """Ask."""
        return await ctx.interrupt("What?")

    @activity.defn
    async def charge() -> None:
        """Be an activity of another workflow."""

    with pytest.raises(CannotInterrupt, match="nobody can be asked here"):
        await asks.fn(context())
    assert not GuardedActivity(charge, effect=Effect.IDEMPOTENT).may_interrupt


def test_a_plain_function_is_told_that_it_cannot_ask() -> None:
    with pytest.raises(CannotInterrupt, match="make the tool `async def`"):
        _ = context(Asking()).interrupt("What?")


async def test_a_payload_without_json_is_the_tools_error() -> None:
    with pytest.raises(UnrepresentableValue):
        _ = context(Asking()).interrupt(object())


def test_a_pause_is_one_in_a_group_and_not_beside_an_error() -> None:
    cancelled = asyncio.CancelledError()

    assert not isinstance(Paused(), Exception)
    assert is_pause(BaseExceptionGroup("", [Paused(), cancelled]))
    assert is_pause(BaseExceptionGroup("", [BaseExceptionGroup("", [Paused()])]))
    assert not is_pause(BaseExceptionGroup("", [Paused(), ValueError()]))
    assert not is_pause(BaseExceptionGroup("", [cancelled]))
    assert not is_pause(cancelled)

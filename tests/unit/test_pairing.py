"""One result per call, in order, whatever a run left behind."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from commitline.activities.contract.conversation import Completion, Message, ToolCall, ToolResult
from commitline.activities.contract.sizes import MAX_TURN
from commitline.activities.replies.pairing import paired, results_from, unanswered
from commitline.identity import Position, RunKey, action_key, position
from commitline.ledger import Action, Effect, Outcome
from commitline.tests.builders import done_row

NOW = datetime(2026, 1, 2, tzinfo=UTC)
RUN = RunKey("thread:support/1")


def asks(*names: str, text: str = "") -> Message:
    """A message of the model that calls these."""
    calls = [ToolCall(f"call_{index}", name, "{}") for index, name in enumerate(names)]
    return Message.assistant(Completion(text=text, calls=calls))


def result(
    name: str, index: int, *, step: int = 0, epoch: int = 0, content: str = ""
) -> ToolResult:
    at = position(step, index, epoch=epoch)
    return ToolResult(at, f"call_{index}", name, "ok", content or f'"{name} {index}"')


def results(*names: str, step: int = 0, epoch: int = 0) -> Message:
    return Message.tool(
        [result(name, index, step=step, epoch=epoch) for index, name in enumerate(names)]
    )


def action(at: str, **changes: Any) -> Action:
    """A row that is done, unless it is changed."""
    done = done_row(
        RUN,
        at,
        NOW,
        now=NOW,
        result='{"id":"ch_1"}',
        effect=Effect.AT_MOST_ONCE,
        thread_id="support",
    )
    return replace(done, **changes)


def parked(at: str) -> Action:
    return action(
        at,
        status="pending",
        result=None,
        done_at=None,
        outcome=None,
        effect_possible=None,
        parked_at=NOW,
        parked_reason="its run went away",
    )


# --- what another run left unanswered ----------------------------------------------------


def test_the_calls_of_the_last_message_are_unanswered() -> None:
    last = asks("charge", "mail")

    assert last.completion is not None
    assert unanswered([Message.user("hello"), last]) == last.completion.calls


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [Message.user("hello")],
        [Message.user("hello"), asks(text="done")],
        [Message.user("hello"), asks("charge"), results("charge")],
        [asks("charge"), results("charge"), Message.user("and now?")],
        [asks("charge"), Message.user("and now?")],
    ],
    ids=["nothing", "a question", "an answer", "results", "a question after them", "lost before"],
)
def test_what_ends_otherwise_leaves_nothing_unanswered(messages: list[Message]) -> None:
    assert unanswered(messages) == []


def test_each_call_that_was_left_is_told_by_what_the_ledger_has_of_it() -> None:
    calls = [
        ToolCall("a", "charge", "{}"),
        ToolCall("b", "charge", "{}"),
        ToolCall("c", "charge", "{}"),
        ToolCall("a", "search", "{}"),
        ToolCall("", "mail", "{", problem="malformed"),
        ToolCall("f", "charge", "{}"),
    ]
    refused = Outcome.error(kind="ToolRefused", message="declined", effect_possible=False)
    actions = {
        Position("3.0"): action("3.0"),
        Position("3.1"): parked("3.1"),
        Position("3.2"): action(
            "3.2", outcome="error", effect_possible=False, result=refused.result
        ),
        Position("3.5"): action("3.5", duplicate_of=action_key(RUN, Position("0.0"))),
        Position("2.3"): action("2.3"),
        Position("e1-3.3"): action("e1-3.3"),
    }

    found = results_from(actions, calls, step=3, epoch=0)

    assert [(one.position, one.call_id, one.name, one.status) for one in found] == [
        ("3.0", "a", "charge", "ok"),
        ("3.1", "b", "charge", "unknown"),
        ("3.2", "c", "charge", "error"),
        ("3.3", "a", "search", "error"),
        ("3.4", "", "mail", "error"),
        ("3.5", "f", "charge", "ok"),
    ]
    contents = [json.loads(one.content) for one in found]
    assert contents[0] == {"id": "ch_1"}
    assert contents[1]["unknown"]["action"] == f"{RUN}:3.1"
    assert contents[2]["error"] == {"type": "ToolRefused", "message": "declined", "effect": "none"}
    assert (contents[3]["error"]["type"], contents[3]["error"]["effect"]) == (
        "NotCarriedOut",
        "none",
    )
    assert contents[4]["error"]["message"] == "not run: malformed"
    assert contents[5]["existing"] is True


def test_what_a_fork_left_is_found_at_its_own_positions() -> None:
    calls = [ToolCall("a", "charge", "{}")]
    actions = {Position("3.0"): parked("3.0"), Position("e2-3.0"): action("e2-3.0")}

    (found,) = results_from(actions, calls, step=3, epoch=2)

    assert (found.position, found.status) == ("e2-3.0", "ok")


def test_a_row_of_a_call_that_must_not_be_run_tells_more_than_that() -> None:
    calls = [ToolCall("a", "charge", "{", problem="malformed")]

    (found,) = results_from({Position("0.0"): parked("0.0")}, calls, step=0, epoch=0)

    assert found.status == "unknown"


def test_what_was_left_shares_the_room_that_a_message_has() -> None:
    large = json.dumps("x" * 200_000)
    number = 12
    calls = [ToolCall(f"{index}", "charge", "{}") for index in range(number)]
    actions = {
        Position(f"0.{index}"): action(f"0.{index}", result=large) for index in range(number)
    }

    found = results_from(actions, calls, step=0, epoch=0)

    assert sum(len(one.content) for one in found) <= MAX_TURN
    assert all(json.loads(one.content)["truncated"] for one in found)
    alone = results_from({Position("0.0"): actions[Position("0.0")]}, calls[:1], step=0, epoch=0)
    assert alone[0].content == large


# --- what the provider gets --------------------------------------------------------------


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [Message.user("hello")],
        [Message.user("hello"), asks(text="hi"), Message.user("more"), asks(text="again")],
        [Message.user("x"), asks("charge", "mail"), results("charge", "mail"), asks(text="done")],
        [Message.user("x"), asks("charge", "charge"), results("charge", "charge", step=7)],
        [
            asks("charge"),
            results("charge", epoch=2),
            asks("mail"),
            results("mail", step=1, epoch=2),
        ],
    ],
)
def test_what_is_paired_stays_as_it_is_and_nobody_is_alarmed(messages: list[Message]) -> None:
    with capture_logs() as logs:
        assert paired(messages) == messages

    assert logs == []


def test_a_call_without_a_result_is_answered_as_unknown() -> None:
    for after in ([], [Message.user("hello?")], [asks(text="well")]):
        with capture_logs() as logs:
            found = paired([Message.user("x"), asks("charge", "mail"), *after])

        assert found[:2] == [Message.user("x"), asks("charge", "mail")]
        assert found[3:] == after
        assert [(one.call_id, one.name, one.status) for one in found[2].results] == [
            ("call_0", "charge", "unknown"),
            ("call_1", "mail", "unknown"),
        ]
        assert "gone" in found[2].results[0].content
        assert [(log["log_level"], log["event"]) for log in logs] == [
            ("error", "thread.messages_unpaired")
        ]


def test_a_result_without_a_call_is_left_out() -> None:
    odd = [
        results("charge"),
        Message.user("x"),
        results("mail"),
        asks(text="hello"),
        results("mail"),
        asks("charge"),
        results("charge"),
        results("mail"),
    ]

    with capture_logs() as logs:
        found = paired(odd)

    assert found == [odd[1], odd[3], odd[5], odd[6]]
    assert len(logs) == 1


def test_a_missing_result_is_unknown_and_the_others_keep_their_calls() -> None:
    given_results = [result("ship", 2, step=4, epoch=1), result("charge", 0, step=4, epoch=1)]

    found = paired([asks("charge", "mail", "ship"), Message.tool(given_results)])

    assert [(one.name, one.status) for one in found[1].results] == [
        ("charge", "ok"),
        ("mail", "unknown"),
        ("ship", "ok"),
    ]
    assert found[1].results[0] == given_results[1]
    assert found[1].results[2] == given_results[0]


def test_results_in_another_order_go_to_their_calls() -> None:
    swapped = Message.tool([result("mail", 1), result("charge", 0)])

    found = paired([asks("charge", "mail"), swapped])

    assert [one.name for one in found[1].results] == ["charge", "mail"]


def test_results_of_equal_calls_in_another_order_go_to_their_calls() -> None:
    swapped = Message.tool([result("charge", 1), result("charge", 0)])

    assert paired([asks("charge", "charge"), swapped])[1] == results("charge", "charge")


def test_a_result_of_another_tool_is_not_told_as_the_answer_to_a_call() -> None:
    found = paired([asks("charge"), Message.tool([result("mail", 0)])])

    assert [(one.name, one.status) for one in found[1].results] == [("charge", "unknown")]


def test_of_two_results_of_one_call_the_first_is_told() -> None:
    twice = Message.tool([result("charge", 0, content='"first"'), result("charge", 0, content="2")])

    found = paired([asks("charge"), twice])

    assert [one.content for one in found[1].results] == ['"first"']


def test_an_extra_result_is_left_out() -> None:
    extra = Message.tool([result("charge", 0), result("mail", 1)])

    assert paired([asks("charge"), extra]) == [asks("charge"), results("charge")]


def test_a_conversation_is_not_changed_in_place() -> None:
    messages = [results("charge"), asks("charge")]
    before = list(messages)

    paired(messages)

    assert messages == before


names = st.sampled_from(["charge", "mail"])
single_results = st.builds(
    result, names, st.integers(0, 3), step=st.integers(0, 2), epoch=st.integers(0, 1)
)
messages_of_any_kind = st.one_of(
    st.just(Message.user("x")),
    st.lists(names, max_size=3).map(lambda found: asks(*found)),
    st.lists(single_results, max_size=4).map(Message.tool),
)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(messages=st.lists(messages_of_any_kind, max_size=8))
def test_whatever_is_stored_every_call_has_one_result_in_order(messages: list[Message]) -> None:
    with capture_logs():
        found = paired(messages)

    for before, message in zip([None, *found], found, strict=False):
        calls = before.completion.calls if before is not None and before.completion else []
        assert (message.role == "tool") == bool(calls)
        assert len(message.results) == len(calls)
        for index, (call, one) in enumerate(zip(calls, message.results, strict=True)):
            assert one.status == "unknown" or one.name == call.name, index
    assert unanswered(found) == []
    assert [one for one in found if one.role != "tool"] == [
        one for one in messages if one.role != "tool"
    ]
    with capture_logs() as logs:
        assert paired(found) == found
    assert logs == []

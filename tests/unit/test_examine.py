from __future__ import annotations

import pytest

from commitline.activities.contract.conversation import Completion, FinishReason, ToolCall
from commitline.activities.contract.encoding import to_text
from commitline.activities.model.model import MAX_ARGUMENTS, examine


def _examined(arguments: str) -> ToolCall:
    answer = Completion(calls=[ToolCall(id="call_1", name="charge_card", arguments=arguments)])
    (call,) = examine(answer).calls
    return call


def test_arguments_that_are_an_object_may_be_run_as_they_were_written() -> None:
    call = _examined('{"amount" : 1.0}')

    assert call.problem is None
    assert call.arguments == '{"amount" : 1.0}'


def test_no_arguments_are_an_empty_object() -> None:
    call = _examined("")

    assert call.problem is None
    assert call.arguments == "{}"


@pytest.mark.parametrize("arguments", ["[1]", "1", '"text"', "null"])
def test_arguments_that_are_not_an_object_must_not_be_run(arguments: str) -> None:
    call = _examined(arguments)

    assert call.problem == "the arguments are not a JSON object"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ('{"amount": NaN}', "NaN is not a JSON number"),
        ('{"amount": -Infinity}', "-Infinity is not a JSON number"),
        ('{"amount": 1, "amount": 2}', "a key stands twice in one object"),
        ('{"a":' * 201 + "1" + "}" * 201, "nested over 200 levels deep"),
        ('{"amount": ' + "9" * 5_000 + "}", "Exceeds the limit"),
        ('{"amount": 12', "Expecting ',' delimiter"),
        ("amount=12", "Expecting value"),
    ],
    ids=["nan", "infinity", "duplicate key", "too deep", "5000 digits", "cut off", "no json"],
)
def test_malformed_arguments_must_not_be_run(arguments: str, reason: str) -> None:
    call = _examined(arguments)

    assert call.problem is not None
    assert call.problem.startswith("the arguments are malformed or truncated: ")
    assert reason in call.problem


def test_a_number_that_overflows_must_not_be_run() -> None:
    call = _examined('{"amount": 1e999}')

    assert call.problem is not None


def test_two_hundred_levels_may_be_run() -> None:
    call = _examined('{"a":' * 200 + "1" + "}" * 200)

    assert call.problem is None


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        ('{"text": "' + "a" * 3_000_000 + '"}', "3,000,012"),
        ('{"text": "' + "é" * 100_000 + '"}', "600,011"),
        ('{"text": "a"' + " " * 300_000 + "}", "300,013"),
    ],
    ids=["letters", "six bytes each as ASCII JSON", "white space"],
)
def test_arguments_over_the_limit_must_not_be_run_nor_carried_whole(
    arguments: str, size: str
) -> None:
    call = _examined(arguments)

    assert call.problem == f"charge_card: the arguments have {size} bytes, over 256 KiB"
    assert call.arguments == arguments[:2_000]


def test_arguments_at_the_limit_may_be_run() -> None:
    text = "a" * (MAX_ARGUMENTS - len('{"text":""}'))

    assert _examined(f'{{"text":"{text}"}}').problem is None
    assert _examined(f'{{"text":"{text}a"}}').problem is not None


def test_a_problem_names_a_tool_that_only_a_model_could_invent_in_print_and_in_short() -> None:
    large = ToolCall("call_1", "pay\x00\ud800" + "y" * 3_000_000, f'{{"a": "{"a" * 300_000}"}}')

    (call,) = examine(Completion(calls=[large])).calls

    assert call.problem is not None
    assert call.problem.startswith("pay??yyy")
    assert call.problem.endswith("…: the arguments have 300,009 bytes, over 256 KiB")
    assert len(call.problem) < 200


@pytest.mark.parametrize(
    ("arguments", "finish_reason"),
    [
        (f'{{"text": "{"a" * 3_000_000}"}}', "tool_calls"),
        (f'{{"text": "{"a" * 3_000_000}', "tool_calls"),
        (f'{{"text": "{"é" * 100_000}', "length"),
        (f'["{"a" * 3_000_000}"]', "tool_calls"),
    ],
    ids=["too large", "malformed", "cut off", "no object"],
)
def test_what_is_too_large_is_not_kept_in_the_providers_state_either(
    arguments: str, finish_reason: FinishReason
) -> None:
    answer = Completion(
        calls=[ToolCall("call_1", "look", "{}"), ToolCall("call_2", "charge_card", arguments)],
        finish_reason=finish_reason,
        provider_state={"args": arguments},
    )

    examined = examine(answer)

    assert examined.provider_state is None
    assert len(to_text(examined)) < 20_000


def test_the_providers_state_outlives_what_is_merely_wrong() -> None:
    # Cut off in the midst of a long argument, as happens: the reasoning before it is needed on.
    answer = Completion(
        calls=[ToolCall("call_1", "charge_card", '{"text": "' + "a" * 10_000)],
        finish_reason="length",
        provider_state={"signature": "s"},
    )

    examined = examine(answer)

    assert len(examined.calls[0].arguments) == 2_000
    assert examined.provider_state == {"signature": "s"}


@pytest.mark.parametrize(
    ("finish_reason", "why"),
    [
        ("length", "the message was cut off at the model's output limit, so none of it was run"),
        ("content_filter", "the provider withheld a part of the message, so none of it was run"),
        ("refusal", "the message is a refusal, so none of it was run"),
    ],
)
def test_a_cut_off_message_voids_every_call_in_it_whole_looking_ones_too(
    finish_reason: FinishReason, why: str
) -> None:
    answer = Completion(
        calls=[
            ToolCall(id="call_1", name="charge_card", arguments='{"amount": 5}'),
            ToolCall(id="call_2", name="charge_card", arguments='{"amo'),
        ],
        finish_reason=finish_reason,
    )

    examined = examine(answer)

    assert [call.problem for call in examined.calls] == [why, why]


def test_one_bad_call_does_not_void_its_siblings() -> None:
    answer = Completion(
        calls=[
            ToolCall(id="call_1", name="charge_card", arguments='{"amount": 5}'),
            ToolCall(id="call_2", name="charge_card", arguments="["),
        ]
    )

    examined = examine(answer)

    assert [call.problem is None for call in examined.calls] == [True, False]

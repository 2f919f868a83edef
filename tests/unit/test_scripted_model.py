from __future__ import annotations

from pathlib import Path

import pytest

from commitline.activities.contract.conversation import Completion, Message, ToolCall
from commitline.activities.model.model import Model, ModelRequest
from commitline.activities.model.scripted_model import ScriptedModel, call, say
from commitline.errors import ModelRejected, ModelUnavailable


def _request(*messages: Message) -> ModelRequest:
    return ModelRequest(model="scripted", instructions="", tools=[], messages=list(messages))


def test_a_scripted_model_is_a_model() -> None:
    model = ScriptedModel("scripted", [])

    assert isinstance(model, Model)
    assert model.name == "scripted"


async def test_the_answer_is_chosen_by_the_assistant_messages_in_the_request() -> None:
    answers = [call(("look", {"id": 1})), say("done")]
    restarted = ScriptedModel("scripted", answers)

    answer = await restarted.complete(_request(Message.user("go"), Message.assistant(answers[0])))

    assert answer == Completion(text="done")


async def test_the_same_request_gets_the_same_answer_again() -> None:
    model = ScriptedModel("scripted", [say("one"), say("two")])

    answers = [await model.complete(_request(Message.user("go"))) for _ in range(2)]

    assert [answer.text for answer in answers] == ["one", "one"]
    assert model.calls == 2


async def test_a_script_that_is_used_up_rejects_the_request() -> None:
    model = ScriptedModel("scripted", [say("one")])

    with pytest.raises(ModelRejected, match="has 1 answers; number 2 was asked for"):
        await model.complete(_request(Message.user("go"), Message.assistant(say("one"))))


async def test_an_exception_in_the_script_is_raised() -> None:
    model = ScriptedModel("scripted", [ModelUnavailable("overloaded")])

    with pytest.raises(ModelUnavailable, match="overloaded"):
        await model.complete(_request(Message.user("go")))


async def test_a_function_in_the_script_works_out_the_answer_from_the_request() -> None:
    model = ScriptedModel("scripted", [lambda request: say(request.messages[0].text.upper())])

    answer = await model.complete(_request(Message.user("go")))

    assert answer.text == "GO"


async def test_the_count_file_counts_over_processes(tmp_path: Path) -> None:
    count_file = tmp_path / "calls"
    for _ in range(2):
        model = ScriptedModel("scripted", [say("one")], count_file=count_file)
        await model.complete(_request(Message.user("go")))

    lines = count_file.read_text().splitlines()

    assert lines == ["0", "0"]


def test_calls_are_numbered_and_their_ids_can_be_set() -> None:
    numbered = call(("charge_card", {"amount": 5}), ("lookup_order", '{"id": '), text="On it.")
    chosen = call(("charge_card", {}), ("charge_card", {}), ids=["", ""])

    assert numbered == Completion(
        text="On it.",
        calls=[
            ToolCall(id="call_1", name="charge_card", arguments='{"amount":5}'),
            ToolCall(id="call_2", name="lookup_order", arguments='{"id": '),
        ],
        finish_reason="tool_calls",
    )
    assert [item.id for item in chosen.calls] == ["", ""]

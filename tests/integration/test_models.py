"""Models through the providers' real clients, against a local server that is scripted."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest

from commitline.activities.contract.conversation import (
    Completion,
    Message,
    ToolCall,
    ToolDefinition,
    ToolResult,
    Usage,
)
from commitline.activities.model import pydantic_ai_model
from commitline.activities.model.model import Model, ModelRequest, examine
from commitline.activities.model.pydantic_ai_model import PydanticAIModel, resolve_model
from commitline.activities.model.scripted_model import ScriptedModel, call, say
from commitline.activities.model.trimming_model import LEFT_OUT, TrimmingModel
from commitline.canonical import dumps, parse
from commitline.errors import (
    ConfigurationError,
    ContextWindowExceeded,
    ModelError,
    ModelRejected,
    ModelUnavailable,
)
from commitline.testing.openai_server import Answer, OpenAIServer, tool_call
from commitline.tests.integration.wire_models import wire_model

if TYPE_CHECKING:
    from pydantic_ai.models import Model as WireModel

CHARGE = ToolDefinition(
    name="charge_card",
    description="Charge the card.",
    parameters={"type": "object", "properties": {"amount": {"type": "integer"}}},
)
HELLO = Message.user("Charge 5.")


def _request(*messages: Message, instructions: str = "Be brief.") -> ModelRequest:
    return ModelRequest(
        model="openai-chat:gpt-test",
        instructions=instructions,
        tools=[CHARGE],
        messages=list(messages),
    )


def _result(index: int, content: str) -> ToolResult:
    return ToolResult(
        position=f"1.{index}", call_id="", name="charge_card", status="ok", content=content
    )


def _calls(*calls: dict[str, Any], **rest: Any) -> Answer:
    return {"message": {"tool_calls": list(calls)}, **rest}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")


@contextmanager
def _refusing_port() -> Iterator[int]:
    with socket.socket() as bound:  # bound, never listening: connections are refused
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@asynccontextmanager
async def _model(monkeypatch: pytest.MonkeyPatch, base_url: str) -> AsyncIterator[PydanticAIModel]:
    monkeypatch.setenv("OPENAI_BASE_URL", base_url)
    model = PydanticAIModel("openai-chat:gpt-test")
    try:
        yield model
    finally:
        await model.aclose()


def _native(provider: str, server: OpenAIServer) -> WireModel:
    names = {"openai": "gpt-test", "anthropic": "claude-test", "google": "gemini-test"}
    return wire_model(provider, server, names[provider])


async def _complete(
    monkeypatch: pytest.MonkeyPatch, script: list[Answer], *requests: ModelRequest
) -> tuple[list[Completion], list[dict[str, Any]]]:
    """Send the requests one after the other; return the completions and what went over the wire."""
    with OpenAIServer(script) as server:
        async with _model(monkeypatch, server.base_url) as model:
            answers = [await model.complete(request) for request in requests]
    return answers, server.requests


async def _failure(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> tuple[ModelError, int]:
    """Return how a request ends that gets this answer, and how many were sent for it."""
    with OpenAIServer([answer] * 5) as server:
        async with _model(monkeypatch, server.base_url) as model:
            with pytest.raises(ModelError) as caught:
                await model.complete(_request(HELLO))
    return caught.value, len(server.requests)


async def test_a_completion_holds_text_calls_usage_and_why_it_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script: list[Answer] = [
        {
            "message": {
                "content": "On it.",
                "tool_calls": [tool_call("call_a", "charge_card", '{"amount" : 5}')],
            }
        }
    ]

    (answer,), (sent,) = await _complete(monkeypatch, script, _request(HELLO))

    assert answer.text == "On it."
    assert answer.calls == [ToolCall(id="call_a", name="charge_card", arguments='{"amount" : 5}')]
    assert answer.finish_reason == "tool_calls"
    assert answer.usage == Usage(input_tokens=11, output_tokens=7)
    assert sent["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Charge 5."},
    ]
    assert sent["tools"][0]["function"]["name"] == "charge_card"


async def test_results_go_back_paired_to_the_calls_that_they_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = call(("charge_card", {"amount": 5}), ("charge_card", {"amount": 6}), ids=["x", "y"])
    results = [_result(0, '{"status":"ok"}'), _result(1, '{"status":"unknown"}')]
    script: list[Answer] = [{"message": {"content": "Charged."}}]

    (answer,), (sent,) = await _complete(
        monkeypatch, script, _request(HELLO, Message.assistant(first), Message.tool(results))
    )

    assert answer.text == "Charged."
    assert answer.finish_reason == "stop"
    assert [c["id"] for c in sent["messages"][2]["tool_calls"]] == ["c00000000", "c00000001"]
    assert sent["messages"][3:] == [
        {"role": "tool", "tool_call_id": "c00000000", "content": '{"status":"ok"}'},
        {"role": "tool", "tool_call_id": "c00000001", "content": '{"status":"unknown"}'},
    ]


@pytest.mark.parametrize("ids", [["", ""], ["same", "same"]])
async def test_empty_and_duplicate_ids_are_paired_by_position(
    monkeypatch: pytest.MonkeyPatch, ids: list[str]
) -> None:
    script = [
        _calls(
            tool_call(ids[0], "charge_card", '{"amount":5}'),
            tool_call(ids[1], "charge_card", '{"amount":6}'),
        ),
        {"message": {"content": "Charged."}},
    ]
    with OpenAIServer(script) as server:
        async with _model(monkeypatch, server.base_url) as model:
            first = await model.complete(_request(HELLO))

            results = Message.tool([_result(0, '"five"'), _result(1, '"six"')])
            await model.complete(_request(HELLO, Message.assistant(first), results))

    sent = server.requests[1]["messages"]
    called = {c["id"]: c["function"]["arguments"] for c in sent[2]["tool_calls"]}
    answered = {called[m["tool_call_id"]]: m["content"] for m in sent[3:]}
    assert answered == {'{"amount":5}': '"five"', '{"amount":6}': '"six"'}


async def test_a_result_without_a_call_is_rejected_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with OpenAIServer([]) as server:
        async with _model(monkeypatch, server.base_url) as model:
            with pytest.raises(ModelRejected, match=r"position 1\.0 answers no call"):
                await model.complete(_request(HELLO, Message.tool([_result(0, "1")])))

    assert server.requests == []


async def test_the_provider_state_survives_json_and_is_sent_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = {
        "content": "On it.",
        "reasoning_content": "The user wants a charge.",
        "tool_calls": [tool_call("call_a", "charge_card", '{"amount":5}')],
    }
    with OpenAIServer([{"message": message}, {"message": {"content": "Charged."}}]) as server:
        async with _model(monkeypatch, server.base_url) as model:
            first = await model.complete(_request(HELLO))
            stored = Completion(provider_state=parse(dumps(first.provider_state)))

            results = Message.tool([_result(0, "1")])
            await model.complete(_request(HELLO, Message.assistant(stored), results))

    sent = server.requests[1]["messages"][2]
    assert sent["content"] == "On it."
    assert sent["reasoning_content"] == "The user wants a charge."
    assert sent["tool_calls"] == [tool_call("call_a", "charge_card", '{"amount":5}')]


@pytest.mark.parametrize(
    "arguments",
    ['{"amount": 5', "[5]", '{"amount": NaN}', '{"amount": 5, "amount": 6}', '{"a": 1e9, "b"}'],
)
async def test_malformed_arguments_are_kept_marked_and_shown_to_the_model_again(
    monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    script = [
        _calls(tool_call("call_a", "charge_card", arguments)),
        {"message": {"content": "Sorry."}},
    ]
    with OpenAIServer(script) as server:
        async with _model(monkeypatch, server.base_url) as model:
            first = await model.complete(_request(HELLO))

            results = Message.tool([_result(0, '{"status":"error"}')])
            await model.complete(_request(HELLO, Message.assistant(first), results))

    assert first.calls[0].arguments == arguments
    assert examine(first).calls[0].problem is not None
    sent = server.requests[1]["messages"][2]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"INVALID_JSON": arguments}


async def test_an_answer_that_was_cut_off_is_a_completion_whose_calls_are_void(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = [
        _calls(
            tool_call("call_a", "charge_card", '{"amount":5}'),
            tool_call("call_b", "charge_card", '{"amo'),
            finish_reason="length",
        )
    ]

    (answer,), _ = await _complete(monkeypatch, script, _request(HELLO))

    assert answer.finish_reason == "length"
    assert [c.problem is None for c in examine(answer).calls] == [False, False]


async def test_an_empty_answer_is_a_completion_and_is_left_out_of_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script: list[Answer] = [{"message": {}}, {"message": {"content": "Yes?"}}]
    with OpenAIServer(script) as server:
        async with _model(monkeypatch, server.base_url) as model:
            first = await model.complete(_request(HELLO))
            await model.complete(_request(HELLO, Message.assistant(first), Message.user("Hello?")))

    assert (first.text, first.calls, first.finish_reason) == ("", [], "stop")
    assert [m["role"] for m in server.requests[1]["messages"]] == ["system", "user", "user"]


@pytest.mark.parametrize(
    ("answer", "text", "reason"),
    [
        ({"message": {"content": "Done."}}, "Done.", "stop"),
        ({"message": {"content": ""}}, "", "empty"),
        ({"message": {"content": None}}, "", "empty"),
        ({"message": {"content": " \n"}}, " \n", "empty"),
        ({"message": {"content": "It was"}, "finish_reason": "length"}, "It was", "length"),
        ({"message": {}, "finish_reason": "content_filter"}, "", "content_filter"),
        ({"message": {"refusal": "I cannot do that."}}, "I cannot do that.", "refusal"),
    ],
    ids=["answer", "empty", "null", "blank", "cut off", "filtered", "refused"],
)
async def test_an_answer_that_is_none_is_told_apart_and_its_text_kept(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, text: str, reason: str
) -> None:
    (completion,), _ = await _complete(monkeypatch, [answer], _request(HELLO))

    told = examine(completion)

    assert (told.text, told.finish_reason) == (text, reason)


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_what_a_model_says_as_it_refuses_is_kept_whatever_the_provider(provider: str) -> None:
    bodies = {"openai": _REFUSED_BY_OPENAI, "anthropic": _REFUSED_BY_ANTHROPIC}
    with OpenAIServer([{"status": 200, "body": bodies[provider]}]) as server:
        async with _native(provider, server) as native:
            told = examine(await PydanticAIModel(native).complete(_request(HELLO)))

    assert (told.text, told.finish_reason) == ("I cannot do that.", "refusal")


_REFUSED_BY_OPENAI: Answer = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1_750_000_000,
    "model": "gpt-test",
    "status": "completed",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "output": [
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "refusal", "refusal": "I cannot do that."}],
        }
    ],
}
_REFUSED_BY_ANTHROPIC: Answer = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-test",
    "content": [],
    "stop_reason": "refusal",
    "stop_details": {"type": "refusal", "category": None, "explanation": "I cannot do that."},
    "stop_sequence": None,
    "usage": {"input_tokens": 11, "output_tokens": 0},
}


_OPENAI_TOO_LONG = {"message": "Too long.", "code": "context_length_exceeded"}
_VLLM_TOO_LONG = {"message": "This model's maximum context length is 8 tokens.", "code": 400}
_ANTHROPIC_TOO_LONG = {
    "type": "invalid_request_error",
    "message": "prompt is too long: 9 tokens > 8 maximum",
}
_GOOGLE_TOO_LONG = {
    "code": 400,
    "status": "INVALID_ARGUMENT",
    "message": "The input token count (9) exceeds the maximum number of tokens allowed (8).",
}


@pytest.mark.parametrize(
    ("provider", "error"),
    [
        ("openai", _OPENAI_TOO_LONG),
        ("openai", _VLLM_TOO_LONG),
        ("anthropic", _ANTHROPIC_TOO_LONG),
        ("google", _GOOGLE_TOO_LONG),
    ],
    ids=["openai", "vllm", "anthropic", "google"],
)
async def test_a_conversation_that_is_too_long_is_told_from_other_refusals(
    provider: str, error: dict[str, Any]
) -> None:
    with OpenAIServer([{"status": 400, "body": {"type": "error", "error": error}}]) as server:
        async with _native(provider, server) as native:
            with pytest.raises(ContextWindowExceeded, match="CL403"):
                await PydanticAIModel(native).complete(_request(HELLO))


async def test_a_trimming_model_sends_the_newer_half_until_it_fits() -> None:
    turns = [call(("charge_card", {"amount": at})) for at in range(8)]
    said = [
        message
        for at, turn in enumerate(turns)
        for message in (
            Message.user(f"Charge {at}."),
            Message.assistant(turn),
            Message.tool([_result(0, '"charged"')]),
        )
    ]
    too_long: Answer = {"status": 400, "body": {"error": _OPENAI_TOO_LONG}}
    script: list[Answer] = [too_long, too_long, {"message": {"content": "Done."}}]
    with OpenAIServer(script, call_ids="[a-zA-Z0-9_-]{1,64}") as server:
        async with wire_model("chat", server, "gpt-test") as native:
            model = TrimmingModel(PydanticAIModel(native))
            answer = await model.complete(_request(*said))

    assert answer.text == "Done."
    roles = [[one["role"] for one in sent["messages"]] for sent in server.requests]
    exchange = ["user", "assistant", "tool"]
    assert roles == [
        ["system", *exchange * 8],
        ["system", *exchange * 4],
        ["system", *exchange * 2],
    ]
    assert server.requests[2]["messages"][1]["content"] == "Charge 6."
    assert [LEFT_OUT in sent["messages"][0]["content"] for sent in server.requests] == [
        *(False, True, True),
    ]
    assert len(said) == 24


async def test_a_trimming_model_whose_last_exchange_is_too_long_says_so() -> None:
    too_long: Answer = {"status": 400, "body": {"error": _OPENAI_TOO_LONG}}
    said = Message.assistant(call(("charge_card", {"amount": 5})))
    with OpenAIServer([too_long] * 9) as server:
        async with _native("openai", server) as native:
            with pytest.raises(ContextWindowExceeded):
                await TrimmingModel(PydanticAIModel(native)).complete(
                    _request(HELLO, Message.user("Well?"), said, Message.tool([_result(0, "1")]))
                )

    assert len(server.requests) == 2


async def test_lone_surrogates_are_replaced_on_the_wire_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = Message.user("a\ud800b \U0001f600")
    said = call(("charge_card", '{"amount": "\\ud800"}'), text="c\udfffd")
    script: list[Answer] = [{"message": {"content": "Hello."}}]

    _, (sent,) = await _complete(
        monkeypatch,
        script,
        _request(message, Message.assistant(said), Message.tool([_result(0, '"\ud800"')])),
    )

    assert [m["content"] for m in sent["messages"][1:]] == [
        "a\ufffdb \U0001f600",
        "c\ufffdd",
        '"\ufffd"',
    ]
    assert message.text == "a\ud800b \U0001f600"


async def test_a_lone_surrogate_in_an_answer_is_kept_and_replaced_when_it_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script: list[Answer] = [{"message": {"content": "a\ud800b"}}, {"message": {"content": "Yes."}}]
    with OpenAIServer(script) as server:
        async with _model(monkeypatch, server.base_url) as model:
            first = await model.complete(_request(HELLO))
            await model.complete(_request(HELLO, Message.assistant(first), Message.user("Hello?")))

    assert first.text == "a\ud800b"
    assert parse(dumps(first.provider_state)) == first.provider_state
    assert server.requests[1]["messages"][2]["content"] == "a\ufffdb"


@pytest.mark.parametrize("provider", ["openai", "anthropic", "google"])
async def test_what_a_model_garbled_never_breaks_a_later_request(provider: str) -> None:
    garbled = call(
        ("charge_card", '{"amount": NaN}'),
        ("charge_card", '{"amount": 1e999}'),
        ("charge_card", '{"note": "\\ud800"}'),
        ("charge_card", '{"amount": 5'),
        text="a\ud800b",
        ids=["", "", "x", "x"],
    )
    results = Message.tool([_result(index, '{"status":"error"}') for index in range(4)])
    with OpenAIServer([{"status": 503}]) as server:
        async with _native(provider, server) as native:
            with pytest.raises(ModelUnavailable):
                await PydanticAIModel(native).complete(
                    _request(HELLO, Message.assistant(garbled), results)
                )

    sent = json.dumps(server.requests)
    assert len(server.requests) == 1
    assert "NaN" in sent
    assert "Infinity" not in sent


async def test_a_429_is_unavailable_for_as_long_as_the_provider_asks_after_one_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer: Answer = {
        "status": 429,
        "headers": {"retry-after": "2"},
        "body": {"error": {"message": "slow down"}},
    }

    failure, sent = await _failure(monkeypatch, answer)

    assert isinstance(failure, ModelUnavailable)
    assert failure.retry_after == timedelta(seconds=2)
    assert sent == 1


@pytest.mark.parametrize(
    ("headers", "retry_after"),
    [
        ({"retry-after-ms": "1500"}, timedelta(milliseconds=1500)),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, timedelta(0)),
        ({"retry-after": "9" * 30}, timedelta(days=1)),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
    ids=["milliseconds", "past date", "absurd", "prose", "none"],
)
async def test_every_form_of_retry_after_is_understood(
    monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], retry_after: timedelta | None
) -> None:
    failure, _ = await _failure(monkeypatch, {"status": 503, "headers": headers})

    assert isinstance(failure, ModelUnavailable)
    assert failure.retry_after == retry_after


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
async def test_a_passing_error_is_unavailable_after_one_request(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    failure, sent = await _failure(monkeypatch, {"status": status})

    assert isinstance(failure, ModelUnavailable)
    assert sent == 1


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
async def test_a_final_error_is_rejected_after_one_request(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    # The number in the message is prose: only the status decides.
    body = {"error": {"message": "error 503, please retry"}}

    failure, sent = await _failure(monkeypatch, {"status": status, "body": body})

    assert isinstance(failure, ModelRejected)
    assert sent == 1


@pytest.mark.parametrize(
    "answer",
    [
        {"drop": True},
        {"status": 200, "body": "<html>Bad gateway</html>"},
        {"status": 200, "body": "{", "headers": {"content-type": "text/html"}},
        {"status": 200, "body": {"error": {"message": "upstream"}}},
    ],
    ids=["dropped", "html", "text", "error under 200"],
)
async def test_an_answer_that_is_none_is_unavailable_after_one_request(
    monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    failure, sent = await _failure(monkeypatch, answer)

    assert isinstance(failure, ModelUnavailable)
    assert sent == 1


async def test_a_refused_connection_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    with _refusing_port() as port:
        async with _model(monkeypatch, f"http://127.0.0.1:{port}/v1") as model:
            with pytest.raises(ModelUnavailable):
                await model.complete(_request(HELLO))


@pytest.mark.parametrize("provider", ["openai", "anthropic", "google"])
async def test_no_provider_client_retries_by_itself(provider: str) -> None:
    with OpenAIServer([{"status": 503, "headers": {"retry-after": "0"}}] * 5) as server:
        async with _native(provider, server) as native:
            model = PydanticAIModel(native, settings={"max_retries": 4})
            with pytest.raises(ModelUnavailable):
                await model.complete(_request(HELLO))

    assert len(server.requests) == 1


@pytest.mark.parametrize("provider", ["openai", "anthropic", "google"])
async def test_a_dropped_connection_is_unavailable_with_every_provider(provider: str) -> None:
    with OpenAIServer([{"drop": True}] * 5) as server:
        async with _native(provider, server) as native:
            with pytest.raises(ModelUnavailable):
                await PydanticAIModel(native).complete(_request(HELLO))

    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [0, 42, 302, 999])
async def test_an_implausible_status_is_rejected_and_named(status: int) -> None:
    from pydantic_ai.exceptions import ModelHTTPError
    from pydantic_ai.models.function import FunctionModel

    async def fail(*_: object) -> Any:
        raise ModelHTTPError(status, "gpt-test", "upstream")

    model = PydanticAIModel(FunctionModel(fail))

    with pytest.raises(ModelRejected, match=f"{status} is no status code of an HTTP error"):
        await model.complete(_request(HELLO))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TimeoutError("read"), ModelUnavailable),
        (ConnectionResetError("reset"), ModelUnavailable),
        (KeyError("choices"), ModelRejected),
    ],
)
async def test_other_errors_are_final_unless_they_are_of_the_connection(
    error: Exception, expected: type[Exception]
) -> None:
    from pydantic_ai.models.function import FunctionModel

    async def fail(*_: object) -> Any:
        raise error

    model = PydanticAIModel(FunctionModel(fail))

    with pytest.raises(expected):
        await model.complete(_request(HELLO))


async def test_a_model_that_does_not_exist_is_rejected() -> None:
    model = PydanticAIModel("nobody:nothing")

    with pytest.raises(ModelRejected, match="Unknown model"):
        await model.complete(_request(HELLO))


def test_a_missing_pydantic_ai_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pydantic_ai_model, "find_spec", lambda _: None)

    with pytest.raises(ConfigurationError, match=r"pip install 'commitline\[models\]'"):
        PydanticAIModel("openai:gpt-test")


def test_a_string_resolves_to_a_model_and_a_model_to_itself() -> None:
    scripted = ScriptedModel("scripted", [say("Hello.")])

    resolved = resolve_model("openai:gpt-test")

    assert isinstance(resolved, Model)
    assert resolved.name == "openai:gpt-test"
    assert resolve_model(scripted) is scripted


async def test_the_openai_prefix_is_the_responses_api(monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer([{"status": 400}]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        model = PydanticAIModel("openai:gpt-test")
        with pytest.raises(ModelRejected):
            await model.complete(_request(HELLO))
        await model.aclose()

    assert "input" in server.requests[0]


def test_the_server_runs_as_a_process_and_hands_out_what_it_received(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('[{"message": {"content": "Hello."}}]')
    command = [sys.executable, "-m", "commitline.testing.openai_server", str(script)]

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        base_url = process.stdout.readline().strip()
        with urlopen(f"{base_url}/chat/completions", data=b'{"model": "m"}') as answer:
            said = json.load(answer)["choices"][0]["message"]["content"]
        with urlopen(f"{base_url}/requests") as answer:
            received = json.load(answer)
        process.terminate()

    assert said == "Hello."
    assert received == [{"model": "m"}]

"""Conversations that go on at another provider, on the wire, against servers as strict as those.

A conversation lies in Postgres and any agent may continue it. What one provider sent as a call's
id, another may refuse; what one keeps of its own, another must not be sent.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitline.activities.contract.conversation import (
    Completion,
    Message,
    ToolDefinition,
    ToolResult,
)
from commitline.activities.contract.encoding import from_text, to_text
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.pydantic_ai_model import PydanticAIModel
from commitline.activities.model.scripted_model import call, say
from commitline.canonical import dumps
from commitline.errors import ModelRejected
from commitline.testing.openai_server import Answer, OpenAIServer, calls_and_results, tool_call
from commitline.tests.integration.wire_models import wire_model

if TYPE_CHECKING:
    from pydantic_ai.models import Model as WireModel

MISTRAL = "[a-zA-Z0-9]{9}"
ANTHROPIC = "[a-zA-Z0-9_-]+"
CAPPED = ".{1,64}"
ALL_AT_ONCE = MISTRAL  # who satisfies it satisfies the others

TOOLS = [
    ToolDefinition(name, f"{name.title()} the card.", {"type": "object", "properties": {}})
    for name in ("charge", "refund")
]
HELLO = Message.user("Charge 5.")
ODD = {
    "empty": "",
    "65 characters": "x" * 65,
    "very long": "x" * 5_000,
    "a space": "call 1",
    "unicode": "appel_é",
    "an emoji": "call_\U0001f600",
    "a lone surrogate": "call_\ud800",
    "NUL": "call\x001",
    "a line break": "call_1\n",
    "combined": "call_1|fc_1",
    "pydantic-ai's own": "pyd_ai_0123456789abcdef0123456789abcdef",
    "one made here": "c00000001",
}


class Conversation:
    """Messages that are read back from their JSON before each request, as from Postgres."""

    def __init__(self) -> None:
        self.messages = [HELLO]

    def request(self) -> ModelRequest:
        stored = [from_text(Message, to_text(message)) for message in self.messages]
        return ModelRequest(model="", instructions="Be brief.", tools=TOOLS, messages=stored)

    def add(self, completion: Completion) -> None:
        """Take an answer, and answer each of its calls."""
        self.messages.append(Message.assistant(completion))
        results = [
            ToolResult(f"0.{index}", made.id, made.name, "ok", dumps(f"result of {made.arguments}"))
            for index, made in enumerate(completion.calls)
        ]
        self.messages.append(Message.tool(results) if results else Message.user("Go on."))

    async def ask(self, model: PydanticAIModel) -> Completion:
        """Ask twice, as an activity that is tried again does, and keep the second answer."""
        await model.complete(self.request())
        completion = await model.complete(self.request())
        self.add(completion)
        return completion


def _calling(*calls: tuple[str, str, str], **message: Any) -> Answer:
    made = [tool_call(call_id, name, arguments) for call_id, name, arguments in calls]
    return {"message": {"tool_calls": made, **message}}


def _twice(*answers: Answer) -> list[Answer]:
    return [answer for answer in answers for _ in range(2)]


@asynccontextmanager
async def _model(
    server: OpenAIServer, kind: str = "chat", name: str = "m"
) -> AsyncIterator[PydanticAIModel]:
    async with wire_model(kind, server, name) as model:
        yield PydanticAIModel(model)


def _call_ids(body: dict[str, Any]) -> list[str]:
    return [call_id for kind, call_id in calls_and_results(body) if kind == "call"]


def _pairs(body: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the arguments of each call beside what its result says, over Chat Completions."""
    answers = {m["tool_call_id"]: m["content"] for m in body["messages"] if m["role"] == "tool"}
    calls = [made for m in body["messages"] for made in m.get("tool_calls") or []]
    return [(made["function"]["arguments"], answers[made["id"]]) for made in calls]


def _assert_stable(requests: Sequence[dict[str, Any]]) -> None:
    """Every request repeats the ids of the one before, and adds to their end only."""
    sent = [_call_ids(body) for body in requests]
    for before, after in pairwise(sent):
        assert after[: len(before)] == before
    assert all(len(set(ids)) == len(ids) for ids in sent)


TROUBLE = [
    _calling(("call_1", "charge", '{"n":1}')),
    _calling(("call_1", "refund", '{"n":2}')),
    _calling(("call_1", "charge", '{"n":3}'), ("call_1", "refund", '{"n":4}')),
    _calling(("", "charge", '{"n":5}')),
]


async def test_a_conversation_goes_on_at_providers_with_other_rules_for_ids() -> None:
    at_mistral = _calling(("D681PevKs", "charge", '{"n":6}'))
    at_capped = _calling(("x" * 64, "charge", '{"n":7}'), ("y" * 64, "refund", '{"n":8}'))
    conversation = Conversation()
    async with AsyncExitStack() as stack:
        loose = stack.enter_context(OpenAIServer(_twice(*TROUBLE), call_ids=".*"))
        mistral = stack.enter_context(OpenAIServer(_twice(at_mistral) * 2, call_ids=MISTRAL))
        capped = stack.enter_context(OpenAIServer(_twice(at_capped) * 2, call_ids=CAPPED))
        plain = stack.enter_context(
            OpenAIServer(_twice({"message": {"content": "Done."}}), call_ids=ANTHROPIC)
        )
        servers = (loose, mistral, capped, plain)
        at = [await stack.enter_async_context(_model(server)) for server in servers]

        for place in (0, 0, 0, 0, 1, 2, 1, 2, 3):
            await conversation.ask(at[place])

    for server in servers:
        assert server.requests[0::2] == server.requests[1::2]  # what is sent again is the same
        _assert_stable(server.requests)
    last = plain.requests[-1]
    assert [json.loads(arguments)["n"] for arguments, _ in _pairs(last)] == [
        *(1, 2, 3, 4, 5),
        *(6, 7, 8, 6, 7, 8),
    ]
    assert all(json.loads(told) == f"result of {arguments}" for arguments, told in _pairs(last))


async def test_a_provider_gets_its_own_ids_back_and_places_for_all_others() -> None:
    conversation = Conversation()
    async with AsyncExitStack() as stack:
        one = stack.enter_context(OpenAIServer(_twice(*TROUBLE, *TROUBLE[:1])))
        other = stack.enter_context(
            OpenAIServer(_twice(_calling(("D681PevKs", "charge", "{}"))) * 2, call_ids=MISTRAL)
        )
        at_one = await stack.enter_async_context(_model(one))
        at_other = await stack.enter_async_context(_model(other))

        for model in (at_one, at_one, at_one, at_one, at_other, at_one, at_other):
            await conversation.ask(model)

    assert _call_ids(one.requests[-1]) == [
        "call_1",
        "c00010000",  # the second call_1, and the place of the message that holds it
        "c00020000",
        "c00020001",
        "c00030000",
        "c00040000",
    ]
    assert _call_ids(other.requests[-1])[:4] == ["c00000000", "c00010000", "c00020000", "c00020001"]
    assert _call_ids(other.requests[-1])[5:] == ["D681PevKs", "c00050000"]


async def test_two_models_behind_one_gateway_are_two_providers() -> None:
    first = _calling(("call_1", "charge", "{}"), content="On it.", reasoning_content="Secret.")
    conversation = Conversation()
    with OpenAIServer([*_twice(first), *_twice({"message": {"content": "Done."}})]) as gateway:
        async with (
            _model(gateway, name="openai/gpt") as gpt,
            _model(gateway, name="mistral/large") as mistral,
        ):
            await conversation.ask(gpt)
            await conversation.ask(mistral)

    assert _call_ids(gateway.requests[-1]) == ["c00000000"]
    assert "Secret" not in json.dumps(gateway.requests[-1])
    assert "On it." in json.dumps(gateway.requests[-1])


async def test_a_model_that_falls_back_on_another_sends_ids_that_both_take() -> None:
    from pydantic_ai.models.fallback import FallbackModel

    conversation = Conversation()
    first = _calling(("call_1", "charge", "{}"), reasoning_content="Thoughts.")
    done: Answer = {"message": {"content": "Done."}}
    async with AsyncExitStack() as stack:
        main = stack.enter_context(OpenAIServer([*_twice(first), *[{"status": 503}] * 2]))
        spare = stack.enter_context(OpenAIServer(_twice(done), call_ids=MISTRAL))
        models = [
            await stack.enter_async_context(wire_model("chat", server)) for server in (main, spare)
        ]
        model = PydanticAIModel(FallbackModel(models[0], models[1]))

        await conversation.ask(model)
        answer = await conversation.ask(model)

    assert answer.text == "Done."
    assert "Thoughts." in json.dumps(main.requests[-1])
    assert _call_ids(main.requests[-1]) == _call_ids(spare.requests[-1]) == ["c00000000"]


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
async def test_an_odd_id_does_not_even_go_back_to_the_provider_that_sent_it(odd: str) -> None:
    script = [
        *_twice(_calling((odd, "charge", '{"n":1}'), (odd, "refund", '{"n":2}'))),
        *_twice(_calling(("fine", "charge", '{"n":3}'))),
        *_twice({"message": {"content": "Done."}}),
    ]
    conversation = Conversation()
    with OpenAIServer(script, call_ids="[a-zA-Z0-9_-]{1,64}") as server:
        async with _model(server) as model:
            for _ in range(3):
                await conversation.ask(model)

    assert _call_ids(server.requests[-1]) == ["c00000000", "c00000001", "fine"]
    _assert_stable(server.requests)


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("kind", ["chat", "openai", "anthropic", "google"])
async def test_an_odd_id_breaks_no_request_to_any_provider(kind: str, odd: str) -> None:
    conversation = Conversation()
    conversation.add(call(("charge", {"n": 1}), ("refund", {"n": 2}), ids=[odd, odd]))
    conversation.add(call(("charge", {"n": 3}), ids=[odd]))
    script: list[Answer] = [{"status": 418}] * 2
    with OpenAIServer(script, call_ids=ALL_AT_ONCE) as server:
        async with _model(server, kind) as model:
            for _ in range(2):
                with pytest.raises(ModelRejected, match="418"):  # 400 is the strict server's no
                    await model.complete(conversation.request())

    assert server.requests[0] == server.requests[1]
    assert _call_ids(server.requests[0]) == ["c00000000", "c00000001", "c00010000"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.sampled_from([*ODD.values(), "a", "b"]) | st.text(), max_size=4)))
def test_whatever_the_ids_every_call_has_one_result_and_an_id_of_its_own(
    turns: list[list[str]],
) -> None:
    conversation = Conversation()
    for number, ids in enumerate(turns):
        calls = [("charge", {"turn": number, "call": index}) for index in range(len(ids))]
        conversation.add(call(*calls, ids=ids) if ids else say("Well."))

    async def ask(server: OpenAIServer) -> Completion:
        async with _model(server) as model:
            return await model.complete(conversation.request())

    with OpenAIServer([{"message": {"content": "Done."}}], call_ids=ALL_AT_ONCE) as server:
        assert asyncio.run(ask(server)).text == "Done."

    assert len(_call_ids(server.requests[0])) == sum(map(len, turns))
    for arguments, told in _pairs(server.requests[0]):
        assert json.loads(told) == f"result of {arguments}"


async def test_places_beyond_the_limit_of_calls_stay_apart() -> None:
    conversation = Conversation()
    conversation.add(call(*[("charge", {})] * 1_300))
    conversation.add(call(*[("charge", {})] * 2))
    with OpenAIServer([{"message": {"content": "Done."}}], call_ids=ALL_AT_ONCE) as server:
        async with _model(server) as model:
            await model.complete(conversation.request())

    assert _call_ids(server.requests[0])[1_298:] == [
        "c00000102",
        "c00000103",
        "c00010000",
        "c00010001",
    ]


ONE = Message.assistant(call(("charge", {})))
TWO = Message.assistant(call(("charge", {}), ("refund", {})))
RESULT = ToolResult("0.0", "", "charge", "ok", "1")
UNPAIRED = {
    "no result": [ONE],
    "one result for two calls": [TWO, Message.tool([RESULT])],
    "the results of a later message": [ONE, TWO, Message.tool([RESULT] * 3)],
    "something said between": [ONE, HELLO, Message.tool([RESULT])],
    "two results at once": [ONE, Message.tool([RESULT] * 2)],
    "two results, one after the other": [ONE, Message.tool([RESULT]), Message.tool([RESULT])],
    "no call": [Message.tool([RESULT])],
}


@pytest.mark.parametrize("messages", UNPAIRED.values(), ids=UNPAIRED.keys())
async def test_a_call_without_exactly_one_result_is_refused_before_anything_is_sent(
    messages: list[Message],
) -> None:
    request = ModelRequest(model="", instructions="", tools=TOOLS, messages=[HELLO, *messages])
    with OpenAIServer([]) as server:
        async with _model(server) as model:
            with pytest.raises(ModelRejected, match=r"have no result after it|answers no call"):
                await model.complete(request)

    assert server.requests == []


NAMES = ["", "x" * 65, "char ge", "chargé", "charge\ud800", "functions.charge", "charge\x00"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["chat", "openai", "anthropic", "google"])
async def test_a_tool_name_that_only_a_model_could_invent_breaks_no_later_request(
    kind: str, name: str
) -> None:
    conversation = Conversation()
    conversation.add(call((name, {})))
    with OpenAIServer([{"status": 418}]) as server:
        async with _model(server, kind) as model:
            with pytest.raises(ModelRejected, match="418"):
                await model.complete(conversation.request())

    sent = re.findall(r'"name": "([^"]*)"', json.dumps(server.requests[0]))
    assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", found) for found in sent)
    assert len(sent) > len(TOOLS)


# --- what a provider keeps of its own ------------------------------------------------------

THINKS: dict[str, dict[str, Any]] = {
    "chat": {
        "id": "resp-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": "On it.",
                    "reasoning_content": "SECRET",
                    "tool_calls": [tool_call("call_1", "charge", "{}")],
                },
            }
        ],
    },
    "openai": {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": "completed",
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "output": [
            {
                "type": "reasoning",
                "id": "SECRET_rs",
                "summary": [{"type": "summary_text", "text": "SECRET"}],
                "encrypted_content": "SECRETSIGNATURE",
            },
            {
                "type": "message",
                "id": "SECRET_msg",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "On it.", "annotations": []}],
            },
            {
                "type": "function_call",
                "id": "SECRET_fc",
                "call_id": "call_1",
                "name": "charge",
                "arguments": "{}",
                "status": "completed",
            },
        ],
    },
    "anthropic": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
        "content": [
            {"type": "thinking", "thinking": "SECRET", "signature": "SECRETSIGNATURE"},
            {"type": "text", "text": "On it."},
            {"type": "tool_use", "id": "call_1", "name": "charge", "input": {}},
        ],
    },
    "google": {
        "responseId": "r1",
        "modelVersion": "m",
        "candidates": [
            {
                "finishReason": "STOP",
                "content": {
                    "role": "model",
                    "parts": [
                        {"text": "SECRET", "thought": True},
                        {"text": "On it."},
                        {
                            "functionCall": {"id": "call_1", "name": "charge", "args": {}},
                            "thoughtSignature": "SECRETSIGNATURE+",
                        },
                    ],
                },
            }
        ],
    },
}


def _native(kind: str, server: OpenAIServer) -> WireModel:
    # A reasoning model's name, as pydantic-ai sends encrypted reasoning to no other.
    return wire_model(kind, server, name="gpt-5" if kind == "openai" else "m")


async def _after_thinking(first: str, then: str, *, elsewhere: bool) -> str:
    """Have one model think and call; return what is sent next, at the same place or elsewhere."""
    conversation = Conversation()
    thought: Answer = {"status": 200, "body": THINKS[first]}
    with (
        OpenAIServer([thought, {"status": 418}]) as one,
        OpenAIServer([{"status": 418}], call_ids=ALL_AT_ONCE) as other,
    ):
        async with _native(first, one) as model:
            conversation.add(await PydanticAIModel(model).complete(conversation.request()))
        server = other if elsewhere else one
        async with _native(then, server) as model:
            with pytest.raises(ModelRejected, match="418"):
                await PydanticAIModel(model).complete(conversation.request())
    return json.dumps(server.requests[-1])


@pytest.mark.parametrize("kind", THINKS)
async def test_a_provider_gets_back_what_it_keeps_of_its_own(kind: str) -> None:
    sent = await _after_thinking(kind, kind, elsewhere=False)

    assert "SECRET" in sent
    assert "On it." in sent
    assert _call_ids(json.loads(sent)) == ["call_1"]


async def test_a_replaced_call_id_takes_the_item_id_that_came_with_it_along() -> None:
    conversation = Conversation()
    thought: Answer = {"status": 200, "body": THINKS["openai"]}
    with OpenAIServer([thought, thought, {"status": 418}]) as server:
        async with _native("openai", server) as native:
            model = PydanticAIModel(native)
            for _ in range(2):
                conversation.add(await model.complete(conversation.request()))
            with pytest.raises(ModelRejected, match="418"):
                await model.complete(conversation.request())

    sent = [item for item in server.requests[-1]["input"] if item.get("type") == "function_call"]
    assert [(item["call_id"], item.get("id")) for item in sent] == [
        ("call_1", "SECRET_fc"),
        ("c00010000", None),
    ]


@pytest.mark.parametrize("then", THINKS)
@pytest.mark.parametrize("first", THINKS)
async def test_a_provider_is_sent_nothing_that_another_keeps(first: str, then: str) -> None:
    sent = await _after_thinking(first, then, elsewhere=True)

    assert "SECRET" not in sent
    assert "On it." in sent
    assert _call_ids(json.loads(sent)) == ["c00000000"]


@pytest.mark.parametrize("state", ["text", 1, [], {}, {"metadata": 1}, {"kind": "response"}])
async def test_what_a_model_of_ones_own_keeps_is_no_business_of_a_provider(state: object) -> None:
    conversation = Conversation()
    conversation.add(replace(call(("charge", {})), provider_state=state))
    with OpenAIServer([{"message": {"content": "Done."}}], call_ids=ALL_AT_ONCE) as server:
        async with _model(server) as model:
            assert (await model.complete(conversation.request())).text == "Done."


# --- the strict server itself --------------------------------------------------------------


def _chat(*calls: str, results: Sequence[str]) -> list[dict[str, Any]]:
    made = [tool_call(call_id, "charge", "{}") for call_id in calls]
    told = [{"role": "tool", "tool_call_id": call_id, "content": "1"} for call_id in results]
    return [{"role": "assistant", "tool_calls": made}, *told]


@pytest.mark.parametrize(
    ("messages", "refusal"),
    [
        (_chat("abcdefghi", results=["abcdefghi"]), None),
        (_chat("call_1", results=["call_1"]), "does not match"),
        (_chat("abcdefghi", results=[]), "there is no result for"),
        (_chat("abcdefghi", results=["abcdefghj"]), "no call before it waits for one"),
        (_chat("abcdefghi", results=["abcdefghi"] * 2), "no call before it waits for one"),
        (_chat("abcdefghi", "abcdefghi", results=["abcdefghi"]), "is used for two calls"),
        (_chat("abcdefghi", results=["abcdefghi"]) * 2, "is used for two calls"),
    ],
)
def test_a_strict_server_refuses_what_a_provider_would(
    messages: list[dict[str, Any]], refusal: str | None
) -> None:
    with OpenAIServer([{"message": {"content": "Done."}}], call_ids=MISTRAL) as server:
        answer = httpx.post(f"{server.base_url}/chat/completions", json={"messages": messages})

    assert answer.status_code == (200 if refusal is None else 400)
    assert refusal is None or refusal in answer.json()["error"]["message"]

"""What a model writes is not believed: one error per call, nothing run, nothing broken."""

from __future__ import annotations

import json
from typing import Annotated

import pytest
from pydantic import AfterValidator

from commitline import Effect, tool
from commitline.activities.model.scripted_model import call, say
from commitline.errors import ModelRejected

from .bench import Bench, one_agent

CALLED: list[tuple[str, int]] = []


@tool(effect=Effect.AT_MOST_ONCE)
async def pay(order_id: str, amount_cents: int = 100) -> str:
    CALLED.append((order_id, amount_cents))
    return "paid"


@tool(effect=Effect.READ)
async def look(order_id: str) -> str:
    return order_id


async def test_invented_tool_names_are_each_told_the_tools_there_are(bench: Bench) -> None:
    names = [
        "refnd",
        "",
        "x'); DROP TABLE agent_actions;--",
        "../../etc",
        "n" * 10_240,
        "\ud83d",
        "pay\x00",
        "commitline.close_run",
        "PAY",
    ]
    script = [
        call(*[(name, {"order_id": "1"}) for name in names]),
        call(("pay", {"order_id": "2"})),
        say("Done."),
    ]

    async with bench.serving(one_agent([pay, look], script)) as client:
        live = await bench.start(client)
        replayed = await bench.rerun(client, live.id)

    refused = live.results[: len(names)]
    assert [r.name for r in refused] == names
    for result in refused:
        error = json.loads(result.content)["error"]
        assert (result.status, error["type"], error["effect"]) == ("error", "UnknownTool", "none")
        assert error["message"].endswith("the tools are: pay, look")
        assert len(result.content) < 400
    assert [a.position for a in live.actions] == ["1.0"]
    assert CALLED == [("2", 100)]
    assert replayed.messages == live.messages


ARGUMENTS: dict[str, tuple[str, str]] = {
    "not_an_object": ("[1, 2]", "not a JSON object"),
    "a_string": ('"4821"', "not a JSON object"),
    "null": ("null", "not a JSON object"),
    "missing_field": ("{}", "Field required"),
    "wrong_type": ('{"order_id": "1", "amount_cents": "many"}', "valid integer"),
    "number_for_text": ('{"order_id": 4821}', "valid string"),
    "extra_field": ('{"order_id": "1", "tip": 5}', "not permitted"),
    "quoted_key": ('{"order_id\'; drop table agent_actions;--": 1}', "not permitted"),
    "no_json": ("order 4821, please", "malformed or truncated"),
    "truncated": ('{"cmds": ["npm install", "npm test"', "malformed or truncated"),
    "open_string": ('{"order_id": "48', "malformed or truncated"),
    "nan": ('{"order_id": "1", "amount_cents": NaN}', "malformed or truncated"),
    "infinity": ('{"order_id": "1", "amount_cents": -Infinity}', "malformed or truncated"),
    "same_key_twice": ('{"order_id": "1", "order_id": "2"}', "malformed or truncated"),
    "huge_integer": (f'{{"order_id": "1", "amount_cents": {"9" * 5_000}}}', "malformed"),
    "deep": (f'{{"order_id": {"[" * 5_000}{"]" * 5_000}}}', "malformed or truncated"),
    "large": (json.dumps({"order_id": "x" * 300_000}), "over 256 KiB"),
    "two_objects": ('{"order_id": "1"}{"order_id": "2"}', "malformed or truncated"),
}


async def test_arguments_that_do_not_fit_are_each_an_error_without_a_row(bench: Bench) -> None:
    script = [
        call(*[("pay", text) for text, _ in ARGUMENTS.values()]),
        call(("pay", {"order_id": "2"})),
        say("Done."),
    ]

    async with bench.serving(one_agent([pay], script)) as client:
        live = await bench.start(client)
        replayed = await bench.rerun(client, live.id)

    for result, (name, (_, told)) in zip(live.results, ARGUMENTS.items(), strict=False):
        error = json.loads(result.content)["error"]
        assert (result.status, error["type"]) == ("error", "InvalidArguments"), name
        assert told in error["message"], name
        assert error["effect"] == "none"
    assert [a.position for a in live.actions] == ["1.0"]
    assert CALLED == [("2", 100)]
    assert replayed.messages == live.messages


async def test_a_read_refuses_arguments_that_do_not_fit_too(bench: Bench) -> None:
    ran = await bench.run(one_agent([look], [call(("look", {})), say("Done.")]))

    assert json.loads(ran.results[0].content)["error"]["type"] == "InvalidArguments"


async def test_a_message_that_was_cut_off_voids_every_call_in_it(bench: Bench) -> None:
    script = [
        call(
            ("pay", {"order_id": "4821"}),
            ("pay", '{"order_id": "48'),
            finish_reason="length",
        ),
        say("Done."),
    ]

    ran = await bench.run(one_agent([pay], script))

    assert [r.status for r in ran.results] == ["error", "error"]
    assert all("cut off" in r.content for r in ran.results)
    assert (ran.actions, CALLED) == ([], [])


async def test_half_a_character_in_arguments_is_an_error_and_no_loop(bench: Bench) -> None:
    script = [call(("pay", {"order_id": "\ud83d"})), call(("pay", {"order_id": "2"})), say("Done.")]

    ran = await bench.run(one_agent([pay], script))

    assert [r.status for r in ran.results] == ["error", "ok"]
    assert json.loads(ran.results[0].content)["error"]["type"] == "InvalidArguments"
    assert CALLED == [("2", 100)]


async def test_a_completion_of_over_a_megabyte_fails_the_run_and_not_its_workflow_task(
    bench: Bench,
) -> None:
    async with bench.serving(one_agent([], [say("x" * 1_100_000)])) as client:
        with pytest.raises(ModelRejected) as failed:
            await bench.start(client)

    assert failed.value.code == "CL402"


def _choke(value: str) -> str:
    raise LookupError(f"no such order: {value}")


@tool(effect=Effect.AT_MOST_ONCE)
async def ship(order_id: Annotated[str, AfterValidator(_choke)]) -> str:
    CALLED.append((order_id, 0))
    return "shipped"


async def test_a_validator_that_breaks_down_is_one_error_and_not_a_loop(bench: Bench) -> None:
    script = [call(("ship", {"order_id": "4821"})), say("Done.")]

    async with bench.serving(one_agent([ship], script)) as client:
        ran = await bench.start(client)

    error = json.loads(ran.results[0].content)["error"]
    assert (ran.results[0].status, error["type"], error["effect"]) == (
        "error",
        "InvalidArguments",
        "none",
    )
    assert "LookupError: no such order: 4821" in error["message"]
    assert CALLED == []
    assert await bench.sql("select * from agent_actions") == []

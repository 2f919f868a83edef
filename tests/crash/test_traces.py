"""A run is one trace, whichever workers carry it out; a take-over links to what was lost."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from commitline.tests.crash.stage import Scene

TRACED = {"COMMITLINE_TRACES": "on"}


async def test_a_run_over_a_killed_worker_is_one_trace_and_the_take_over_links_to_the_lost_attempt(
    scene: Scene,
) -> None:
    await scene.start()
    with scene.worker("traced:app", crash_at="before_record@charge", **TRACED) as worker:
        await asyncio.to_thread(worker.wait_until_killed)
    with scene.worker("traced:app", **TRACED):
        after = await scene.aftermath()

    text = (scene.log.parent / "spans").read_text()
    told: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    begun = [one for one in told if one["what"] == "begun"]
    ended = [one for one in told if one["what"] == "ended"]
    # Each span is ended, and so sent, once: also that of the run, which both workers began.
    assert sorted(one["name"] for one in ended) == [
        "chat traced",
        "chat traced",
        "chat traced",
        "execute_tool charge",
        "execute_tool price",
        "invoke_agent support",
    ]
    assert len({one["context"]["trace_id"] for one in told}) == 1
    (run,) = [one for one in ended if one["name"] == "invoke_agent support"]
    assert {one["parent_id"] for one in ended} == {None, run["context"]["span_id"]}
    assert run["attributes"]["commitline.run.id"] == scene.run_id

    lost, found = [one for one in begun if one["name"] == "execute_tool charge"]
    (charge,) = [one for one in ended if one["name"] == "execute_tool charge"]
    assert lost["pid"] != found["pid"]
    assert charge["context"] == found["context"]
    assert [(link["context"], link["attributes"]) for link in charge["links"]] == [
        (lost["context"], {"commitline.link": "takes over from"})
    ]
    assert charge["attributes"] == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "charge",
        "gen_ai.tool.type": "function",
        "commitline.attempt": 2,
        "commitline.run.key": after.row("charge").run_key,
        "commitline.action.key": after.row("charge").key,
        "commitline.action.effect": "idempotent",
        "commitline.action.outcome": "ok",
    }
    # Nobody asked for content.
    assert "of Ada" not in text
    assert "a blue one" not in text

"""What the model reads of its calls: the ledger's words, and history holds them once at most."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Sequence
from dataclasses import replace

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory

from commitline import Effect, tool
from commitline.activities.contract.conversation import ToolResult
from commitline.activities.model.scripted_model import call, say
from commitline.identity import Position, action_key
from commitline.ledger import Outcome

from .bench import Bench, eventually, fresh_id, one_agent
from .playing import Signals, seen


def letters(size: int) -> str:
    """Return a text that is found nowhere else."""
    return "".join(random.choices(string.ascii_letters, k=size))


def told_of(results: Sequence[ToolResult]) -> dict[str, object]:
    return {one.name: json.loads(one.content) for one in results}


def completion_of(history: WorkflowHistory, at: str) -> dict[str, object]:
    """Return what Temporal's UI shows of the result of a call."""
    scheduled = next(
        event.event_id
        for event in history.events
        if event.activity_task_scheduled_event_attributes.activity_id == at
    )
    (payload,) = next(
        event.activity_task_completed_event_attributes.result.payloads
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
        and event.activity_task_completed_event_attributes.scheduled_event_id == scheduled
    )
    shown: dict[str, object] = json.loads(payload.data)
    return shown


# --- by reference


async def test_history_has_a_result_once_at_most_and_the_model_reads_the_whole(
    bench: Bench,
) -> None:
    signature = letters(100)
    texts = {"act": letters(1_000), "export": letters(50_000), "look": letters(20_000)}

    @tool(effect=Effect.IDEMPOTENT)
    async def act() -> str:
        return texts["act"]

    @tool(effect=Effect.AT_MOST_ONCE)
    async def export() -> str:
        return texts["export"]

    @tool(effect=Effect.READ)
    async def look() -> str:
        return texts["look"]

    made = call(("act", {}), ("export", {}), ("look", {}))
    script = [replace(made, provider_state={"signature": signature}), say("Done.")]
    async with bench.serving(one_agent([act, export, look], script)) as client:
        ran = await bench.start(client)
        history = await bench.history(ran.id)
        run_key = await bench.run_key(client.run(ran.id))
        again = await bench.rerun(client, ran.id)

    assert told_of(ran.results) == texts
    assert again.results == ran.results
    shown = completion_of(history, "0.0")
    assert (shown["status"], shown["content"]) == ("ok", texts["act"])
    events = b"".join(event.SerializeToString() for event in history.events)
    assert events.count(texts["act"].encode()) == 1
    completions = [one.completion for one in ran.messages if one.completion is not None]
    assert [one.provider_state for one in completions] == [{"signature": signature}]
    assert signature.encode() not in events, "only the provider needs it"
    for at, name in (("0.1", "export"), ("0.2", "look")):
        shown = completion_of(history, at)
        assert (shown["status"], shown["recorded"], shown["partial"]) == ("ok", True, True)
        key = action_key(run_key, Position(at))
        content = shown["content"]
        assert isinstance(content, dict)
        assert content["characters"] == len(texts[name]) + 2
        assert content["whole_value"] == f"in the ledger, as the result of {key}"
        assert str(content["head"])[1:] in texts[name]
        assert events.count(str(content["head"])[1:].encode()) == 1


# --- what was told stands


async def test_what_is_told_of_a_call_does_not_follow_what_becomes_of_its_row(
    bench: Bench,
) -> None:
    signals, receipt = Signals(), letters(500)

    @tool(effect=Effect.IDEMPOTENT)
    async def charge() -> str:
        return receipt

    @tool(effect=Effect.AT_MOST_ONCE)
    async def mail() -> str:
        raise RuntimeError("the line is dead")

    @tool(effect=Effect.READ)
    def wait() -> str:
        signals.began.set()
        assert signals.release.wait(40)
        return "waited"

    script = [call(("charge", {}), ("mail", {}), ("wait", {})), say("Done.")]
    async with bench.serving(one_agent([charge, mail, wait], script)) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)

        async def settled() -> bool:
            states = {one.tool: one.state for one in await run.actions()}
            return states == {"charge": "ok", "mail": "unknown"}

        await eventually(settled)
        ledger = await client.ledger()
        (unknown,) = [one for one in await run.actions() if one.tool == "mail"]
        await ledger.settle(unknown.key, Outcome.ok('"sent"'), by="ada")
        await bench.sql("update agent_actions set undone_by = 'x' where tool = 'charge'")
        signals.release.set()
        ran = await bench.outcome(run)

    told = {one.name: (one.status, json.loads(one.content)) for one in ran.results}
    assert told["charge"] == ("ok", receipt)
    status, content = told["mail"]
    assert (status, content["unknown"]["action"]) == ("unknown", unknown.key)
    notices = [one.text for one in ran.messages if one.text.startswith("[notice]")]
    assert len(notices) == 1
    assert 'settled by ada: it happened. Its result: "sent"' in notices[0]


# --- a failover


async def test_a_result_that_the_ledger_has_lost_is_told_as_far_as_history_has_it(
    bench: Bench,
) -> None:
    short, long = letters(1_000), letters(3_000)
    signals = Signals()

    @tool(effect=Effect.IDEMPOTENT)
    async def act() -> str:
        return short

    @tool(effect=Effect.IDEMPOTENT)
    async def export() -> str:
        return long

    @tool(effect=Effect.READ)
    def wait() -> str:
        signals.began.set()
        assert signals.release.wait(40)
        return "waited"

    script = [call(("act", {}), ("export", {}), ("wait", {})), say("Done.")]
    async with bench.serving(one_agent([act, export, wait], script)) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)

        async def recorded() -> bool:
            return [one.state for one in await run.actions()] == ["ok", "ok"]

        await eventually(recorded)
        await bench.sql("delete from agent_actions")
        signals.release.set()
        ran = await bench.outcome(run)

    told = {one.name: (one.status, json.loads(one.content)) for one in ran.results}
    assert told["act"] == ("ok", short)
    status, content = told["export"]
    assert status == "ok"
    assert "A failover of the database lost its record" in content["note"]
    assert content["result"]["head"] == f'"{long[:999]}'

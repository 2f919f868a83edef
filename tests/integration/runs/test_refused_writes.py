"""What is known of a call is not lost to an error of its record that is no outage.

A trigger refuses the write as often as the test says: what it counts is not rolled back.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from commitline import Effect, Tool, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.contract.outcomes import RECORD_OUTCOME
from commitline.activities.contract.sizes import MAX_CONTENT
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import call, say

from .bench import Bench, Ran, eventually, fresh_id, one_agent
from .playing import Signals, computed_app, seen, turn_of

CALLED: Counter[str] = Counter()
ACT = call(("act", {}))

RECORDED = "tg_op = 'UPDATE' and new.status = 'done'"
PARKED = "tg_op = 'UPDATE' and new.parked_at is not null and old.parked_at is null"
COUNTED = "tg_op = 'UPDATE' and new.failures > old.failures"


async def refuse(
    bench: Bench, when: str, *, times: int, table: str = "agent_actions", code: str = "42501"
) -> None:
    """Have Postgres refuse the writes of which a condition is true, so many times."""
    await bench.sql("create sequence refusals")
    await bench.sql(
        "create function refuse() returns trigger language plpgsql as $$ begin"
        f" if {when} then if nextval('refusals') <= {times} then"
        f" raise exception 'refused by a trigger' using errcode = '{code}'; end if; end if;"
        " return new; end $$"
    )
    await bench.sql(
        f"create trigger refuse before insert or update on {table}"
        " for each row execute function refuse()"
    )


def acting(effect: Effect, result: str = "acted", **given: Any) -> Tool:
    @tool(effect=effect, name="act", **given)
    async def act() -> str:
        CALLED["act"] += 1
        return result

    return act


async def run(bench: Bench, made: Tool) -> Ran:
    return await bench.run(one_agent([made], [ACT, say("Done.")]))


async def activities_of(bench: Bench, workflow_id: str) -> list[str]:
    events = (await bench.history(workflow_id)).events
    names = (e.activity_task_scheduled_event_attributes.activity_type.name for e in events)
    return [name for name in names if name]


@pytest.mark.parametrize("times", [1, 3], ids=["once", "three times"])
@pytest.mark.parametrize("effect", [Effect.IDEMPOTENT, Effect.AT_MOST_ONCE])
async def test_an_outcome_whose_record_is_refused_is_recorded_later_by_the_run(
    bench: Bench, effect: Effect, times: int
) -> None:
    await refuse(bench, RECORDED, times=times)

    ran = await run(bench, acting(effect))

    assert CALLED == {"act": 1}
    assert [(a.state, a.result) for a in ran.actions] == [("ok", '"acted"')]
    assert [(r.status, json.loads(r.content)) for r in ran.results] == [("ok", "acted")]
    assert RECORD_OUTCOME in await activities_of(bench, ran.id)


async def test_an_outcome_that_is_too_large_to_travel_is_held_while_its_record_is_refused(
    bench: Bench,
) -> None:
    await refuse(bench, RECORDED, times=3)

    ran = await run(bench, acting(Effect.AT_MOST_ONCE, "x" * (MAX_CONTENT + 1)))

    assert CALLED == {"act": 1}
    assert [(a.state, len(a.result or "")) for a in ran.actions] == [("ok", MAX_CONTENT + 3)]


async def test_what_is_unknown_is_parked_with_its_reason_although_that_was_refused(
    bench: Bench,
) -> None:
    @tool(effect=Effect.IDEMPOTENT)
    async def act() -> str:
        CALLED["act"] += 1
        raise ValueError("a fault")

    await refuse(bench, PARKED, times=2)

    ran = await run(bench, act)

    (action,) = ran.actions
    assert CALLED == {"act": 1}
    assert (action.state, action.parked_reason) == ("unknown", "ValueError: a fault")


async def test_a_try_that_cannot_be_counted_is_the_last_one(bench: Bench) -> None:
    @tool(effect=Effect.IDEMPOTENT)
    async def act() -> str:
        CALLED["act"] += 1
        raise ConnectionResetError("cut")

    await refuse(bench, COUNTED + " and new.parked_at is null", times=1000)

    ran = await run(bench, act)

    assert CALLED == {"act": 1}
    assert [a.state for a in ran.actions] == ["unknown"]


async def test_a_late_outcome_is_recorded_although_that_was_refused(
    bench: Bench, signals: Signals
) -> None:
    @tool(effect=Effect.AT_MOST_ONCE, tool_timeout=0.3)
    def act() -> str:
        signals.began.set()
        signals.release.wait(60)
        return "acted late"

    await refuse(bench, RECORDED, times=2)
    async with bench.serving(one_agent([act], [ACT, say("Done.")])) as client:
        started = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)
        ran = await bench.outcome(started)
        signals.release.set()

        async def recorded() -> bool:
            return (await started.actions())[0].result == '"acted late"'

        assert await eventually(recorded)

    assert [a.state for a in ran.actions] == ["unknown"]


async def test_a_result_that_postgres_cannot_hold_is_an_error_that_happened(bench: Bench) -> None:
    await refuse(bench, RECORDED + " and new.outcome = 'ok'", times=1000, code="54000")

    ran = await run(bench, acting(Effect.AT_MOST_ONCE))

    (action,) = ran.actions
    assert CALLED == {"act": 1}
    assert (action.state, action.effect_possible) == ("error", True)
    assert json.loads(ran.results[0].content)["error"]["type"] == "UnrepresentableResult"


async def test_a_models_answer_whose_record_is_refused_is_not_asked_for_again(
    bench: Bench,
) -> None:
    def answer(request: ModelRequest) -> Completion:
        CALLED[f"turn {turn_of(request)}"] += 1
        return ACT if turn_of(request) == 0 else say("Done.")

    app, _ = computed_app(answer, acting(Effect.AT_MOST_ONCE))
    await refuse(bench, "new.role = 'assistant'", times=2, table="agent_messages")

    ran = await bench.run(app)

    assert ran.result.output == "Done."
    assert CALLED == {"act": 1, "turn 0": 1, "turn 1": 1}

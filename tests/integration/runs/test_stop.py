"""Stopping a run: committed first, then cancelled; nothing starts afterwards, anywhere."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.client import WorkflowExecutionStatus

from commitline import Agent, App, Effect, StillInProgress, Tool, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.contract.runs import OPEN_RUN
from commitline.activities.contract.turns import CALL_MODEL
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import ScriptedModel, call, say
from commitline.client import AgentClient
from commitline.errors import Fenced, LedgerUnavailable, RunFailed, RunNotFound, RunNotRunning
from commitline.identity import RunKey
from commitline.ledger import Action, ActionLedger, ActionRequest, Dispatched, Outcome, ledger_pool
from commitline.tests.builders import NOON, action_request, attempt, open_run
from commitline.tests.histories import activities_in

from .bench import Bench, commitline, eventually, fresh_id, one_agent
from .playing import HANGS, SOON, Signals, seen

CALLED: Counter[str] = Counter()
ACT = call(("act", {}))


def hanging(signals: Signals, *, clean_up_seconds: float = 0.0) -> Tool:
    @tool(effect=Effect.AT_MOST_ONCE, name="act")
    async def act() -> str:
        CALLED["act"] += 1
        signals.began.set()
        try:
            await asyncio.sleep(HANGS)
        finally:
            await asyncio.sleep(clean_up_seconds)
            CALLED["cleaned up"] += 1
        return "acted"

    return act


def blocking(signals: Signals) -> Tool:
    @tool(effect=Effect.AT_MOST_ONCE, name="act")
    def act() -> str:
        CALLED["act"] += 1
        signals.began.set()
        signals.release.wait(HANGS)
        return "acted late"

    return act


@tool(effect=Effect.AT_MOST_ONCE, name="act")
async def acts() -> str:
    CALLED["act"] += 1
    return "acted"


@tool(effect=Effect.AT_MOST_ONCE)
async def after() -> str:
    CALLED["after"] += 1
    return "after"


def then_after(made: Tool) -> App:
    """An agent that calls the tool, and would call another one then."""
    return one_agent([made, after], [ACT, call(("after", {})), say("Done.")])


async def actions_of(client: AgentClient, id: str) -> Sequence[Action]:
    return await client.run(id).actions()


async def rows(bench: Bench) -> list[tuple[object, ...]]:
    return await bench.sql(
        "select state, stopped_at is not null, stop_reason from agent_runs order by created_at"
    )


async def activities_of(bench: Bench, id: str) -> list[str]:
    return activities_in((await bench.history(id)).events)


# --- what is at work when the stop comes


async def test_a_stop_waits_for_an_async_tool_and_leaves_its_outcome_unknown(
    bench: Bench, signals: Signals
) -> None:
    made = hanging(signals, clean_up_seconds=0.3)

    async with bench.serving(then_after(made)) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)
        status = await run.stop(reason="wrong customer")
        cleaned_up = CALLED["cleaned up"]
        (action,) = await run.actions()
        with pytest.raises(RunFailed, match="was canceled"):
            await run.result()
        names = await activities_of(bench, run.id)

    assert status.state == "canceled"
    assert cleaned_up == 1
    assert action.state == "unknown"
    assert action.parked_reason == "the run was cancelled while the tool was at work"
    assert not action.leased
    assert CALLED == {"act": 1, "cleaned up": 1}
    assert await rows(bench) == [("ended", True, "wrong customer")]
    assert names.count(CALL_MODEL) == 1
    assert "after" not in names


async def test_a_stop_takes_little_longer_than_a_heartbeat(bench: Bench, signals: Signals) -> None:
    async with bench.serving(then_after(hanging(signals))) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)
        began = time.monotonic()
        status = await run.stop()
        took = time.monotonic() - began

    assert status.state == "canceled"
    assert took < bench.settings.heartbeat_seconds + 1 + 1


async def test_a_stop_leaves_a_blocked_thread_behind_and_records_what_it_ends_with(
    bench: Bench, signals: Signals
) -> None:
    async with bench.serving(then_after(blocking(signals))) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)
        async with asyncio.timeout(SOON):
            status = await run.stop(reason="enough")
        (left,) = await run.actions()
        signals.release.set()

        async def recorded() -> bool:
            return (await run.actions())[0].state == "ok"

        await eventually(recorded, seconds=SOON)
        (late,) = await run.actions()

    assert status.state == "canceled"
    assert left.state == "unknown"
    assert left.leased
    assert late.result == '"acted late"'
    assert CALLED == {"act": 1}


async def test_a_stop_cancels_a_model_request(bench: Bench, signals: Signals) -> None:
    class Hanging:
        name = "hanging"

        async def complete(self, request: ModelRequest) -> Completion:
            CALLED["asked"] += 1
            signals.began.set()
            try:
                await asyncio.sleep(HANGS)
            finally:
                CALLED["cleaned up"] += 1
            return say("late")

    async with bench.serving(App([Agent("agent", Hanging(), "")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)
        status = await run.stop()

    assert status.state == "canceled"
    assert CALLED == {"asked": 1, "cleaned up": 1}


async def test_a_stop_ends_a_wait_for_another_try_and_nothing_is_tried_again(
    bench: Bench, signals: Signals
) -> None:
    @tool(effect=Effect.IDEMPOTENT, name="act")
    async def act() -> str:
        CALLED["act"] += 1
        raise StillInProgress("409", retry_after=timedelta(seconds=HANGS))

    async def waits() -> bool:
        (action,) = await run.actions()
        return action.in_progress

    async with bench.serving(then_after(act)) as client:
        run = await client.start("agent", "go", id=fresh_id())

        async def begun() -> bool:
            return len(await run.actions()) == 1 and await waits()

        await eventually(begun, seconds=SOON)
        async with asyncio.timeout(SOON):
            status = await run.stop()
        (action,) = await run.actions()

    assert status.state == "canceled"
    assert CALLED == {"act": 1}
    assert action.state == "unknown"
    assert action.parked_reason is not None
    assert "between two tries" in action.parked_reason


async def test_another_run_works_on_as_before(bench: Bench, signals: Signals) -> None:
    async with bench.serving(one_agent([blocking(signals)], [ACT, say("Done.")])) as client:
        stopped = await client.start("agent", "go", id=fresh_id())
        other = await client.start("agent", "go", id=fresh_id())

        async def both() -> bool:
            return CALLED["act"] == 2

        await eventually(both, seconds=SOON)
        status = await stopped.stop()
        beside = await other.status()
        signals.release.set()
        ran = await bench.outcome(other)

    assert status.state == "canceled"
    assert beside.state == "running"
    assert [(a.state, a.result) for a in ran.actions] == [("ok", '"acted late"')]
    assert sorted(row[0:2] for row in await rows(bench)) == [("ended", False), ("ended", True)]


# --- stops that meet no run at work


async def test_a_run_without_a_worker_is_stopping_and_calls_nothing_when_one_comes(
    bench: Bench, signals: Signals
) -> None:
    model = ScriptedModel("scripted", [ACT, say("Done.")])
    client = AgentClient(bench.temporal, bench.settings)
    run = await client.start("agent", "go", id=fresh_id())

    began = time.monotonic()
    stopping = await run.stop(reason="nobody home", wait_seconds=0.5)
    took = time.monotonic() - began
    before = await rows(bench)
    async with bench.serving(App([Agent("agent", model, "", [acts])])):
        with pytest.raises(RunFailed, match="was canceled"):
            async with asyncio.timeout(SOON):
                await run.result()
        ended = await run.status()
        actions = await run.actions()
    await client.close()

    assert stopping.state == "stopping"
    assert took < SOON
    assert before == [("stopping", True, "nobody home")]
    assert ended.state == "canceled"
    assert (model.calls, CALLED["act"], list(actions)) == (0, 0, [])


async def test_a_run_whose_worker_went_is_stopped_and_its_call_is_not_taken_over(
    bench: Bench, signals: Signals
) -> None:
    @tool(effect=Effect.IDEMPOTENT, name="act")
    async def act() -> str:
        CALLED["act"] += 1
        signals.began.set()
        await asyncio.sleep(HANGS)
        return "acted"

    brief = Bench(bench.temporal, bench.settings.model_copy(update={"grace_seconds": 0.1}))
    client = AgentClient(bench.temporal, bench.settings)
    run = await client.start("agent", "go", id=fresh_id())
    async with brief.serving(then_after(act)):
        await seen(signals.began)

    stopping = await run.stop(wait_seconds=0.5)
    async with bench.serving(then_after(act)):
        with pytest.raises(RunFailed, match="was canceled"):
            async with asyncio.timeout(SOON):
                await run.result()
        (action,) = await run.actions()
    await client.close()

    assert stopping.state == "stopping"
    assert CALLED == {"act": 1}
    assert action.recorded is None


async def test_a_run_that_is_stopped_before_it_has_opened_never_opens(
    bench: Bench, signals: Signals
) -> None:
    # The stop is committed, and whoever stopped it died before the cancellation.
    model = ScriptedModel("scripted", [ACT, say("Done.")])
    client = AgentClient(bench.temporal, bench.settings)
    run = await client.start("agent", "go", id=fresh_id())
    ledger = await client.ledger()
    await ledger.runs.stop(
        (await run.status()).run_key,
        workflow_id=run.id,
        agent="",
        reason="too early",
        attempt_at=datetime.now(tz=UTC),
    )

    async with bench.serving(App([Agent("agent", model, "", [acts])])):
        with pytest.raises(RunNotRunning, match="was stopped: too early"):
            async with asyncio.timeout(SOON):
                await run.result()
    await client.close()

    assert (model.calls, CALLED["act"]) == (0, 0)
    assert (await activities_of(bench, run.id)) == [OPEN_RUN]
    assert (await rows(bench))[0][1:] == (True, "too early")


async def test_a_stop_of_a_run_that_has_ended_says_how_and_changes_nothing(
    bench: Bench, signals: Signals
) -> None:
    async with bench.serving(then_after(acts)) as client:
        ran = await bench.start(client)
        before = await bench.sql("select * from agent_runs")
        status = await client.run(ran.id).stop(reason="too late")
        after_it = await bench.sql("select * from agent_runs")

    assert status.state == "completed"
    assert after_it == before
    assert (await rows(bench)) == [("ended", False, None)]


async def test_a_stop_of_no_run_is_not_found(bench: Bench) -> None:
    client = AgentClient(bench.temporal, bench.settings)

    with pytest.raises(RunNotFound):
        await client.run(fresh_id()).stop()

    assert await rows(bench) == []


async def test_stopping_twice_is_stopping_once_and_the_first_reason_stands(
    bench: Bench, signals: Signals
) -> None:
    async with bench.serving(then_after(hanging(signals))) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)
        first = await run.stop(reason="the first", wait_seconds=0)
        both = await asyncio.gather(run.stop(reason="the second"), run.stop(reason="the third"))
        last = await run.stop(reason="the last")

    assert first.state == "stopping"
    assert [status.state for status in (*both, last)] == ["canceled"] * 3
    assert CALLED == {"act": 1, "cleaned up": 1}
    assert await rows(bench) == [("ended", True, "the first")]


@pytest.mark.parametrize("odd", ["a\x00b", "a\udce9b"], ids=["nul", "surrogate"])
async def test_a_reason_that_cannot_be_stored_does_not_keep_a_run_from_stopping(
    bench: Bench, signals: Signals, odd: str
) -> None:
    async with bench.serving(then_after(hanging(signals))) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)
        status = await run.stop(reason=odd)
        await run.undo(reason=odd)

    assert status.state == "canceled"
    assert (await rows(bench))[0][1:] == (True, "a?b")


# --- nothing opens it again


async def test_a_reset_of_a_stopped_run_starts_nothing_and_says_so(
    bench: Bench, signals: Signals
) -> None:
    async with bench.serving(then_after(hanging(signals))) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)
        await run.stop(reason="for good")
        before = await bench.sql("select * from agent_actions")
        await bench.reset(run.id)
        with pytest.raises(RunNotRunning, match="was stopped: for good") as told:
            async with asyncio.timeout(SOON):
                await client.run(run.id).result()
        after_it = await bench.sql("select * from agent_actions")
        names = await activities_of(bench, run.id)

    assert told.value.code == "CL204"
    assert CALLED == {"act": 1, "cleaned up": 1}
    assert set(names) == {OPEN_RUN}
    assert after_it == before


RUN = RunKey("support-4821/01a22977-b19f-78fe-bfb3-8357f419693b")


def request_at(at: str, effect: Effect = Effect.AT_MOST_ONCE) -> ActionRequest:
    return action_request(RUN, at, tool="act", effect=effect, effective_digest=f"digest {at}")


async def stop(ledger: ActionLedger) -> None:
    await ledger.runs.stop(RUN, workflow_id="", agent="", reason="enough", attempt_at=NOON)


async def test_what_claims_after_the_stop_is_committed_is_refused(bench: Bench) -> None:
    async with ledger_pool(bench.settings.database_url, size=2) as pool:
        ledger = ActionLedger(pool)
        await open_run(ledger, RUN)
        at_work = await ledger.claim(request_at("0.0"), attempt())
        lost = await ledger.claim(request_at("0.1", Effect.IDEMPOTENT), attempt())
        await stop(ledger)

        for at, later in (("0.2", 0), ("1.0", 60)):
            with pytest.raises(RunNotRunning, match="was stopped"):
                await ledger.claim(request_at(at), attempt(60 * later))
        with pytest.raises(RunNotRunning):
            await ledger.claim(request_at("0.1", Effect.IDEMPOTENT), attempt(60 * 1))
        assert isinstance(at_work, Dispatched)
        stands = await ledger.record(at_work, Outcome.ok('"acted"'))
        positions = [action.position for action in await ledger.list(RUN)]

    assert isinstance(lost, Dispatched)
    assert stands.result == '"acted"'
    assert positions == ["0.0", "0.1"]


async def test_what_was_asked_about_is_not_sent_once_the_stop_is_committed(bench: Bench) -> None:
    asks = replace(request_at("0.0", Effect.LOOKUP), can_look_up=True)

    async with ledger_pool(bench.settings.database_url, size=2) as pool:
        ledger = ActionLedger(pool)
        await open_run(ledger, RUN)
        await ledger.claim(asks, attempt())
        claim = await ledger.claim(asks, attempt(60 * 1))
        await stop(ledger)
        with pytest.raises((RunNotRunning, Fenced)) as refused:
            await ledger.send_after_lookup(asks, claim.call)  # type: ignore[union-attr]

    assert isinstance(refused.value, RunNotRunning)


async def test_a_stopped_run_is_opened_by_nothing(bench: Bench) -> None:
    async with ledger_pool(bench.settings.database_url, size=2) as pool:
        ledger = ActionLedger(pool)
        later = NOON + timedelta(hours=1)
        await open_run(ledger, RUN)
        await stop(ledger)
        await ledger.runs.end(RUN, attempt_at=NOON + timedelta(minutes=1))

        again = await open_run(ledger, RUN, attempt_at=later)
        with pytest.raises(RunNotRunning, match="was stopped: enough"):
            await ledger.claim(request_at("0.0"), attempt(60 * 120))
        found = await ledger.runs.get(RUN)

    assert (again.state, again.stop_reason) == ("ended", "enough")
    assert found is not None
    assert found.state == "ended"


async def test_claims_that_race_a_stop_come_before_it_or_not_at_all(bench: Bench) -> None:
    async with ledger_pool(bench.settings.database_url, size=10) as pool:
        ledger = ActionLedger(pool)
        await open_run(ledger, RUN)

        async def claim(number: int) -> bool:
            try:
                await ledger.claim(request_at(f"{number}.0"), attempt())
            except RunNotRunning:
                return False
            return True

        claims = [asyncio.create_task(claim(number)) for number in range(40)]
        await asyncio.sleep(0.03)
        await stop(ledger)
        when_it_returned = {action.key for action in await ledger.list(RUN)}
        claimed = await asyncio.gather(*claims)
        in_the_end = {action.key for action in await ledger.list(RUN)}

    assert in_the_end == when_it_returned
    assert len(in_the_end) == sum(claimed)


# --- the ledger is away


async def test_without_the_ledger_nothing_is_stopped_and_the_run_goes_on(
    bench: Bench, signals: Signals
) -> None:
    away = bench.settings.model_copy(
        update={"database_url": "postgresql://nobody@127.0.0.1:1/nowhere", "statement_seconds": 0.5}
    )

    async with bench.serving(one_agent([blocking(signals)], [ACT, say("Done.")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)
        async with AgentClient(bench.temporal, away) as cut_off:
            with pytest.raises(LedgerUnavailable) as failed:
                async with asyncio.timeout(SOON):
                    await cut_off.run(run.id).stop(reason="in vain")
        status = await run.status()
        signals.release.set()
        ran = await bench.outcome(run)

    assert failed.value.code == "CL206"
    assert status.state == "running"
    assert ran.result.output == "Done."
    assert await rows(bench) == [("ended", False, None)]


# --- the command line


async def test_the_command_stops_a_run_and_says_what_is_unknown(
    bench: Bench, signals: Signals
) -> None:
    async with bench.serving(then_after(hanging(signals))) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)
        stopped = await commitline(bench, "stop", run.id, "--json")
        again = await commitline(bench, "stop", run.id)
        (action,) = await run.actions()

    assert stopped.returncode == 0, stopped.stderr
    assert json.loads(stopped.stdout) == {
        "id": run.id,
        "state": "canceled",
        "unknown": [action.key],
    }
    assert again.returncode == 0
    assert f"{run.id}: had ended before: canceled" in again.stdout
    assert CALLED == {"act": 1, "cleaned up": 1}
    assert await rows(bench) == [("ended", True, "by ada")]


async def test_the_command_stops_a_run_with_a_reason_in_bytes_that_are_not_utf8(
    bench: Bench,
) -> None:
    run = await AgentClient(bench.temporal, bench.settings).start("agent", "go", id=fresh_id())

    stopping = await commitline(
        bench, "stop", run.id, "--reason", os.fsdecode(b"caf\xe9"), "--wait", "0", "--json"
    )
    await bench.temporal.get_workflow_handle(run.id).terminate()

    assert json.loads(stopping.stdout) == {"id": run.id, "state": "stopping", "unknown": []}
    assert await rows(bench) == [("stopping", True, "caf?")]


async def test_the_command_fails_while_no_worker_is_there_to_finish(bench: Bench) -> None:
    client = AgentClient(bench.temporal, bench.settings)
    run = await client.start("agent", "go", id=fresh_id())

    stopping = await commitline(
        bench, "stop", run.id, "--reason", "wrong customer", "--wait", "0", "--json"
    )
    missing = await commitline(bench, "stop", fresh_id(), "--json")
    described = await bench.temporal.get_workflow_handle(run.id).describe()
    await bench.temporal.get_workflow_handle(run.id).terminate()

    assert stopping.returncode == 1
    assert json.loads(stopping.stdout) == {"id": run.id, "state": "stopping", "unknown": []}
    assert described.status is WorkflowExecutionStatus.RUNNING
    assert await rows(bench) == [("stopping", True, "wrong customer")]
    assert missing.returncode == 1
    assert "CL504" in missing.stderr

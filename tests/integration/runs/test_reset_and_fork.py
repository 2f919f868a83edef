"""Going back to a model turn: by a reset, which reads back, and by a fork, which goes anew."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest
from temporalio.common import RetryPolicy

from commitline import Agent, App, Effect, RunHandle, ThreadHandle, Tool, ToolContext, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import call, say
from commitline.client import AgentClient
from commitline.errors import (
    ModelRejected,
    ModelUnavailable,
    ResetRefused,
    RunFailed,
    RunNotFound,
    StaleThread,
)
from commitline.ledger import Action, Outcome
from commitline.workflows import RunResult

from .bench import Bench, commitline, eventually, fresh_id, rolled_over
from .playing import LONG, SOON, Says, Signals, turn_of

CALLED: Counter[str] = Counter()


@tool(effect=Effect.IDEMPOTENT)
async def note(ctx: ToolContext, what: str) -> str:
    """Note something, each time that it is asked for."""
    CALLED[what] += 1
    return f"noted {what} at {ctx.position}"


@tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order}-charge")
async def charge(order: str) -> str:
    """Charge an order, once in the world."""
    CALLED[f"charge {order}"] += 1
    return f"charged {order}"


def notices(request: ModelRequest) -> list[str]:
    said = [one.text for one in request.messages if one.role == "user"]
    return [text for text in said if text.startswith("[notice]")]


def noting(turns: int) -> Callable[[ModelRequest], Completion]:
    """Note the turn for so many turns; after a fork note that instead."""

    def answer(request: ModelRequest) -> Completion:
        turn = turn_of(request)
        way = "abc"[sum("asked again" in text for text in notices(request))]
        return call(("note", {"what": f"{way}{turn}"})) if turn < turns else say(f"Done {way}.")

    return answer


def app_of(answer: Callable[[ModelRequest], Completion], *tools: Tool) -> tuple[App, Says]:
    model = Says(answer)
    return App([Agent("agent", model, "Do it.", tools=tools, model_tries=1)]), model


async def result_of(run: RunHandle) -> RunResult:
    async with asyncio.timeout(SOON):
        return await run.result()


async def positions(run: RunHandle) -> list[str]:
    return sorted(one.position for one in await run.actions())


async def steps_of(thread: ThreadHandle) -> list[int]:
    return [one.step for one in await thread.messages() if one.role == "assistant"]


# --- reset


async def test_a_reset_reads_the_plan_back_and_does_nothing_twice(bench: Bench) -> None:
    app, model = app_of(noting(3), note)

    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        live = await result_of(run)
        said = await (await run.thread()).messages()
        done = await run.reset(to_step=1)
        again = await result_of(run)
        said_again = await (await run.thread()).messages()
        actions = await positions(run)

    assert (done.step, done.epoch, done.read_back) == (1, 0, [1, 2, 3])
    assert [one.position for one in done.actions] == ["1.0", "2.0"]
    assert again == live
    assert said_again == said
    assert len(model.shown) == 4
    assert CALLED == {"a0": 1, "a1": 1, "a2": 1}
    assert actions == ["0.0", "1.0", "2.0"]


async def test_a_run_can_be_reset_to_its_first_turn_and_again(bench: Bench) -> None:
    app, model = app_of(noting(2), note)

    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        live = await result_of(run)
        for step in (0, 2, 0):
            await run.reset(to_step=step)
            assert await result_of(run) == live

    assert len(model.shown) == 3
    assert CALLED == {"a0": 1, "a1": 1}


async def test_a_run_whose_model_rejected_is_mended_and_reset_and_goes_on(bench: Bench) -> None:
    broken = [True]

    def answer(request: ModelRequest) -> Completion:
        if turn_of(request) == 2 and broken[0]:
            raise ModelRejected("the key has expired")
        return noting(3)(request)

    app, model = app_of(answer, note)
    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        with pytest.raises(ModelRejected):
            await result_of(run)
        broken[0] = False
        done = await run.reset(to_step=2)
        result = await result_of(run)
        steps = await steps_of(await run.thread())

    assert done.read_back == []
    assert (result.output, result.steps) == ("Done a.", 4)
    assert steps == [0, 1, 2, 3]
    assert len(model.shown) == 5  # the turn that failed twice
    assert CALLED == {"a0": 1, "a1": 1, "a2": 1}


async def test_a_retry_of_the_workflow_reads_back_what_is_on_record(bench: Bench) -> None:
    fails = [2]

    def answer(request: ModelRequest) -> Completion:
        if turn_of(request) == 2 and fails[0]:
            fails[0] -= 1
            raise ModelUnavailable("overloaded")
        return noting(3)(request)

    app, model = app_of(answer, note)
    policy = RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=5)
    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id(), retry_policy=policy)
        result = await result_of(run)
        steps = await steps_of(await run.thread())

    assert result.output == "Done a."
    assert steps == [0, 1, 2, 3]
    assert len(model.shown) == 4 + 2
    assert CALLED == {"a0": 1, "a1": 1, "a2": 1}


async def test_a_reset_goes_back_over_a_continue_as_new(bench: Bench) -> None:
    def answer(request: ModelRequest) -> Completion:
        turn = turn_of(request)
        if turn == 5:
            return say("Done.")
        return call(("note", {"what": f"{turn}"}), text=LONG)

    app, model = app_of(answer, note)
    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        live = await result_of(run)
        rolled = await rolled_over(run)
        done = await run.reset(to_step=1)
        again = await result_of(run)
        status = await run.status()

    assert rolled, "it never continued as new"
    assert done.read_back == [1, 2, 3, 4, 5]
    assert again == live
    assert len(model.shown) == 6
    assert {what: times for what, times in CALLED.items() if what != "read"} == {
        f"{turn}": 1 for turn in range(5)
    }
    assert status.run_key == await bench.run_key(run)


async def test_a_reset_is_refused_where_there_is_nothing_to_go_back_to(bench: Bench) -> None:
    app, _ = app_of(noting(1), note)

    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await result_of(run)
        for fork in (False, True):
            with pytest.raises(ResetRefused, match="no model turn 7") as refused:
                await run.reset(to_step=7, fork=fork)
        with pytest.raises(RunNotFound):
            await client.run(fresh_id()).reset(to_step=0)
        state = (await run.status()).state
        epochs = await bench.sql("select epoch from agent_runs")

    assert refused.value.code == "CL214"
    assert state == "completed"
    assert epochs == [(0,)]


async def test_a_stopped_run_is_not_opened_by_a_reset(bench: Bench, signals: Signals) -> None:
    app, _ = app_of(lambda _: call(("hold", {})), holding(signals))

    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        assert await asyncio.to_thread(signals.began.wait, SOON)
        await run.stop(reason="wrong customer")
        for fork in (False, True):
            with pytest.raises(ResetRefused, match="wrong customer"):
                await run.reset(to_step=0, fork=fork)
        with pytest.raises(RunFailed):
            await result_of(run)

    assert CALLED == {"hold": 1}


async def test_what_another_run_has_built_on_is_not_taken_back(bench: Bench) -> None:
    app, model = app_of(noting(1), note)

    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await result_of(run)
        thread = await run.thread()
        await client.send(thread.id, "and now?")
        said = await thread.messages()
        for fork in (False, True):
            with pytest.raises(StaleThread) as refused:
                await run.reset(to_step=0, fork=fork)
        after = await thread.messages()
        state = (await run.status()).state

    assert refused.value.code == "CL210"
    assert after == said
    assert state == "completed"
    assert len(model.shown) == 3


async def test_a_conversations_run_is_reset_with_all_its_requests(
    bench: Bench, signals: Signals
) -> None:
    thread = fresh_id("thread")

    def answer(request: ModelRequest) -> Completion:
        last = request.messages[-1]
        if last.role == "user" and turn_of(request) == 0:
            return call(("hold", {}))
        return say(f"{turn_of(request)}: {last.text or 'held'}")

    app, model = app_of(answer, holding(signals))
    async with bench.serving(app) as client:
        first = asyncio.create_task(client.send(thread, "first", agent="agent", request_id="r1"))
        assert await asyncio.to_thread(signals.began.wait, SOON)
        second = asyncio.create_task(client.send(thread, "second", request_id="r2"))
        await bench.taken_up(thread, 2)
        signals.release.set()
        replies = [await first, await second]
        run = client.thread(thread).run
        live = await result_of(run)
        said = await client.thread(thread).messages()
        await run.reset(to_step=0)
        again = await result_of(run)
        repeated = [
            await client.send(thread, "first", request_id="r1"),
            await client.send(thread, "second", request_id="r2"),
        ]
        after = await client.thread(thread).messages()

    assert again == live
    assert repeated == replies
    assert after == said
    assert len(model.shown) == 3
    assert CALLED == {"hold": 1}


# --- fork


def holding(signals: Signals) -> Tool:
    @tool(effect=Effect.AT_MOST_ONCE, name="hold")
    def hold() -> str:
        """Take as long as the test wants: no cancellation reaches a thread."""
        CALLED["hold"] += 1
        signals.began.set()
        signals.release.wait(SOON)
        return "held"

    return hold


async def test_a_fork_asks_anew_and_tells_what_took_effect(bench: Bench) -> None:
    app, model = app_of(noting(3), note)

    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await result_of(run)
        done = await run.reset(to_step=1, fork=True)
        result = await result_of(run)
        messages = await (await run.thread()).messages()
        actions = await positions(run)

    assert (done.epoch, done.read_back) == (1, [])
    assert [one.position for one in done.actions] == ["1.0", "2.0"]
    assert result.output == "Done b."
    assert actions == ["0.0", "1.0", "2.0", "e1-1.0", "e1-2.0"]
    assert CALLED == {"a0": 1, "a1": 1, "a2": 1, "b1": 1, "b2": 1}
    assert len(model.shown) == 4 + 3
    (told,) = notices(model.shown[4])
    assert "note at 0.0" not in told
    assert '- note at 1.0 with {"what":"a1"}: it happened; its result: "noted a1 at 1.0"' in told
    assert "- note at 2.0" in told
    assert [one.position for message in messages for one in message.results] == [
        *("0.0", "e1-1.0", "e1-2.0"),
    ]
    assert [one.step for one in messages if one.role == "assistant"] == [0, 1, 2, 3]


async def test_a_fork_that_took_nothing_back_says_so(bench: Bench) -> None:
    app, model = app_of(noting(1), note)

    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await result_of(run)
        await run.reset(to_step=1, fork=True)
        await result_of(run)

    assert notices(model.shown[-1])[0].endswith("\n- none")
    assert CALLED == {"a0": 1}


async def test_a_second_fork_opens_the_next_epoch_and_is_told_of_both_ways(bench: Bench) -> None:
    app, model = app_of(noting(3), note)

    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await result_of(run)
        await run.reset(to_step=1, fork=True)
        await result_of(run)
        done = await run.reset(to_step=1, fork=True)
        result = await result_of(run)
        actions = await positions(run)
        thread = await run.thread()
        steps = await steps_of(thread)

    assert done.epoch == 2
    # The first way's notice was taken back with it: the model sees one.
    (told,) = notices(model.shown[-1])
    assert [at for at in ("1.0", "2.0", "e1-1.0", "e1-2.0") if f"note at {at} " not in told] == []
    assert result.output == "Done b."
    assert actions == [*("0.0", "1.0", "2.0", "e1-1.0", "e1-2.0", "e2-1.0", "e2-2.0")]
    assert steps == [0, 1, 2, 3]


async def test_a_reset_after_a_fork_reads_the_forked_way_back(bench: Bench) -> None:
    app, model = app_of(noting(3), note)

    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await result_of(run)
        await run.reset(to_step=1, fork=True)
        forked = await result_of(run)
        said = await (await run.thread()).messages()
        asked = len(model.shown)
        for step in (0, 2):
            done = await run.reset(to_step=step)
            assert await result_of(run) == forked
            assert done.epoch == 1
        after = await (await run.thread()).messages()
        actions = await positions(run)

    assert after == said
    assert len(model.shown) == asked
    assert actions == ["0.0", "1.0", "2.0", "e1-1.0", "e1-2.0"]
    assert set(CALLED.values()) == {1}


async def test_a_charge_that_stands_is_not_made_again_on_the_other_way(bench: Bench) -> None:
    def answer(request: ModelRequest) -> Completion:
        if request.messages[-1].role == "user":
            return call(("charge", {"order": "4821"}))
        return say(json.loads(request.messages[-1].results[0].content)["note"])

    def first(request: ModelRequest) -> Completion:
        return say("Done.") if turn_of(request) else answer(request)

    way: list[Callable[[ModelRequest], Completion]] = [first]

    def by_now(request: ModelRequest) -> Completion:
        return way[0](request)

    app, _ = app_of(by_now, charge)
    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await result_of(run)
        way[0] = answer
        await run.reset(to_step=0, fork=True)
        result = await result_of(run)
        actions: dict[str, Action] = {one.position: one for one in await run.actions()}

    assert result.output.startswith("This had already been done by that action")
    assert CALLED == {"charge 4821": 1}
    assert actions["e1-0.0"].duplicate_of == actions["0.0"].key


async def test_a_call_under_way_when_the_run_is_forked_is_told_as_unknown_and_then_as_settled(
    bench: Bench, signals: Signals
) -> None:
    arrived, go_on = threading.Event(), threading.Event()

    @tool(effect=Effect.READ)
    async def wait() -> str:
        arrived.set()
        while not go_on.is_set():  # noqa: ASYNC110 - it runs on another loop
            await asyncio.sleep(0.02)
        return "waited"

    def answer(request: ModelRequest) -> Completion:
        if not notices(request):
            return call(("hold", {}))
        return call(("wait", {})) if request.messages[-1].role == "user" else say("Done.")

    app, model = app_of(answer, holding(signals), wait)
    try:
        async with bench.serving(app) as client:
            run = await client.start("agent", "go", id=fresh_id())
            assert await asyncio.to_thread(signals.began.wait, SOON)
            await run.reset(to_step=0, fork=True)
            assert await asyncio.to_thread(arrived.wait, SOON)
            (meanwhile,) = await run.actions()
            signals.release.set()
            await eventually(lambda: _state(run, "0.0", "ok"))
            go_on.set()
            result = await result_of(run)
    finally:
        go_on.set()

    assert meanwhile.state == "unknown"
    assert result.output == "Done."
    assert CALLED == {"hold": 1}
    (told,) = notices(model.shown[1])
    assert "- hold at 0.0 with {}: UNKNOWN: it may or may not have happened" in told
    settled = [text for text in notices(model.shown[-1]) if "has been settled" in text]
    assert len(settled) == 1, "the model is never told what became of it"
    assert (
        "hold at 0.0, which was unknown, has been settled by its own late answer: it hap"
        in (settled[0])
    )


async def _state(run: RunHandle, at: str, state: str) -> bool:
    return any(one.position == at and one.state == state for one in await run.actions())


async def test_what_a_person_settles_after_a_fork_is_told_on_the_other_way(bench: Bench) -> None:
    @tool(effect=Effect.AT_MOST_ONCE)
    async def mail() -> str:
        CALLED["mail"] += 1
        raise RuntimeError("the connection broke")

    def answer(request: ModelRequest) -> Completion:
        if turn_of(request) == 0:
            return call(("mail", {}))
        return say(f"Done after {len(notices(request))} notices.")

    forked = [False]

    def other(request: ModelRequest) -> Completion:
        return say("Hm.") if forked[0] and turn_of(request) == 0 else answer(request)

    app, model = app_of(other, mail)
    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await result_of(run)
        forked[0] = True
        await run.reset(to_step=0, fork=True)
        await result_of(run)
        (parked,) = await run.actions()
        ledger = await client.ledger()
        await ledger.settle(parked.key, Outcome.ok('"sent"'), by="ada")
        await client.send((await run.thread()).id, "and?")

    told = notices(model.shown[-1])
    assert "UNKNOWN" in told[0]
    assert len(told) == 2, "the model is never told what became of it"
    assert "settled by ada: it happened" in told[1]
    assert CALLED == {"mail": 1}


async def test_a_forked_request_has_the_reply_of_the_other_way(bench: Bench) -> None:
    thread = fresh_id("thread")
    way = ["one"]

    app, model = app_of(lambda _: say(way[0]))
    async with bench.serving(app) as client:
        first = await client.send(thread, "hello", agent="agent", request_id="r1")
        run = client.thread(thread).run
        await result_of(run)
        way[0] = "another"
        await run.reset(to_step=0, fork=True)
        forked = await result_of(run)
        again = await client.send(thread, "hello", request_id="r1")
        messages = await client.thread(thread).messages()

    assert (first.output, forked.output, again.output) == ("one", "another", "another")
    assert again == forked
    assert [one.text for one in messages if one.request_id] == ["hello"]
    assert len(model.shown) == 2


async def test_a_fork_over_a_continue_as_new_goes_another_way(bench: Bench) -> None:
    def answer(request: ModelRequest) -> Completion:
        turn = turn_of(request)
        if turn == 5 or notices(request):
            return say(f"Done after {turn}.")
        return call(("note", {"what": f"{turn}"}), text=LONG)

    app, model = app_of(answer, note)
    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await result_of(run)
        rolled = await rolled_over(run)
        await run.reset(to_step=1, fork=True)
        result = await result_of(run)

    assert rolled, "it never continued as new"
    assert result.output == "Done after 1."
    (told,) = notices(model.shown[-1])
    assert [turn for turn in range(1, 5) if f"- note at {turn}.0" not in told] == []
    assert "read" not in told


# --- the command


def widest(done: subprocess.CompletedProcess[str]) -> int:
    return max(len(line) for line in done.stdout.splitlines())


async def ran(client: AgentClient, id: str) -> RunHandle:
    run = await client.start("agent", "go", id=id)
    await result_of(run)
    return run


async def test_the_command_resets_a_run_and_says_what_is_read_back(bench: Bench) -> None:
    app, model = app_of(noting(3), note)

    async with bench.serving(app) as client:
        run = await ran(client, fresh_id("order [bold]4821[/]"))
        as_text = await commitline(bench, "runs", "reset", run.id, "--to-step", "1")
        await result_of(run)
        as_json = await commitline(bench, "runs", "reset", run.id, "--to-step", "2", "--json")
        await result_of(run)
        refused = await commitline(bench, "runs", "reset", run.id, "--to-step", "9")

    assert as_text.returncode == 0, as_text.stderr
    assert run.id in as_text.stdout.replace("\n", "")
    assert "without asking the model: turn 1, turn 2, turn 3" in as_text.stdout
    assert widest(as_text) <= 80
    told = json.loads(as_json.stdout)
    assert (told["id"], told["step"], told["epoch"], told["read_back"]) == (run.id, 2, 0, [2, 3])
    assert [(one["position"], one["args"]) for one in told["actions"]] == [("2.0", {"what": "a2"})]
    assert refused.returncode == 1
    assert "CL214" in refused.stderr
    assert len(model.shown) == 4
    assert CALLED == {"a0": 1, "a1": 1, "a2": 1}


@pytest.mark.parametrize("name", ["order-4821", "order [bold]4821[/]", "order [/] 4821"])
async def test_the_command_forks_a_run_and_says_what_stands(bench: Bench, name: str) -> None:
    app, model = app_of(noting(2), note)

    async with bench.serving(app) as client:
        run = await ran(client, fresh_id(name))
        forked = await commitline(bench, "runs", "reset", run.id, "--to-step", "1", "--fork")
        result = await result_of(run)

    assert forked.returncode == 0, forked.stderr[-2_000:]
    assert run.id in forked.stdout.replace("\n", "")
    assert "epoch 1" in forked.stdout
    assert [line.split()[-5:-2] for line in forked.stdout.splitlines() if " note " in line] == [
        ["1.0", "note", "ok"]
    ]
    assert widest(forked) <= 80
    assert result.output == "Done b."
    assert len(model.shown) == 3 + 2


async def test_the_command_forks_as_json(bench: Bench) -> None:
    app, _ = app_of(noting(2), note)

    async with bench.serving(app) as client:
        run = await ran(client, fresh_id())
        forked = await commitline(
            bench, "runs", "reset", run.id, "--to-step", "0", "--fork", "--json"
        )
        await result_of(run)

    told = json.loads(forked.stdout)
    kept: Sequence[str] = [one["position"] for one in told["actions"]]
    assert (told["epoch"], told["read_back"], sorted(kept)) == (1, [], ["0.0", "1.0"])

"""Which runs are gone and which are not, what they leave, and that a stop is a stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import psycopg
import pytest
from temporalio.api.enums.v1 import EventType

from commitline import Agent, AgentClient, App, Effect, RunHandle, ScriptedModel, ToolContext, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import call, say
from commitline.errors import ReopenRefused
from commitline.handles.start import start_options
from commitline.ledger import Outcome
from commitline.workflows import RunInput

from .bench import Bench, eventually, fresh_id
from .relay_bench import another, ends, expire, intend, ledger_of, look, lost, relaying, terminate
from .test_undo import Shop, charges, failed

TIMER = EventType.EVENT_TYPE_TIMER_STARTED


class Till:
    """Payments; those of 0 cents hang until they are let through."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.hanging: list[str] = []
        self.through = asyncio.Event()

        @tool(effect=Effect.IDEMPOTENT, relay="resend")
        async def pay(ctx: ToolContext, cents: int = 0) -> str:
            """Pay."""
            self.keys.append(ctx.idempotency_key)
            if cents == 0:
                self.hanging.append(ctx.run_key)
                await self.through.wait()
            return f"paid {cents}"

        @tool(effect=Effect.AT_MOST_ONCE)
        async def note(text: str) -> str:
            """Note."""
            return text

        script = [call(("note", {"text": "a"})), call(("pay", {})), say("Done.")]
        model = ScriptedModel("scripted", script)
        self.app = App([Agent("agent", model, "Do it.", tools=[pay, note])])

    async def start(self, client: AgentClient, id: str | None = None, **options: object) -> str:
        """Start a run and wait until it hangs; return its id."""
        given = start_options(
            RunInput(agent="agent", prompt="go"),
            id=id or fresh_id(),
            task="go",
            task_queue=client.task_queue,
        )
        of_it = f"{given['id']}/"
        before = {key for key in self.hanging if key.startswith(of_it)}
        await client.temporal.start_workflow(**{**given, **options})

        async def hangs() -> bool:
            # Of this run: others may hang again meanwhile.
            return any(key.startswith(of_it) and key not in before for key in self.hanging)

        await eventually(hangs)
        return str(given["id"])


async def states(client: AgentClient, id: str) -> dict[str, str]:
    return {one.tool: one.state for one in await client.run(id).actions()}


async def test_two_relays_send_what_is_stale_once_with_its_key_and_nothing_that_lives(
    bench: Bench,
) -> None:
    till, bench = Till(), relaying(bench)
    async with bench.serving(till.app, cached=0) as client, ledger_of(bench) as ledger:
        living, gone = await till.start(client), await till.start(client)
        runs = [await bench.run_key(client.run(one)) for one in (living, gone)]
        for number in range(1, 40):
            await lost(ledger, runs[0], f"9.{number}", "pay", {"cents": number})
        stale = [
            await lost(ledger, runs[1], f"9.{number}", "pay", {"cents": number})
            for number in range(1, 11)
        ]
        young = await lost(
            ledger, runs[1], "9.11", "pay", {"cents": 11}, lease=timedelta(minutes=5)
        )
        del till.keys[:]
        await terminate(client, gone)
        async with (await another(bench)).serving(till.app, cached=0):
            await asyncio.gather(*(look(bench) for _ in range(3)))
            await ends(ledger, [one.key for one in stale])
        rows = [await ledger.get(one.key) for one in [*stale, young]]
        alive = await ledger.runs.get(runs[0])
        till.through.set()
        await client.run(living).result()

    assert sorted(till.keys) == sorted(one.idempotency_key for one in stale)
    assert [one.state for one in rows if one] == ["ok"] * 10 + ["dispatched"]
    assert alive is not None
    assert alive.state == "running"


async def test_within_a_minute_it_is_told_what_stands_of_runs_that_ended_in_temporal(
    bench: Bench,
) -> None:
    till, bench = Till(), relaying(bench)
    async with bench.serving(till.app, cached=0) as client, ledger_of(bench) as ledger:
        late = await till.start(client, execution_timeout=timedelta(seconds=4))
        ended = await till.start(client)
        await terminate(client, ended)

        async def both_told() -> bool:
            return len(await ledger.relay.list_lost()) == 2

        await eventually(both_told, seconds=60)
        gone = {one.workflow_id: one for one in await ledger.relay.list_lost()}
        left = await ledger.relay.list()
        sent = len(till.keys)

    assert (gone[late].workflow_status, gone[ended].workflow_status) == ("timed_out", "terminated")
    assert [(one.stands, one.unknown) for one in gone.values()] == [(1, 1), (1, 1)]
    assert {one.why for one in left} == {"lookup"}
    assert sent == 2


async def test_a_run_that_lives_is_not_taken_for_gone(bench: Bench) -> None:
    till = Till()
    async with bench.serving(till.app, cached=0) as client, ledger_of(bench) as ledger:
        was_reset = await till.start(client)
        await bench.reset(was_reset)  # its first execution reads as terminated
        twice = await till.start(client)
        first = await bench.run_key(client.run(twice))
        await terminate(client, twice)
        await till.start(client, id=twice)  # another run under the same id
        second = await bench.run_key(client.run(twice))
        theirs = await till.start(client)
        unknown = await till.start(client)
        foreign = await till.start(client)
        for one in (theirs, foreign):
            await terminate(client, one)
        keys = {
            one: await bench.run_key(client.run(one))
            for one in (was_reset, theirs, unknown, foreign)
        }
        change = "update agent_runs set "
        await bench.sql(change + "namespace = 'theirs' where run_key = %(key)s", key=keys[theirs])
        await bench.sql(change + "workflow_id = 'no' where run_key = %(key)s", key=keys[unknown])
        await bench.sql(change + "spec = null where run_key = %(key)s", key=keys[foreign])

        looked = await look(bench)
        runs = {one.run_key: one for one in await ledger.runs.list()}
        of_foreign = [one.state for one in await ledger.list(keys[foreign])]
        await bench.sql(
            change + "created_at = now() - interval '2 hours' where run_key = %(key)s",
            key=keys[unknown],
        )
        later = await look(bench)
        not_found = await ledger.runs.get(keys[unknown])
        till.through.set()
        result = await bench.outcome(client.run(was_reset))
        for one in (twice, unknown):
            await client.run(one).result()

    assert (looked["gone"], later["gone"]) == (2, 1)
    told = {key: (run.state, run.workflow_status) for key, run in runs.items()}
    assert told[keys[was_reset]] == told[second] == ("running", None)
    assert told[keys[theirs]] == told[keys[unknown]] == ("running", None)
    assert told[first] == told[keys[foreign]] == ("ended", "terminated")
    assert of_foreign == ["ok", "unknown"]
    assert not_found is not None
    assert not_found.workflow_status == "not found"
    assert result.result.output == "Done."


async def test_a_gone_run_that_is_reset_goes_on_with_its_own_actions(bench: Bench) -> None:
    till = Till()
    async with bench.serving(till.app, cached=0) as client, ledger_of(bench) as ledger:
        named = await till.start(client)
        await terminate(client, named)
        looked = await look(bench)
        told = await ledger.relay.list_lost()
        await bench.reset(named)

        async def hangs_again() -> bool:
            return len(till.hanging) == 2

        await eventually(hangs_again)
        await expire(bench, *(one.key for one in await client.run(named).actions()))
        await bench.sql("update agent_relay set due_at = now()")
        again = await look(bench)
        await eventually(lambda: _counted(bench))
        sent = len(till.keys)
        till.through.set()
        await bench.outcome(client.run(named))
        found = await states(client, named)
        told_after = await ledger.relay.list_lost()

    assert (looked["gone"], len(told), again["gone"], told_after) == (1, 1, 0, [])
    assert again["started"] == 1
    assert sent == 2  # the run's own; the relay left it alone
    assert found == {"note": "ok", "pay": "ok"}


async def test_what_a_gone_run_waits_for_can_be_said_once_it_is_reset(bench: Bench) -> None:
    @tool(effect=Effect.AT_MOST_ONCE, approval=True)
    async def pay(cents: int) -> str:
        return f"paid {cents}"

    @tool(effect=Effect.AT_MOST_ONCE)
    async def ask(ctx: ToolContext) -> object:
        return await ctx.interrupt("go?")

    def answer(request: ModelRequest) -> Completion:
        if request.messages[-1].role == "tool":
            return say(request.messages[-1].results[0].content)
        return call(("ask", {}) if request.messages[0].text == "ask" else ("pay", {"cents": 1}))

    app = App([Agent("agent", ScriptedModel("s", [answer] * 9), "", tools=[pay, ask])])
    async with bench.serving(app, cached=0) as client:
        prompts = ("ask", "pay", "pay")
        asks, waits, not_yet = [await client.start("agent", p, id=fresh_id()) for p in prompts]

        async def all_wait() -> bool:
            """Its timer is set by the workflow task that knows of the question."""
            histories = [await bench.history(run.id) for run in (asks, waits, not_yet)]
            return all(any(e.event_type == TIMER for e in one.events) for one in histories)

        await eventually(all_wait)
        for run in (asks, waits, not_yet):
            await terminate(client, run.id)
        looked = await look(bench)
        key = await bench.run_key(not_yet)
        await bench.sql("delete from agent_approvals where run_key = %(key)s", key=key)
        for run in (asks, waits):
            await bench.reset(run.id, to=(await _tasks(bench, run.id))[-1])
        await bench.reset(not_yet.id, to=(await _tasks(bench, not_yet.id))[1])
        await eventually(not_yet.approvals)
        await asks.answer("0.0", "yes", by="ada")
        for run in (waits, not_yet):
            await run.decide("0.0", approve=True, by="ada")
        ran = [(await bench.outcome(run)).result.output for run in (asks, waits, not_yet)]

    assert looked["gone"] == 3
    assert ran == ['"yes"', '"paid 1"', '"paid 1"']


async def _tasks(bench: Bench, id: str) -> list[int]:
    """Return the events at which the workflow tasks of a run ended."""
    done = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    return [e.event_id for e in (await bench.history(id)).events if e.event_type == done]


async def _counted(bench: Bench) -> bool:
    """Whether the settling of the one queued row has come to its end."""
    ((key,),) = await bench.sql("select key from agent_relay")
    described = await bench.temporal.get_workflow_handle(f"settle:{key}").describe()
    return described.close_time is not None


async def test_a_run_that_is_being_undone_is_not_taken_for_gone(bench: Bench) -> None:
    shop = Shop()
    shop.refusing.add("1")
    async with bench.serving(shop.app(charges("1"))) as client, ledger_of(bench) as ledger:
        run, _ = await failed(client)
        key = await bench.run_key(run)
        async with _held(bench):
            undoing = asyncio.create_task(run.undo())

            async def unwinds() -> bool:
                found = await ledger.runs.get(key)
                return found is not None and found.state == "undoing"

            shop.refusing.clear()
            await eventually(unwinds)
            looked = await look(bench)
        report = await undoing

    assert looked["gone"] == 0
    assert report.state == "compensated"


class _held:
    """Keeps undos from being claimed."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    async def __aenter__(self) -> None:
        self._session = await psycopg.AsyncConnection.connect(self._bench.settings.database_url)
        await self._session.execute("lock table agent_domain_keys in share mode")

    async def __aexit__(self, *ended: object) -> None:
        await self._session.close()


async def test_what_happened_after_the_undo_is_undone_by_the_relay(bench: Bench) -> None:
    shop, bench = Shop(), relaying(bench)
    async with bench.serving(shop.app(charges("1"))) as client, ledger_of(bench) as ledger:
        run, _ = await failed(client)
        (row, _) = await run.actions()
        # As if its answer had been lost, and the undo could not find out.
        await bench.sql(
            "update agent_actions set status = 'pending', outcome = null, result = null,"
            " effect_possible = null, done_at = null, undone_by = null, parked_at = now(),"
            " parked_reason = 'a test', lease_until = now() where key = %(key)s",
            key=row.key,
        )
        await bench.sql("delete from agent_actions where undoes = %(key)s", key=row.key)
        await bench.sql("delete from agent_domain_keys")
        del shop.log[:], shop.keys[:]
        await ledger.settle(row.key, Outcome.ok('"receipt-1"'), by="ada")

        async def undone() -> bool:
            found = await ledger.get(row.key)
            return found is not None and found.undone_by is not None

        await eventually(undone, seconds=40)
        await ends(ledger, [row.key])
        left = await ledger.relay.list()

    assert shop.log == ["refund 1 receipt-1"]
    assert left == []


async def _by_stop(client: AgentClient, run: RunHandle) -> None:
    await run.stop(wait_seconds=0.1)
    await terminate(client, run.id)


async def _by_terminate(client: AgentClient, run: RunHandle) -> None:
    await terminate(client, run.id)
    await run.stop()


@pytest.mark.parametrize("ending", [_by_stop, _by_terminate])
async def test_of_a_stopped_run_nothing_is_sent_by_the_relay(
    bench: Bench, ending: Callable[[AgentClient, RunHandle], Awaitable[None]]
) -> None:
    till = Till()
    bench = relaying(bench, relay_seconds=0, grace_seconds=0.2)
    async with bench.serving(till.app, cached=0) as client:
        named = await till.start(client)
    async with AgentClient(bench.temporal, bench.settings) as client, ledger_of(bench) as ledger:
        await ending(client, client.run(named))  # no worker is alive
        (key,) = [one.key for one in await client.run(named).actions() if one.tool == "pay"]
        await expire(bench, key)
        till.through.set()
        async with bench.serving(till.app, cached=0):
            await look(bench)
            (row,) = await ends(ledger, [key])
        with pytest.raises(ReopenRefused, match="was stopped"):
            await ledger.relay.reopen(key)

    assert (len(till.keys), row.state) == (1, "unknown")
    assert "its run is over" in (row.parked_reason or "")


async def test_a_stop_while_the_relay_calls_keeps_the_outcome_and_starts_nothing_more(
    bench: Bench,
) -> None:
    till = Till()
    async with bench.serving(till.app, cached=0) as client, ledger_of(bench) as ledger:
        named = await till.start(client)
        run = await bench.run_key(client.run(named))
        other = await lost(ledger, run, "9.1", "pay", {"cents": 1})
        await terminate(client, named)
        (key,) = [one.key for one in await client.run(named).actions() if one.position == "1.0"]
        await expire(bench, key)
        await bench.sql(
            "insert into agent_relay (key, why, tool, due_at)"
            " values (%(key)s, 'lookup', 'pay', null)",
            key=other.key,
        )
        await bench.sql(
            "update agent_actions set parked_at = now(), parked_reason = 'a test'"
            " where key = %(key)s",
            key=other.key,
        )
        await look(bench)

        async def calls() -> bool:
            return len(till.hanging) == 2

        await eventually(calls)
        await client.run(named).stop(reason="enough")
        await bench.sql(
            "update agent_actions set parked_at = null, parked_reason = null where key = %(key)s",
            key=other.key,
        )
        await bench.sql("update agent_relay set due_at = now() where key = %(key)s", key=other.key)
        till.through.set()
        await look(bench)
        at_work, never = await ends(ledger, [key, other.key])

    assert (at_work.state, at_work.result) == ("ok", '"paid 0"')
    assert never.state == "unknown"
    assert len(till.keys) == 2


async def test_a_settling_that_a_person_cancels_leaves_its_row_to_a_person(bench: Bench) -> None:
    till = Till()
    async with bench.serving(till.app, cached=0), ledger_of(bench) as ledger:
        key = await intend(bench, ledger, "pay", {"cents": 0})
        await look(bench)

        async def calls() -> bool:
            return len(till.hanging) == 1

        await eventually(calls)
        settling = bench.temporal.get_workflow_handle(f"settle:{key}")
        await settling.cancel()
        (row,) = await ends(ledger, [key])
        await settling.result()  # it says so to the queue before it ends
        (left,) = await ledger.relay.list()

    assert (row.state, left.due_at) == ("unknown", None)
    assert "was cancelled" in (row.parked_reason or "")

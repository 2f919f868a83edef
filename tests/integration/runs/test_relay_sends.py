"""What the relay sends, what it leaves to a person, and when it looks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from uuid import uuid4

from commitline import Agent, App, Effect, NotAttempted, ScriptedModel, ToolContext, tool
from commitline.activities.model.scripted_model import say
from commitline.identity import ActionKey, RunKey
from commitline.ledger import ActionLedger
from commitline.testing.proxy import TcpProxy
from commitline.tests.builders import action_request, after_noon, attempt, dispatched, open_run

from .bench import Bench, eventually, fresh_id
from .relay_bench import another, ends, intend, ledger_of, look, relaying


class Post:
    """Letters; some cannot be posted until they are told to get through."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.refused: Counter[str] = Counter()
        self.getting_through: set[str] = set()

        @tool(effect=Effect.IDEMPOTENT)
        async def send(ctx: ToolContext, to: str) -> str:
            """Send a letter."""
            if to not in self.getting_through and to.startswith(("bad", "shut")):
                self.refused[to] += 1
                raise NotAttempted("shut") if to.startswith("shut") else ConnectionError("no way")
            self.keys.append(ctx.idempotency_key)
            return f"sent to {to}"

        @tool(effect=Effect.AT_MOST_ONCE)
        async def shout(to: str) -> str:
            """Shout."""
            self.keys.append(to)
            return "heard"

        model = ScriptedModel("scripted", [say("Done.")])
        self.app = App([Agent("agent", model, "Do it.", tools=[send, shout])])


async def idempotency_keys(ledger: ActionLedger, keys: Sequence[ActionKey]) -> list[str | None]:
    found = [await ledger.get(key) for key in keys]
    return [one.idempotency_key for one in found if one is not None]


async def test_bad_rows_and_a_database_that_goes_hold_up_no_good_row_and_none_is_lost(
    bench: Bench,
) -> None:
    post = Post()
    with TcpProxy.before(bench.settings.database_url) as proxy:
        behind = relaying(bench, relay_tries=2, database_url=proxy.url(bench.settings.database_url))
        async with ledger_of(bench) as ledger:
            bad = [await intend(bench, ledger, "send", {"to": f"bad {n}"}) for n in range(5)]
            good = [await intend(bench, ledger, "send", {"to": f"good {n}"}) for n in range(20)]
            async with behind.serving(post.app):

                async def begun() -> bool:
                    return len(post.keys) > 2

                await eventually(begun)
                proxy.cut()
                await asyncio.sleep(1)
                proxy.restore()
                sent = await ends(ledger, good)
                parked = await ends(ledger, bad)
                waiting = {one.key: one for one in await ledger.relay.list()}
                post.getting_through.add("bad 0")
                await ledger.relay.reopen(bad[0])
                (again,) = await ends(ledger, bad[:1])
                keys = await idempotency_keys(ledger, [*good, bad[0]])

    assert {one.state for one in sent} == {"ok"}
    assert {one.state for one in parked} == {"unknown"}
    assert all("tried 2 times" in (one.parked_reason or "") for one in parked)
    assert set(waiting) == set(bad)
    assert {one.due_at for one in waiting.values()} == {None}
    assert again.state == "ok"
    # An answer that was lost may have had one sent again, under the same key.
    assert set(post.keys) == set(keys)


async def test_what_the_relay_tries_again_need_not_wait_for_the_lease_of_its_own_first_try(
    bench: Bench,
) -> None:
    post = Post()
    with TcpProxy.before(bench.settings.database_url) as proxy:
        url = proxy.url(bench.settings.database_url)
        behind = relaying(bench, database_url=url, statement_seconds=1)
        async with ledger_of(bench) as ledger, behind.serving(post.app):
            key = await intend(bench, ledger, "send", {"to": "bad"})

            async def failed_twice() -> bool:
                row = await ledger.get(key)
                return row is not None and row.failures == 2

            await eventually(failed_twice)
            proxy.cut()  # the next try, a second later, finds no ledger
            await asyncio.sleep(3)
            post.getting_through.add("bad")
            proxy.restore()
            (row,) = await ends(ledger, [key])

    assert row.state == "ok"
    assert post.keys == [row.idempotency_key]


async def test_what_could_not_be_sent_waits_for_a_person_who_has_it_sent(bench: Bench) -> None:
    post, bench = Post(), relaying(bench, relay_tries=2)
    async with bench.serving(post.app), ledger_of(bench) as ledger:
        shut = await intend(bench, ledger, "send", {"to": "shut"})
        blind = await intend(bench, ledger, "shout", {"to": "b"}, effect=Effect.AT_MOST_ONCE)
        lost = await intend(
            bench, ledger, "shout", {"to": "l"}, effect=Effect.AT_MOST_ONCE, sent=True
        )
        unsent, heard, unknown = await ends(ledger, [shut, blind, lost])
        post.getting_through.add("shut")
        await ledger.relay.reopen(shut)
        (sent,) = await ends(ledger, [shut])

    assert (unsent.state, unsent.dispatched_at) == ("unknown", None)
    assert "not sent: tried 2 times" in (unsent.parked_reason or "")
    assert post.refused == {"shut": 2}
    assert (sent.state, sent.result) == ("ok", '"sent to shut"')
    assert heard.state == "ok"
    assert unknown.state == "unknown"
    assert "must not be sent twice" in (unknown.parked_reason or "")
    assert post.keys == ["b", sent.idempotency_key]


async def test_a_row_that_cannot_be_called_ends_with_a_person_and_keeps_its_history_short(
    bench: Bench,
) -> None:
    """Its run is another workflow's that goes on: each settling fails before it begins."""
    post, bench = Post(), relaying(bench, relay_seconds=0, relay_tries=2)
    async with bench.serving(post.app), ledger_of(bench) as ledger:
        key = await intend(bench, ledger, "send", {"to": "anybody"})
        await bench.sql("update agent_actions set relayed = false")
        settling = bench.temporal.get_workflow_handle(f"settle:{key}")
        await look(bench)
        await settling.result()
        histories = [(await settling.describe()).history_length]
        await bench.sql("update agent_relay set due_at = now()")
        await look(bench)
        (left,) = await ends(ledger, [key])
        histories.append((await settling.describe()).history_length)

    assert left.state == "unknown"
    assert "the relay gave it up" in (left.parked_reason or "")
    assert post.keys == []
    assert max(histories) < 40


# --- when it looks ---------------------------------------------------------------------------


async def test_three_workers_look_time_after_time_and_what_is_not_due_makes_no_workflow(
    bench: Bench,
) -> None:
    post, bench = Post(), relaying(bench)
    namespace, queue = bench.temporal.namespace, bench.settings.task_queue
    async with AsyncExitStack() as workers, ledger_of(bench) as ledger:
        for _ in range(3):
            await workers.enter_async_context((await another(bench)).serving(post.app))
        sweeps: set[object] = set()

        async def swept_three_times() -> bool:
            sweeps.add(await ledger.relay.sweeps.last(namespace=namespace, task_queue=queue))
            return len(sweeps - {None}) == 3

        await eventually(swept_three_times)
        quiet = await _workflows(bench)
        key = await intend(bench, ledger, "send", {"to": "b"})
        (sent,) = await ends(ledger, [key])
        made = await eventually(lambda: _workflows(bench))

    assert quiet == []
    assert sent.state == "ok"
    assert made == [f"settle:{key}"]


async def _workflows(bench: Bench) -> list[str]:
    of_queue = f"TaskQueue = '{bench.settings.task_queue}'"
    return [one.id async for one in bench.temporal.list_workflows(of_queue)]


async def test_what_others_rely_on_is_sent_though_its_run_was_stopped_unless_it_needs_an_approval(
    bench: Bench,
) -> None:
    post = Post()

    @tool(effect=Effect.IDEMPOTENT, approval=True)
    async def pay(to: str) -> str:
        """Pay somebody."""
        raise AssertionError("nobody approved it for those who rely on it")

    app = App(post.app.agents, tools=[pay])
    run = RunKey(f"{fresh_id('stopped')}/{uuid4()}")
    async with ledger_of(bench) as ledger:
        await open_run(ledger, run, spec="{}")
        keys = [await handed_back(ledger, run, at, name) for at, name in enumerate(("send", "pay"))]
        await bench.sql(
            "insert into agent_intents (key, role, relies)"
            " select unnest(%(keys)s::text[]), current_user, true",
            keys=keys,
        )
        at = after_noon(60)
        await ledger.runs.stop(run, workflow_id="w", agent="a", reason="ada", attempt_at=at)
        await ledger.runs.end(run, attempt_at=at)
        async with relaying(bench).serving(app):
            await look(bench)
            sent, refused = await ends(ledger, keys)

    assert (sent.state, sent.adopted, post.keys) == ("ok", True, [sent.idempotency_key])
    assert (refused.state, refused.effect_possible) == ("error", False)
    assert "IntentRefused" in (refused.result or "")


async def handed_back(ledger: ActionLedger, run: RunKey, at: int, name: str) -> ActionKey:
    """An intent of a run, between two tries."""
    by = attempt(1)
    request = action_request(run, f"0.{at}", tool=name, args=f'{{"to":"{name}"}}')
    claim = await dispatched(ledger, request, by)
    assert await ledger.hand_back(claim, by)
    return claim.key

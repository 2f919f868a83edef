"""Tools, models and settings that do what nobody should: each is one call's fault, no more."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from commitline import NEVER_HAPPENED, App, Effect, NotAttempted, Tool, tool
from commitline.activities.model.scripted_model import call, say
from commitline.errors import DefinitionError, ModelRejected, SettlementRefused
from commitline.ledger import Outcome
from commitline.testing.proxy import TcpProxy
from commitline.tests.integration.runs.isolated_tools import leaves_a_child, reads_its_input

from .bench import Bench, Ran, eventually, fresh_id, one_agent

CALLED: Counter[str] = Counter()
SENT: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _nothing_sent() -> None:
    global SENT  # noqa: PLW0603 - a thread of an earlier test still counts there
    SENT = Counter()


async def run(bench: Bench, made: Tool, **limits: Any) -> Ran:
    app = one_agent([made], [call((made.name, {})), say("Done.")])
    async with bench.serving(app) as client:
        return await bench.outcome(await client.start("agent", "go", id=fresh_id(), **limits))


def send_late() -> str:
    sent = SENT  # of the test that began it, which it may outlast
    time.sleep(2.5)
    sent["late"] += 1
    return "sent"


async def test_an_async_tool_whose_thread_goes_on_is_not_over(bench: Bench) -> None:
    @tool(effect=Effect.AT_MOST_ONCE, tool_timeout=0.5)
    async def mail() -> str:
        return await asyncio.to_thread(send_late)

    app = one_agent([mail], [call(("mail", {})), say("Done.")])
    async with bench.serving(app) as client:
        ran = await bench.outcome(await client.start("agent", "go", id=fresh_id()))
        ledger = await client.ledger()
        (action,) = ran.actions
        never = Outcome.error(kind="DidNotHappen", message="no", effect_possible=False)
        with pytest.raises(SettlementRefused, match="at work"):
            await ledger.settle(action.key, never, by="ada")

    assert ran.results[0].status == "unknown"
    assert action.leased


async def test_a_lookup_waits_for_a_thread_of_an_async_tool_too(bench: Bench) -> None:
    @tool(
        effect=Effect.LOOKUP,
        lookup=lambda args, key: "sent" if SENT["late"] else NEVER_HAPPENED,
        lookup_settles_after=timedelta(seconds=0.5),
        tool_timeout=1,
        tries=5,
    )
    async def transfer() -> str:
        CALLED["transfer"] += 1
        return await asyncio.to_thread(send_late)

    ran = await run(bench, transfer)

    assert (ran.results[0].content, CALLED["transfer"], SENT["late"]) == ('"sent"', 1, 1)


async def test_a_time_out_is_no_refusal_however_wide_the_tool_declares_them(bench: Bench) -> None:
    @tool(effect=Effect.AT_MOST_ONCE, refused_on=(Exception,), tool_timeout=0.3)
    def charge() -> str:
        return send_late()

    ran = await run(bench, charge)

    assert (ran.results[0].status, ran.actions[0].state) == ("unknown", "unknown")
    assert "NODE_TIMEOUT_002" in (ran.actions[0].parked_reason or "")


async def test_a_slow_ledger_takes_nothing_from_a_tools_time(
    bench: Bench, temporal_client: Client
) -> None:
    @tool(effect=Effect.AT_MOST_ONCE, tool_timeout=0.8)
    async def act() -> str:
        CALLED["act"] += 1
        return "acted"

    with TcpProxy.before(bench.settings.database_url) as proxy:
        proxy.delay(0.5)
        url = proxy.url(bench.settings.database_url)
        slow = Bench(temporal_client, bench.settings.model_copy(update={"database_url": url}))
        ran = await run(slow, act)
        proxy.delay(0)

    assert (ran.results[0].status, CALLED["act"]) == ("ok", 1)


def test_exception_classes_are_checked_when_a_tool_is_defined() -> None:
    alone = tool(effect=Effect.IDEMPOTENT, refused_on=KeyError, name="a")(lambda: None)

    assert alone.refused_on == (KeyError,)
    with pytest.raises(DefinitionError, match="no exception class"):
        tool(effect=Effect.IDEMPOTENT, retry_on=("KeyError",), name="a")(lambda: None)  # type: ignore[arg-type]


def test_an_async_generator_is_no_tool() -> None:
    async def pages() -> Any:
        yield 1

    with pytest.raises(DefinitionError, match="as a list"):
        tool(effect=Effect.READ)(pages)


async def test_a_model_that_answers_nothing_is_asked_once(bench: Bench) -> None:
    def silent(_: object) -> Any:
        CALLED["model"] += 1

    async with bench.serving(one_agent([], [silent])) as client:
        started = await client.start("agent", "go", id=fresh_id())
        with pytest.raises(ModelRejected):
            await started.result()

    assert CALLED["model"] == 1


async def test_a_deadline_of_absurd_size_is_no_loop(bench: Bench) -> None:
    @tool(effect=Effect.READ)
    async def look() -> str:
        return "seen"

    ran = await run(bench, look, tool_timeout=10**400)

    assert ran.results[0].status == "ok"


async def test_a_generator_runs_where_its_tool_runs_and_within_its_deadline(bench: Bench) -> None:
    where: list[str] = []

    @tool(effect=Effect.IDEMPOTENT, tool_timeout=0.5, tries=1)
    def endless() -> Iterator[int]:
        where.append(threading.current_thread().name)
        for number in range(100):
            time.sleep(0.05)
            yield number

    @tool(effect=Effect.IDEMPOTENT)
    def three() -> Iterator[int]:
        yield from range(3)

    app = one_agent([endless, three], [call(("endless", {}), ("three", {})), say("Done.")])
    ran = await bench.run(app)

    assert [result.status for result in ran.results] == ["unknown", "ok"]
    assert ran.results[1].content == "[0,1,2]"
    assert where == ["commitline-endless"]


async def test_a_generator_that_exits_is_one_unknown(bench: Bench) -> None:
    @tool(effect=Effect.AT_MOST_ONCE)
    def leaves() -> Iterator[int]:
        CALLED["leaves"] += 1
        yield 1
        sys.exit(3)

    ran = await run(bench, leaves)

    assert (ran.results[0].status, CALLED["leaves"]) == ("unknown", 1)


async def test_an_async_function_behind_a_plain_wrapper_is_run(bench: Bench) -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @tool(effect=Effect.AT_MOST_ONCE)
    @logged
    async def mail(to: str = "ada") -> str:
        CALLED["mail"] += 1
        return f"mailed {to}"

    ran = await run(bench, mail)

    assert (ran.results[0].content, CALLED["mail"]) == ('"mailed ada"', 1)


async def test_an_async_lookup_behind_a_plain_wrapper_is_asked(bench: Bench) -> None:
    async def find(args: dict[str, Any], key: str) -> str:
        return "found"

    def looked_up(args: dict[str, Any], key: str) -> Any:
        CALLED["lookup"] += 1
        return find(args, key)

    @tool(effect=Effect.LOOKUP, lookup=looked_up)
    async def transfer() -> str:
        raise ConnectionResetError("cut")

    ran = await run(bench, transfer)

    assert (ran.results[0].status, ran.results[0].content) == ("ok", '"found"')


async def test_a_task_that_exits_ends_its_tool_and_not_the_others(bench: Bench) -> None:
    async def parse() -> None:
        sys.exit(2)

    @tool(effect=Effect.READ, tool_timeout=2)
    async def parses() -> None:
        await asyncio.gather(parse())

    @tool(effect=Effect.AT_MOST_ONCE, tool_timeout=5)
    async def goes_on() -> str:
        return "gone on"

    script = [call(("parses", {})), call(("goes_on", {})), say("Done.")]
    ran = await bench.run(one_agent([parses, goes_on], script))

    assert [result.status for result in ran.results] == ["error", "ok"]


@pytest.mark.slow
async def test_a_large_result_stops_no_heartbeat(bench: Bench) -> None:
    @tool(effect=Effect.READ)
    def heavy() -> list[dict[str, int]]:
        CALLED["heavy"] += 1
        return [{"number": number} for number in range(600_000)]

    # To write that down takes longer than a heartbeat may be late.
    patient = bench.settings.model_copy(update={"heartbeat_seconds": 2})
    ran = await run(replace(bench, settings=patient), heavy)

    assert (ran.results[0].status, CALLED["heavy"]) == ("ok", 1)


@pytest.mark.parametrize("made", [reads_its_input, leaves_a_child], ids=lambda made: made.name)
async def test_what_a_process_of_its_own_is_used_to_costs_no_time(bench: Bench, made: Tool) -> None:
    ran = await run(bench, made)

    assert ran.results[0].content == '"done"'
    assert [action.tries for action in ran.actions] == [1]


async def test_an_odd_import_path_leaves_no_process_and_no_unknown(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])

    ran = await run(bench, reads_its_input)

    assert ran.results[0].status == "ok"


async def test_an_action_of_a_stopped_run_is_not_carried_out_for_another(bench: Bench) -> None:
    @tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge")
    async def charge(order_id: str) -> str:
        CALLED["charge"] += 1
        if CALLED["charge"] == 1:
            error = NotAttempted("not yet")
            error.retry_after = timedelta(seconds=60)  # type: ignore[attr-defined]
            raise error
        return "charged"

    app: App = one_agent([charge], [call(("charge", {"order_id": "1"})), say("Done.")])
    async with bench.serving(app) as client:
        first = await client.start("agent", "go", id=fresh_id())

        async def waits() -> bool:
            return [one.state for one in await first.actions()] == ["intent"]

        await eventually(waits)
        await first.stop()
        ran = await bench.outcome(await client.start("agent", "go", id=fresh_id()))
        (stopped,) = await first.actions()

    assert (ran.results[0].content, ran.actions[0].state) == ('"charged"', "ok")
    assert (stopped.state, stopped.effect_possible) == ("error", False)

"""Activities that make several calls, each of which has a row of its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.tools import tool as langchain_tool
from langgraph.errors import GraphInterrupt
from langgraph.types import Command
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

import commitline
from commitline import Effect
from commitline.errors import DefinitionError, NoCurrentCall
from commitline.integrations import LedgerPlugin, act, effect, guarded, told_by
from commitline.ledger import Action, ActionLedger, ledger_pool

from .bench import Bench, fresh_id
from .test_refused_writes import refuse

CALLS: Counter[str] = Counter()
KEYS: list[str] = []


@effect(Effect.IDEMPOTENT)
async def charge(order_id: str, cents: int = 100) -> str:
    CALLS[order_id] += 1
    KEYS.append(commitline.current().idempotency_key)
    return f"receipt of {order_id}"


@effect(Effect.IDEMPOTENT)
async def flaky(order_id: str) -> str:
    CALLS[order_id] += 1
    if CALLS[order_id] == 1:
        raise ConnectionError("reset by peer")
    return f"receipt of {order_id}"


@effect(Effect.IDEMPOTENT)
def stamp(order_id: str) -> str:
    CALLS[order_id] += 1
    KEYS.append(commitline.current().idempotency_key)
    return f"stamped {order_id}"


@effect(Effect.AT_MOST_ONCE)
async def break_down(order_id: str) -> str:
    CALLS[order_id] += 1
    raise ValueError("half done")


@effect(Effect.AT_MOST_ONCE)
async def asking(order_id: str) -> str:
    """Interrupt its node five times."""
    CALLS[order_id] += 1
    if CALLS[order_id] <= 5:
        raise GraphInterrupt
    return f"receipt of {order_id}"


@effect(Effect.READ)
async def reading(order_id: str) -> str:
    return await asking(order_id)


async def nobody_said(order_id: str) -> str:
    CALLS[order_id] += 1
    return "called"


async def _two_and_a_failure() -> list[str]:
    """Make two calls side by side; fail the first attempt after them."""
    done = await asyncio.gather(act(charge, "4821"), act(charge, order_id="4822", cents=200))
    if activity.info().attempt == 1:
        raise RuntimeError("lost")
    return list(done)


async def _swallow() -> str:
    """Do with a failed call what frameworks do: tell a model, and go on."""
    try:
        return str(await act(flaky, order_id="4821"))
    except ApplicationError:
        return "the tool failed, please try again"


@effect(Effect.IDEMPOTENT)
async def untyped(order_id: str):  # type: ignore[no-untyped-def]
    CALLS[order_id] += 1
    return Command(goto=order_id)


async def _asks() -> Any:
    """Do as a node of LangGraph: an interrupt is what it returns."""
    try:
        return [await act(asking, "4821"), await act(reading, "4822")]
    except GraphInterrupt:
        return {"langgraph_interrupts": ["?"]}


async def _from_threads() -> list[str]:
    """Call plain functions from a thread, as a plain node does."""
    tool = guarded(stamp)
    return await asyncio.to_thread(lambda: [tool("4821"), tool("4822")])


async def _tell() -> list[Any]:
    """Say what is told of calls without a result."""
    told: list[Any] = [await guarded(break_down)("4821"), await guarded(nobody_said)("4822")]
    try:
        await act(break_down, "4823")
    except ApplicationError as err:
        told.append([err.type, (told_by(err) or {})["status"]])
    return [*told, await guarded(untyped)("4824")]


async def _blocking() -> str:
    """Call a plain function where nobody may wait."""
    return str(guarded(stamp)("4821"))


async def _one() -> str:
    return str(await act(charge, "4821"))


SEGMENTS = {
    "one": _one,
    "two": _two_and_a_failure,
    "swallow": _swallow,
    "asks": _asks,
    "threads": _from_threads,
    "tell": _tell,
    "blocking": _blocking,
}


@activity.defn
async def segment(which: str) -> Any:
    return await SEGMENTS[which]()


@workflow.defn
class OneSegment:
    @workflow.run
    async def run(self, which: str) -> Any:
        tries = RetryPolicy(maximum_attempts=1 if which == "asks" else 0)
        while True:
            result = await workflow.execute_activity(
                segment, which, start_to_close_timeout=timedelta(seconds=10), retry_policy=tries
            )
            if not isinstance(result, dict) or "langgraph_interrupts" not in result:
                return result


@pytest.fixture(autouse=True)
def _nothing_called() -> None:
    CALLS.clear()
    KEYS.clear()


@asynccontextmanager
async def serving(bench: Bench) -> AsyncIterator[ActionLedger]:
    plugin = LedgerPlugin(bench.settings.database_url, coarse=["seg*"])
    client = await Client.connect(
        bench.temporal.service_client.config.target_host, plugins=[plugin]
    )
    async with (
        ledger_pool(bench.settings.database_url, size=2) as pool,
        Worker(
            client,
            task_queue=bench.settings.task_queue,
            workflows=[OneSegment],
            activities=[segment],
            workflow_runner=UnsandboxedWorkflowRunner(),
        ),
    ):
        yield ActionLedger(pool, statement_seconds=bench.settings.statement_seconds)


async def ran(bench: Bench, which: str) -> tuple[Any, list[Action]]:
    """Run a segment; return its result and its rows."""
    async with serving(bench) as ledger:
        result = await bench.temporal.execute_workflow(
            OneSegment.run,
            which,
            id=fresh_id(),
            task_queue=bench.settings.task_queue,
            execution_timeout=timedelta(seconds=30),  # what is retried for ever must fail
        )
        return result, sorted(await ledger.list(), key=lambda one: one.position)


async def test_each_call_has_its_own_row_and_is_read_back_by_the_next_attempt(
    bench: Bench,
) -> None:
    result, actions = await ran(bench, "two")

    assert result == ["receipt of 4821", "receipt of 4822"]
    assert CALLS == {"4821": 1, "4822": 1}
    assert [one.position for one in actions] == ["segment#0.charge#0", "segment#0.charge#1"]
    assert [one.state for one in actions] == ["ok", "ok"]
    assert len(set(KEYS)) == 2


async def test_a_call_that_is_tried_again_ends_the_attempt_whatever_the_activity_returns(
    bench: Bench,
) -> None:
    result, actions = await ran(bench, "swallow")

    assert result == "receipt of 4821"
    assert [(one.position, one.state) for one in actions] == [("segment#0.flaky#0", "ok")]


async def test_a_call_whose_row_is_refused_for_now_is_tried_again(bench: Bench) -> None:
    await refuse(bench, "tg_op = 'INSERT'", times=1)

    result, actions = await ran(bench, "one")

    assert result == "receipt of 4821"
    assert CALLS == {"4821": 1}
    assert [(one.position, one.state) for one in actions] == [("segment#0.charge#0", "ok")]


async def test_interrupts_use_up_no_tries_however_many_there_are(bench: Bench) -> None:
    result, actions = await ran(bench, "asks")

    assert result == ["receipt of 4821", "receipt of 4822"]
    assert CALLS == {"4821": 6, "4822": 6}
    assert [(one.position, one.state, one.failures) for one in actions] == [
        ("segment#0.asking#0", "ok", 0)
    ]


async def test_plain_functions_are_guarded_in_the_threads_of_a_framework(bench: Bench) -> None:
    result, actions = await ran(bench, "threads")

    assert result == ["stamped 4821", "stamped 4822"]
    assert [one.position for one in actions] == ["segment#0.stamp#0", "segment#0.stamp#1"]
    assert sorted(KEYS) == sorted(one.idempotency_key or "" for one in actions)


async def test_what_has_no_result_is_told_and_a_call_without_a_rule_is_not_made(
    bench: Bench,
) -> None:
    result, actions = await ran(bench, "tell")

    assert [result[0]["status"], result[1]["status"], result[1]["effect"]] == [
        "unknown",
        "error",
        "none",
    ]
    assert result[2] == ["OutcomeUnknown", "unknown"]
    assert (result[3]["type"], result[3]["effect"]) == ("UnrepresentableResult", "happened")
    assert CALLS == {"4821": 1, "4823": 1, "4824": 1}
    assert [one.state for one in actions] == ["unknown", "unknown", "error"]


async def test_a_guarded_plain_function_on_the_event_loop_is_refused_in_words(
    bench: Bench,
) -> None:
    with pytest.raises(WorkflowFailureError) as failed:
        await ran(bench, "blocking")

    assert isinstance(failed.value.cause, ActivityError)
    assert "await act" in str(failed.value.cause.cause)
    assert not CALLS


def test_outside_of_a_coarse_activity_nothing_is_called() -> None:
    with pytest.raises(NoCurrentCall, match="coarse"):
        _ = act(charge, "4821")


def test_arguments_that_no_call_takes_are_not_dropped() -> None:
    """They were: the call was made without the first, and with the second value of the second."""
    for args, kwargs in (("4821", 100, "eur"), {}), (("4821",), {"order_id": "4822"}):
        with pytest.raises(TypeError):
            _ = act(charge, *args, **kwargs)


def test_what_cannot_be_guarded_is_refused_when_it_is_wrapped() -> None:
    def many(*order_ids: str) -> None:
        """Take what has no name."""

    @effect(Effect.IDEMPOTENT)
    async def hand_off(order_id: str) -> str | Command[str]:
        return order_id

    for tool in (many, object(), hand_off, langchain_tool(description="-")(hand_off)):
        with pytest.raises(DefinitionError):
            guarded(tool)

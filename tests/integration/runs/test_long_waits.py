"""A wait for a run outlasts a lost connection, however long it has waited by then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Final

import pytest
import pytest_asyncio
from temporalio.client import Client
from temporalio.service import RetryConfig, RPCError, RPCStatusCode

from commitline import Effect, Tool, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import call, say
from commitline.client import AgentClient
from commitline.identity import thread_workflow
from commitline.testing.proxy import TcpProxy

from .bench import Bench, eventually, fresh_id, one_agent
from .playing import Signals, asked, computed_app, seen, within

TRIED_SECONDS: Final = 0.5
"""How long the SDK tries a call again, here; by default ten seconds."""


@pytest.fixture
def proxy(bench: Bench) -> Iterator[TcpProxy]:
    host, _, port = bench.temporal.service_client.config.target_host.rpartition(":")
    with TcpProxy((host, int(port))) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def far(bench: Bench, proxy: TcpProxy) -> AsyncIterator[AgentClient]:
    """A client whose way to Temporal may break, and whose calls are tried again only briefly."""
    hasty = await Client.connect(
        f"127.0.0.1:{proxy.port}",
        retry_config=RetryConfig(max_elapsed_time_millis=int(TRIED_SECONDS * 1_000)),
    )
    async with AgentClient(hasty, bench.settings) as client:
        yield client


def holding(signals: Signals) -> Tool:
    @tool(effect=Effect.AT_MOST_ONCE, name="hold")
    async def hold() -> str:
        signals.began.set()
        while not signals.release.is_set():  # noqa: ASYNC110 - it runs on another loop
            await asyncio.sleep(0.02)
        return "held"

    return hold


def answer(request: ModelRequest) -> Completion:
    return call(("hold", {})) if request.messages[-1].role == "user" else say(asked(request)[-1])


async def begun(bench: Bench, workflow_id: str) -> bool:
    try:
        await bench.temporal.get_workflow_handle(workflow_id).describe()
    except RPCError:
        return False
    return True


async def abort_updates(bench: Bench, workflow_id: str) -> None:
    """Have Temporal abort the updates of a workflow that no worker has seen, as late calls do.

    It tries to hand them on a few times itself, and so does the SDK as long as it tries again.
    """
    late = bench.temporal.get_async_activity_handle(
        workflow_id=workflow_id, run_id=None, activity_id="none"
    )
    await eventually(lambda: begun(bench, workflow_id))
    await asyncio.sleep(TRIED_SECONDS)
    for _ in range(25):
        with pytest.raises(RPCError) as refused:
            await late.complete()
        assert refused.value.status is RPCStatusCode.NOT_FOUND
        await asyncio.sleep(0.05)


async def test_a_message_outlasts_that_temporal_aborts_its_update(
    bench: Bench, far: AgentClient
) -> None:
    thread = fresh_id("thread")
    app, model = computed_app(lambda request: say(asked(request)[-1]))

    sent = asyncio.create_task(far.send(thread, "hello", agent="agent"))
    await abort_updates(bench, thread_workflow(thread))
    async with bench.serving(app):
        reply = await within(sent)

    assert reply.output == "hello"
    assert model.calls == 1


async def test_a_decision_outlasts_that_temporal_aborts_its_update(
    bench: Bench, far: AgentClient
) -> None:
    @tool(effect=Effect.AT_MOST_ONCE, approval=True)
    async def pay() -> str:
        return "paid"

    app = one_agent([pay], [call(("pay", {})), say("Done.")])
    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        (asked_for,) = await eventually(run.approvals)
    far_run = far.run(run.id)
    decided = asyncio.create_task(far_run.decide(asked_for, approve=True, by="ada"))
    await abort_updates(bench, run.id)
    async with bench.serving(app):
        await within(decided)
        ended = await within(far_run.result())

    assert ended.output == "Done."


async def test_waits_outlast_a_lost_connection(
    bench: Bench, signals: Signals, far: AgentClient, proxy: TcpProxy
) -> None:
    thread = fresh_id("thread")
    app, model = computed_app(answer, holding(signals))

    async with bench.serving(app):
        sent = asyncio.create_task(far.send(thread, "hello", agent="agent"))
        await seen(signals.began)
        waits = [sent, asyncio.create_task(far.run(thread_workflow(thread)).result())]
        await asyncio.sleep(TRIED_SECONDS)
        proxy.drop()
        await asyncio.wait(waits, timeout=1, return_when=asyncio.FIRST_COMPLETED)
        signals.release.set()
        replies = await within(asyncio.gather(*waits))

    assert [one.output for one in replies] == ["hello"] * 2
    assert model.calls == 2

"""What only calls the ledger runs as a local activity: without a round trip through the server."""

from __future__ import annotations

import asyncio

from temporalio.api.enums.v1 import EventType

from commitline import AgentClient, Effect, tool
from commitline.activities.contract.runs import CLOSE_RUN, OPEN_RUN
from commitline.activities.contract.turns import CALL_MODEL
from commitline.activities.model.scripted_model import call, say
from commitline.testing.proxy import TcpProxy
from commitline.tests.histories import activities_in, local_activities_in
from commitline.tests.integration.runs.bench import Bench, eventually, fresh_id, one_agent


@tool(effect=Effect.IDEMPOTENT)
async def act() -> str:
    """Act."""
    return "acted"


APP = one_agent([act], [call(("act", {})), say("Done.")])


async def test_a_run_opens_and_closes_without_a_task_of_its_own_and_says_what_it_did(
    bench: Bench,
) -> None:
    ran = await bench.run(APP)

    events = (await bench.history(ran.id)).events
    tasks = [e for e in events if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED]
    shown = [e.user_metadata.summary.data for e in events if e.event_type == _MARKER]
    assert activities_in(events) == [OPEN_RUN, CALL_MODEL, "act", CALL_MODEL, CLOSE_RUN]
    assert local_activities_in(events) == [OPEN_RUN, CLOSE_RUN]
    assert shown == [b'"Open the run for agent"', b'"Close the run"']
    assert len(tasks) == 4


async def test_a_run_began_and_ended_by_the_servers_clock(bench: Bench) -> None:
    ran = await bench.run(APP)

    events = (await bench.history(ran.id)).events
    started = [e for e in events if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED]
    first, last = (one.event_time.ToMicroseconds() for one in (started[0], started[-1]))
    [(opened, ended)] = await bench.sql(
        "select (extract(epoch from opened_attempt_at) * 1e6)::bigint,"
        " (extract(epoch from ended_attempt_at) * 1e6)::bigint from agent_runs"
    )
    assert abs(opened - first) <= 1
    assert abs(ended - last) <= 1


async def test_a_ledger_that_is_away_costs_a_run_that_opens_one_marker(bench: Bench) -> None:
    url = bench.settings.database_url
    with TcpProxy.before(url) as proxy:
        settings = bench.settings.model_copy(update={"database_url": proxy.url(url)})
        async with (
            Bench(bench.temporal, settings).serving(APP),
            AgentClient(bench.temporal, bench.settings) as client,
        ):
            proxy.cut()
            run = await client.start("agent", "go", id=fresh_id())

            async def is_tried_by_the_server() -> bool:
                pending = (await run.describe()).raw_description.pending_activities
                return any(one.activity_type.name == OPEN_RUN for one in pending)

            await eventually(is_tried_by_the_server)
            proxy.restore()
            async with asyncio.timeout(30):
                await run.result()

    names = activities_in((await bench.history(run.id)).events)
    assert names == [OPEN_RUN, OPEN_RUN, CALL_MODEL, "act", CALL_MODEL, CLOSE_RUN]


_MARKER = EventType.EVENT_TYPE_MARKER_RECORDED

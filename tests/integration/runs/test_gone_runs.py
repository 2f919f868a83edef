"""Runs that only the ledger has: they are shown, settled, stopped and undone without a workflow."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from temporalio.client import Client

from commitline import Agent, App, Effect, RunHandle, ToolContext, tool
from commitline.activities.model.scripted_model import ScriptedModel, call, say
from commitline.client import AgentClient
from commitline.devstack.ports import PortBook
from commitline.devstack.temporal_server import TemporalServer
from commitline.errors import NotAuthorized, RunGone, RunNotFound, UndoRefused
from commitline.handles.intervention import Intervention
from commitline.ledger import Outcome
from commitline.operating.run_list import newest_runs

from .bench import Bench, commitline, eventually, fresh_id
from .playing import within
from .test_forgotten_runs import forgotten

TAKEN_BACK: list[str] = []


@tool(effect=Effect.IDEMPOTENT)
async def refund(order_id: str) -> str:
    """Refund an order."""
    TAKEN_BACK.append(order_id)
    return "refunded"


@tool(effect=Effect.IDEMPOTENT, compensate=refund)
async def charge(order_id: str) -> str:
    """Charge an order."""
    return "charged"


@tool(effect=Effect.AT_MOST_ONCE)
async def mail(to: str) -> str:
    """Mail, and lose the answer."""
    raise ConnectionError("no answer")


@tool(effect=Effect.AT_MOST_ONCE, approval=True)
async def pay(cents: int) -> str:
    """Pay."""
    return "paid"


@tool(effect=Effect.AT_MOST_ONCE)
async def ask(ctx: ToolContext) -> str:
    """Ask a person."""
    return str(await ctx.interrupt("how much?"))


TOOLS = [charge, mail, pay, ask]


def waiting(order_id: str, id: str) -> Agent:
    calls = call(("charge", {"order_id": order_id}), ("pay", {"cents": 1}), ("ask", {}))
    return Agent(id, ScriptedModel(id, [calls, say("Done.")]), "Do it.", tools=TOOLS)


def app() -> App:
    calls = call(("charge", {"order_id": "ended"}), ("mail", {"to": "ada"}))
    model = ScriptedModel("done", [calls, say("Done.")])
    agents = [Agent("done", model, "Do it.", tools=TOOLS)]
    return App([*agents, waiting("open", "open"), waiting("shown", "shown")], tools=[refund])


@contextmanager
def new_server() -> Iterator[str]:
    """Start a Temporal server that has never heard of any run; yield its address."""
    folder = Path(tempfile.mkdtemp())
    ports = PortBook(folder / "ports.json").choose({"temporal": 0, "metrics": 0})
    server = TemporalServer(folder, persistent=False)
    server.start(port=ports["temporal"], metrics_port=ports["metrics"], ui_port=None)
    try:
        yield f"127.0.0.1:{ports['temporal']}"
    finally:
        server.stop()


async def begun(bench: Bench, client: AgentClient) -> list[RunHandle]:
    """Have one run end, with a mail that is unknown, and two wait for a person."""
    runs = [await client.start(one, "go", id=fresh_id(one)) for one in ("done", "open", "shown")]
    await runs[0].result()

    async def asked() -> bool:
        return all([await one.approvals() and await one.questions() for one in runs[1:]])

    await eventually(asked)
    return runs


@asynccontextmanager
async def gone(bench: Bench, *, new_cluster: bool) -> AsyncIterator[tuple[Bench, list[str]]]:
    """Begin runs, have Temporal forget them, and yield where they are looked for, with a worker."""
    if new_cluster:
        async with bench.serving(app(), cached=0) as client:
            ids = [one.id for one in await begun(bench, client)]
        with new_server() as address:
            there = replace(bench, temporal=await Client.connect(address))
            async with there.serving(app()):
                yield there, ids
        return
    async with bench.serving(app(), cached=0) as client:
        ids = [one.id for one in await begun(bench, client)]
        await asyncio.gather(*(forgotten(bench, one) for one in ids))
        yield bench, ids


@pytest.mark.parametrize(
    "new_cluster", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["deleted", "cluster"]
)
async def test_what_the_ledger_has_of_a_run_that_is_gone_is_shown_settled_stopped_and_undone(
    bench: Bench, new_cluster: bool
) -> None:
    TAKEN_BACK.clear()
    async with (
        gone(bench, new_cluster=new_cluster) as (there, ids),
        AgentClient(there.temporal, there.settings) as client,
    ):
        done, open_one, shown = (client.run(one) for one in ids)
        told = await asyncio.gather(
            commitline(there, "runs", "show", shown.id, "--json"),
            commitline(there, "approve", f"{shown.id}:0.1"),
            commitline(there, "stop", open_one.id, "--undo", "--json"),
        )
        states = [(await one.status()).state for one in (done, shown)]
        listed = {one.id: one.state for one in await newest_runs(client, limit=100)}
        only = await newest_runs(client, limit=100, state="gone", agent="shown")
        before = [one.fate for one in (await done.undo_report()).actions]
        unknown = next(one for one in await done.actions() if one.state == "unknown")
        await client.settle(unknown.key, Outcome.ok('"sent"'), by="ada")
        report = await within(done.undo())
        for refused in (
            shown.describe(),
            shown.result(),
            shown.decide("0.1", approve=True, by="ada"),
            shown.answer("0.2", 3, by="ada"),
            shown.reset(to_step=0),
            shown.reset(to_step=0, fork=True),
        ):
            with pytest.raises(RunGone, match="the ledger has what it did"):
                await refused
        with pytest.raises(UndoRefused, match="is open in the ledger"):
            await shown.undo()
        waited = len(await shown.approvals()), len(await shown.questions())
        stopped = await shown.stop(reason="it is gone")
        waits = [*await shown.approvals(), *await shown.questions()]
        (row,) = await bench.sql(
            "select state, stop_reason from agent_runs where workflow_id = %(id)s", id=shown.id
        )
        late = await within(shown.undo())
        with pytest.raises(RunNotFound, match="no run has the id"):
            await client.run("nobody").undo()

    seen = json.loads(told[0].stdout)
    assert (seen["state"], seen["in_ledger"], seen["actions"]) == ("gone", "running", 2)
    assert (seen["approvals"], seen["next"]) == (
        [f"{shown.id}:0.1"],
        [f"commitline stop {shown.id}", f"commitline stop {shown.id} --undo"],
    )
    assert ("[CL513]" in told[1].stderr, told[1].returncode) == (True, 1)
    undone = json.loads(told[2].stdout)
    assert (undone["state"], undone["undo"]["state"]) == ("gone", "compensated")
    assert states == ["gone", "gone"]
    assert {listed[one] for one in ids} == {"gone"}
    assert [(one.id, [each.kind for each in one.waits]) for one in only] == [
        (shown.id, ["approval", "question"])
    ]
    assert sorted(before) == ["stands", "unknown"]
    assert (report.state, late.state) == ("compensated", "compensated")
    assert waited == (1, 1)
    assert (stopped.state, tuple(row), waits) == ("gone", ("ended", "it is gone"), [])
    assert sorted(TAKEN_BACK) == ["ended", "open", "shown"]


async def test_who_may_do_what_to_a_run_that_is_gone_is_asked_too(bench: Bench) -> None:
    wanted: list[Intervention] = []

    def nobody(who: str, what: Intervention) -> bool:
        wanted.append(what)
        return False

    async with bench.serving(app(), cached=0) as client:
        run = await client.start("done", "go", id=fresh_id())
        await run.result()
        key = await bench.run_key(run)
        await forgotten(bench, run.id)
        async with AgentClient(bench.temporal, bench.settings, authorize=nobody) as strict:
            for asked in (strict.run(run.id).undo(by="bob"), strict.run(run.id).stop(by="bob")):
                with pytest.raises(NotAuthorized):
                    await asked

    assert [(one.verb, one.run_key) for one in wanted] == [("undo", key), ("stop", key)]


async def test_a_run_of_another_namespace_is_not_taken_for_gone(bench: Bench) -> None:
    async with bench.serving(app(), cached=0) as client:
        run = await client.start("done", "go", id=fresh_id())
        await run.result()
        await bench.sql("update agent_runs set namespace = 'elsewhere'")
        await forgotten(bench, run.id)
        with pytest.raises(RunNotFound, match="of the namespace 'elsewhere'") as refused:
            await client.run(run.id).undo()
        listed = [await newest_runs(client, limit=9, state=one) for one in ("gone", "waiting")]

    assert listed == [[], []]
    assert not isinstance(refused.value, RunGone)

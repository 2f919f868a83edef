"""What an operator asks of the command line: why a run failed, what waits, what to type."""

from __future__ import annotations

import asyncio
import json
import uuid
from io import StringIO

import pytest
from rich.console import Console
from temporalio.client import Client

from commitline import Agent, App, Effect, ScriptedModel, ToolContext, tool
from commitline.activities.model.scripted_model import call, say
from commitline.config import Settings
from commitline.errors import ModelRejected
from commitline.operating import runs
from commitline.operating.top import Top

from .runs.bench import Bench, commitline, eventually, fresh_id
from .test_cli_threads import shop


@tool(effect=Effect.IDEMPOTENT, approval=True)
async def pay(cents: int) -> str:
    """Pay so much."""
    return f"paid {cents}"


@tool(effect=Effect.IDEMPOTENT)
async def ask(ctx: ToolContext) -> str:
    """Ask a person."""
    return str(await ctx.interrupt("how much?"))


def broken(request: object) -> None:
    raise ModelRejected("no such model")


def app() -> App:
    asks = call(("pay", {"cents": 1}), ("pay", {"cents": 2}), ("ask", {}))
    clerk = Agent("clerk", ScriptedModel("clerk", [asks, say("Done.")]), "Pay.", tools=[pay, ask])
    return App([clerk, Agent("broken", ScriptedModel("broken", [broken]), "Fail.")])  # type: ignore[list-item]


@pytest.fixture
def settings(database_url: str) -> Settings:
    return Settings(
        database_url=database_url,
        task_queue=f"operators-{uuid.uuid4()}",
        grace_seconds=5,
        relay_seconds=0,
    )


async def test_a_run_says_why_it_failed_and_what_of_it_waits_and_is_found_by_that(
    temporal_client: Client, settings: Settings
) -> None:
    async with shop(temporal_client, settings, app()) as at:
        bad = await at.client.start("broken", "go", id=fresh_id("bad"))
        run = await at.client.start("clerk", "go", id=fresh_id("good"))

        async def asked() -> bool:
            return len(await run.approvals()) == 2 and len(await run.questions()) == 1

        await eventually(asked)
        with pytest.raises(ModelRejected):
            await bad.result()
        shown, as_json, waits, none, waiting, snapshot = await asyncio.gather(
            at.commitline("runs", "show", bad.id),
            at.commitline("runs", "show", bad.id, "--json"),
            at.commitline("runs", "show", run.id, "--json"),
            at.commitline("runs", "show", "nobody-knows"),
            at.commitline("runs", "--state", "waiting", "--agent", "clerk"),
            at.commitline("top", "--state", "waiting", "--json"),
        )
        screen = StringIO()
        console = Console(file=screen, force_terminal=True, width=80, height=24)
        live = Top(at.client, limit=5, agent="clerk", state="waiting")
        looking = asyncio.ensure_future(live.show(console, every_seconds=0.05))

        async def shown_live() -> bool:
            return screen.getvalue().count("to approve") > 4

        await eventually(shown_live)
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking

        async def listed() -> set[str]:
            by = ("runs", "--agent", "broken", "--state", "failed", "--json")
            found = json.loads((await at.commitline(*by)).stdout)
            assert {(one["agent"], one["state"]) for one in found} <= {("broken", "failed")}
            assert all("no such model [CL402]" in one["why"] for one in found)
            return {one["id"] for one in found}

        # Temporal's visibility lags a little.
        found = await eventually(listed)
        odd = await at.commitline("runs", "--state", "odd")
        approved, rejected, answered = await asyncio.gather(
            at.commitline("approve", f"{run.id}:0.0", "--json"),
            at.commitline("reject", f"{run.id}:0.1", "--by", "bob", "--json"),
            at.commitline("answer", f"{run.id}:0.2", "--value", "7", "--json"),
        )
        await run.result()

    assert "no such model" in shown.stdout, shown.stderr
    told = json.loads(as_json.stdout)
    assert (told["state"], told["agent"], told["unknown"]) == ("failed", "broken", [])
    assert "no such model [CL402]" in told["why"]
    good = json.loads(waits.stdout)
    assert (good["state"], good["why"]) == ("running", None)
    assert sorted(good["approvals"]) == [f"{run.id}:0.0", f"{run.id}:0.1"]
    assert good["questions"] == [f"{run.id}:0.2"]
    assert (none.returncode, "[CL504]" in none.stderr) == (1, True)
    assert run.id in waiting.stdout, waiting.stderr
    assert "2 to approve; 1 to answer, since" in waiting.stdout
    assert bad.id not in waiting.stdout
    told = json.loads(snapshot.stdout)
    assert [one["waits"] for one in told["runs"]] == [{"approval": 2, "question": 1}]
    assert (told["waiting"]["approval"]["number"], told["waiting"]["unknown"]["number"]) == (2, 0)
    assert screen.getvalue().endswith("\x1b[?1049l"), "the terminal is as it was"
    assert bad.id in found
    assert run.id not in found
    assert odd.returncode == 2
    assert json.loads(approved.stdout) == {
        "call": f"{run.id}:0.0",
        "decision": "approved",
        "by": "ada",
    }
    assert json.loads(rejected.stdout)["decision"] == "rejected"
    assert (json.loads(answered.stdout)["decision"], answered.returncode) == ("answered", 0)


async def test_what_was_typed_wrong_is_told_with_what_to_type(
    temporal_client: Client, settings: Settings
) -> None:
    async with shop(temporal_client, settings, app()) as at:
        no_json, no_position, settle, conversation, helped = await asyncio.gather(
            at.commitline("approve", "r1:0.0", "--args", "notjson"),
            at.commitline("approve", "trip-t1"),
            at.commitline("actions", "settle", "trip-t1", "--did-not-happen"),
            at.commitline("run", "clerk", "go", "--id", "thread:x"),
            at.commitline("--help"),
        )

    assert no_json.returncode == no_position.returncode == settle.returncode == 2
    assert "--args takes a JSON object: not valid JSON" in " ".join(no_json.stderr.split())
    for refused in (no_position, settle):
        assert "a call is named as RUN:AT" in " ".join(refused.stderr.split())
    assert conversation.returncode == 1
    assert "[CL102] Say something in it" in conversation.stderr
    assert "commitline threads send" in conversation.stderr
    assert "--install-completion" in helped.stdout


async def test_who_waits_for_an_answer_off_a_terminal_is_told_what_it_waits_for(
    temporal_client: Client, settings: Settings
) -> None:
    thread, shown = fresh_id("thread"), StringIO()
    answers = [call(("pay", {"cents": 1})), say("Done.")]
    clerk = Agent("clerk", ScriptedModel("clerk", answers), "Pay.", tools=[pay])
    async with shop(temporal_client, settings, App([clerk])) as at:
        screen = Console(file=shown, width=80)
        sent = asyncio.ensure_future(
            runs.send(at.client, thread, "go", screen, agent="clerk", request_id=None)
        )

        async def told() -> bool:
            return "waits for a person: commitline approvals" in shown.getvalue()

        await eventually(told)
        await at.client.thread(thread).run.decide("0.0", approve=True, by="ada")
        result = await sent
        deleted = await at.commitline("threads", "delete", thread, "--yes", "--json")

    assert result.output == "Done."
    assert f"thread:{thread}: 0.0" in shown.getvalue()
    assert shown.getvalue().count("waits for") == 1
    assert json.loads(deleted.stdout) == {"thread": thread, "deleted": True}


async def test_nothing_but_the_result_goes_to_stdout(
    temporal_client: Client, settings: Settings
) -> None:
    """The SDK's core warns of a payload of this size, on stdout if it is left to itself."""
    prompt, bench = "\x01" * 100_000, Bench(temporal_client, settings)
    asks = ("run", "clerk", prompt, "--id", fresh_id(), "--no-wait", "--json")

    started = await commitline(bench, *asks)

    assert json.loads(started.stdout)["run_id"]
    assert "[TMPRL1103]" in started.stderr

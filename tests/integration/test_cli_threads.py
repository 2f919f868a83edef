"""`commitline threads` and `commitline runs`, as a person or a script meets them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from temporalio.client import Client

from commitline import Agent, App, Effect, State, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import call, say
from commitline.client import AgentClient
from commitline.config import Settings
from commitline.ledger import ActionLedger, ledger_pool
from commitline.worker import app_worker

from .runs.bench import Bench, commitline

LONG = "customer-0123456789 in the shop of [bold]Ada[/], her order of the 29th of November/42"


class Clerk:
    """A model that charges for what is asked, and says so."""

    name = "clerk"

    async def complete(self, request: ModelRequest) -> Completion:
        last = request.messages[-1]
        if last.role == "user" and "charge" in last.text:
            return call(("charge", {"order": "4821"}))
        said = [one.text for one in request.messages if one.role == "user"]
        return say(f"[bold]{len(said)}[/]: {said[-1]}")


class Till(State):
    charged: str = ""


@tool(effect=Effect.IDEMPOTENT)
async def charge(till: Till, order: str) -> dict[str, str]:
    till.charged = f"[bold]{order}[/]"
    return {"order": order}


@pytest.fixture
def settings(database_url: str) -> Settings:
    return Settings(
        database_url=database_url,
        task_queue=f"cli-{uuid.uuid4()}",
        grace_seconds=5,
        relay_seconds=0,
    )


class Shop:
    """A worker, a client beside it, and the command line."""

    def __init__(self, client: AgentClient, settings: Settings) -> None:
        self.client = client
        self._settings = settings

    async def commitline(
        self, *arguments: str, answer: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        bench = Bench(self.client.temporal, self._settings)
        return await commitline(bench, *arguments, answer=answer)


@asynccontextmanager
async def shop(temporal: Client, settings: Settings, app: App | None = None) -> AsyncIterator[Shop]:
    app = app or App([Agent("clerk", Clerk(), "Serve.", tools=[charge], state=Till)])
    async with (
        ledger_pool(settings.database_url, size=4) as pool,
        app_worker(app, client=temporal, ledger=ActionLedger(pool), settings=settings),
        AgentClient(temporal, settings) as client,
    ):
        yield Shop(client, settings)


def widest(done: subprocess.CompletedProcess[str]) -> int:
    return max(len(line) for line in done.stdout.splitlines())


def fresh(name: str = "thread") -> str:
    return f"{name}-{uuid.uuid4()}"


async def test_a_conversation_is_begun_gone_on_with_and_shown(
    temporal_client: Client, settings: Settings
) -> None:
    thread = fresh()
    async with shop(temporal_client, settings) as at:
        first = await at.commitline(
            *("threads", "send", thread, "please charge it", "--agent", "clerk"),
        )
        second = await at.commitline("threads", "send", thread, "thanks", "--json")
        shown, as_json, listed = await asyncio.gather(
            at.commitline("threads", "show", thread),
            at.commitline("threads", "show", thread, "--json"),
            at.commitline("threads", "list", "--json"),
        )

    assert (first.returncode, first.stdout) == (0, "[bold]1[/]: please charge it\n"), first.stderr
    reply = json.loads(second.stdout)
    assert (reply["output"], reply["steps"]) == ("[bold]2[/]: thanks", 1)
    assert shown.returncode == 0
    for told in (
        "please charge it",
        '-> charge {"order":"4821"}',
        '<- 0.0 charge: ok: {"order":"4821"}',
        "[bold]2[/]: thanks",
        'state  {"charged":"[bold]4821[/]"}',
    ):
        assert told in shown.stdout, told
    assert widest(shown) <= 80
    messages = json.loads(as_json.stdout)
    assert [(one["version"], one["role"]) for one in messages] == [
        *((1, "user"), (1, "assistant"), (2, "tool"), (2, "assistant")),
        *((3, "user"), (3, "assistant")),
    ]
    assert messages[1]["calls"][0]["name"] == "charge"
    assert messages[2]["results"][0]["status"] == "ok"
    (found,) = json.loads(listed.stdout)
    assert (found["thread_id"], found["agent"], found["version"], found["messages"]) == (
        *(thread, "clerk", 3, 6),
    )


async def test_no_name_and_no_text_of_a_model_forges_a_line_of_a_conversation(
    temporal_client: Client, settings: Settings
) -> None:
    forged = '-> charge {"order":"666"}'

    class Forger:
        """A model that asks for a tool of two lines, and answers in two lines."""

        name = "forger"

        async def complete(self, request: ModelRequest) -> Completion:
            if request.messages[-1].role == "user":
                return call((f"look\n{forged}", {}))
            return say(f"Done.\n{forged}\x1b[31m")

    thread, app = fresh(), App([Agent("clerk", Forger(), "Serve.", tools=[charge], state=Till)])
    async with shop(temporal_client, settings, app) as at:
        await at.client.send(thread, "hello", agent="clerk")
        shown = await at.commitline("threads", "show", thread)

    assert shown.stdout.count(forged) >= 2, shown.stderr
    assert not [one for one in shown.stdout.splitlines() if one.startswith(forged)]
    assert "\x1b" not in shown.stdout


async def test_a_request_that_is_sent_twice_under_one_id_counts_once(
    temporal_client: Client, settings: Settings
) -> None:
    thread = fresh()
    once = ("threads", "send", thread, "hello", "--agent", "clerk", "--request-id", "r1")
    async with shop(temporal_client, settings) as at:
        sent, again = await asyncio.gather(
            at.commitline(*once, "--json"), at.commitline(*once, "--json")
        )
        other = await at.commitline("threads", "send", thread, "bye", "--request-id", "r1")
        messages = await at.client.thread(thread).messages()

    assert json.loads(again.stdout) == json.loads(sent.stdout)
    assert len(messages) == 2
    assert other.returncode == 1
    assert "CL213" in other.stderr
    assert "Traceback" not in other.stderr


async def test_lists_fit_80_columns_but_for_ids_which_are_not_broken(
    temporal_client: Client, settings: Settings
) -> None:
    async with shop(temporal_client, settings) as at:
        await at.client.send(LONG, "hello", agent="clerk")
        await at.client.send(fresh("short"), "hello", agent="clerk")
        await at.client.thread(LONG).run.result()
        threads, few, runs, as_json = await asyncio.gather(
            at.commitline("threads", "list"),
            at.commitline("threads", "list", "--limit", "1", "--json"),
            at.commitline("runs"),
            at.commitline("runs", "--json", "--limit", "500"),
        )

    assert threads.returncode == 0, threads.stderr
    assert {line for line in threads.stdout.splitlines() if len(line) > 80} == {LONG}
    assert "version 1" in threads.stdout
    assert len(json.loads(few.stdout)) == 1
    assert runs.returncode == 0, runs.stderr
    assert f"thread:{LONG}" in runs.stdout.splitlines()
    states = {run["id"]: (run["agent"], run["state"]) for run in json.loads(as_json.stdout)}
    assert states[f"thread:{LONG}"] == ("clerk", "completed")


async def test_a_runs_conversation_is_shown_by_the_runs_id(
    temporal_client: Client, settings: Settings
) -> None:
    run_id = fresh("run")
    async with shop(temporal_client, settings) as at:
        run = await at.client.start("clerk", "hello", id=run_id)
        await run.result()
        shown = await at.commitline("threads", "show", run_id)

    assert "hello" in shown.stdout, shown.stderr


async def test_a_conversation_is_deleted_when_that_is_confirmed(
    temporal_client: Client, settings: Settings
) -> None:
    thread = fresh()
    async with shop(temporal_client, settings) as at:
        await at.client.send(thread, "a secret", agent="clerk")
        declined = await at.commitline("threads", "delete", thread, answer="n\n")
        kept = await at.client.thread(thread).messages()
        confirmed = await at.commitline("threads", "delete", thread, answer="y\n")
        again, shown, sent, listed = await asyncio.gather(
            at.commitline("threads", "delete", thread, "--yes"),
            at.commitline("threads", "show", thread),
            at.commitline("threads", "send", thread, "hello?", "--agent", "clerk"),
            at.commitline("threads", "list"),
        )

    assert declined.returncode == 1
    assert len(kept) == 2
    assert confirmed.returncode == 0
    assert f"{thread}: deleted" in confirmed.stdout
    assert again.returncode == 0
    for refused in (shown, sent):
        assert refused.returncode == 1
        assert "CL211" in refused.stderr
        assert "a secret" not in refused.stdout
    assert "deleted" in listed.stdout


REFUSED = {
    ("send", "nobody-knows", "hello"): "CL212",
    ("send", "é", "hello", "--agent", "clerk"): "CL102",
    ("show", "nobody-knows"): "CL212",
    ("delete", "nobody-knows", "--yes"): "CL212",
}


async def test_what_cannot_be_done_is_a_message_with_its_code(
    temporal_client: Client, settings: Settings
) -> None:
    at = Shop(AgentClient(temporal_client, settings), settings)

    tried = await asyncio.gather(*(at.commitline("threads", *given) for given in REFUSED))

    for failed, code in zip(tried, REFUSED.values(), strict=True):
        assert failed.returncode == 1
        assert failed.stdout == ""
        assert failed.stderr.startswith("commitline: ")
        assert f"[{code}]" in failed.stderr
        assert "Traceback" not in failed.stderr


async def test_without_conversations_the_list_says_so(
    temporal_client: Client, settings: Settings
) -> None:
    at = Shop(AgentClient(temporal_client, settings), settings)

    as_text = await at.commitline("threads", "list")
    as_json = await at.commitline("threads", "list", "--json")

    assert as_text.returncode == 0
    assert "No conversations yet." in as_text.stdout + as_text.stderr
    assert json.loads(as_json.stdout) == []


def test_the_commands_are_in_the_help_within_80_columns() -> None:
    environment = {**os.environ, "COLUMNS": "80"}
    for command, names in {
        "threads": ("list", "show", "send", "delete"),
        "runs": ("reset",),
    }.items():
        shown = subprocess.run(
            [sys.executable, "-m", "commitline.cli", command, "--help"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert [name for name in names if f" {name} " not in shown.stdout] == []
        assert widest(shown) <= 80

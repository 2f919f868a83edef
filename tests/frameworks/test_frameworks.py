"""Agents of other frameworks, killed by SIGKILL after an effect: with the plugin it counts once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle

from commitline import AgentClient
from commitline.config import Settings
from commitline.ledger import ActionLedger, Approval, ledger_pool
from commitline.testing.processes import ProviderProcess

APPS = "commitline.tests.frameworks.apps"

MODEL_CALLS = {"mcp_shop": 0, "langgraph_shop": 2}
"""How often the model of an app is asked, where it is not three times."""


@dataclass
class Stage:
    """One framework's agent in a world of its own."""

    app: str
    client: Client
    database_url: str
    folder: Path
    provider: ProviderProcess
    queue: str
    guarded: bool
    approve: bool = False

    @contextmanager
    def worker(self, **more: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a worker process while the body runs."""
        environment = {
            **os.environ,
            "TEMPORAL_ADDRESS": self.client.service_client.config.target_host,
            "COMMITLINE_DATABASE_URL": self.database_url,
            "SHOP_PROVIDER_URL": self.provider.url,
            "CRASH_FOLDER": str(self.folder),
            "TASK_QUEUE": self.queue,
            "GUARDED": "1" if self.guarded else "0",
            "APPROVE": "1" if self.approve else "0",
            **more,
        }
        with (self.folder / "workers.log").open("ab") as log:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    f"from {APPS} import {self.app}, shop; shop.run({self.app}.main)",
                ],
                env=environment,
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    async def start(self) -> WorkflowHandle[Any, Any]:
        """Start the agent."""
        return await self.client.start_workflow(
            "Clerk", "charge and mail", id=f"clerk-{uuid.uuid4()}", task_queue=self.queue
        )

    async def reset(self, id: str) -> None:
        """Have everything decided anew, as `temporal workflow reset` does."""
        history = await self.client.get_workflow_handle(id).fetch_history()
        completed = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
        first = next(one.event_id for one in history.events if one.event_type == completed)
        await self.client.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=self.client.namespace,
                workflow_execution=WorkflowExecution(workflow_id=id),
                reason="a test",
                request_id=str(uuid.uuid4()),
                workflow_task_finish_event_id=first,
            )
        )

    def model_calls(self) -> int:
        """How often the model was asked."""
        counted = self.folder / "model_calls"
        return len(counted.read_text()) if counted.exists() else 0

    async def play(self, *deaths: str) -> str:
        """Run the agent. Its workers die after the effects of these tools; the last one goes on."""
        handle = await self.start()
        for tool in deaths:
            with self.worker(DIE_AFTER=tool) as worker:
                died = await asyncio.to_thread(worker.wait, 90)
                assert died == -signal.SIGKILL, self.log()
        with self.worker():
            return str(await asyncio.wait_for(handle.result(), 90))

    async def replay(self, history: str) -> None:
        """Replay a history."""
        kept = self.folder / "history.json"
        kept.write_text(history, encoding="utf-8")
        with self.worker(REPLAY=str(kept)) as replaying:
            status = await asyncio.to_thread(replaying.wait, 90)
        assert status == 0, self.log()

    def log(self) -> str:
        """Return the end of what the workers said."""
        return (self.folder / "workers.log").read_text(encoding="utf-8")[-4000:]

    async def waiting(self, id: str) -> Approval:
        """Wait until a call of a run waits for a person; return its approval."""
        async with AgentClient(self.client, self.settings) as ours:
            while True:
                found = await ours.run(id).approvals()
                if found:
                    return found[0]
                await asyncio.sleep(0.1)

    async def decide(self, id: str, found: Approval, **said: Any) -> None:
        """Decide, as application code does."""
        async with AgentClient(self.client, self.settings) as ours:
            await ours.run(id).decide(found, by="ada", **said)

    async def command(self, *words: str) -> asyncio.subprocess.Process:
        """Start the `commitline` command; it talks to the same servers."""
        environment = {
            **os.environ,
            "TEMPORAL_ADDRESS": self.client.service_client.config.target_host,
            "COMMITLINE_DATABASE_URL": self.database_url,
        }
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "commitline.cli", *words),
            env=environment,
            stdout=asyncio.subprocess.PIPE,
        )

    @property
    def settings(self) -> Settings:
        """Those of a client of ours."""
        return Settings(database_url=self.database_url, task_queue=self.queue)

    async def tools(self) -> list[tuple[str, str]]:
        """Return the tools and states of the ledger's rows, in the order of the calls."""
        async with ledger_pool(self.database_url, size=1) as pool:
            actions = await ActionLedger(pool, statement_seconds=10).list()
        return sorted((one.tool.rpartition(".")[2], one.state) for one in actions)


@pytest.fixture(params=["openai_shop", "pydantic_shop", "mcp_shop", "langgraph_shop"])
def app(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def stage(app: str, temporal_client: Client, database_url: str, tmp_path: Path) -> Iterator[Stage]:
    with ProviderProcess() as provider:
        queue = f"frameworks-{uuid.uuid4()}"
        yield Stage(app, temporal_client, database_url, tmp_path, provider, queue, guarded=True)


async def test_a_killed_worker_charges_once_and_what_may_be_mailed_is_told_as_unknown(
    stage: Stage,
) -> None:
    told = await stage.play("charge_card", "send_mail")

    assert stage.provider.stats()["effects"] == {"charge:4821": 1, "mail:ada@example.com": 1}
    assert stage.provider.requests("charge") == 2
    charge, mail = told.split(" | ")
    assert "unknown" not in charge
    assert json.loads(mail)["status"] == "unknown"
    assert await stage.tools() == [("charge_card", "ok"), ("send_mail", "unknown")]


@pytest.mark.slow
@pytest.mark.parametrize("approve", [True, False])
async def test_a_mail_waits_for_a_person_and_outlives_its_worker(
    stage: Stage, approve: bool
) -> None:
    stage.approve = True
    handle = await stage.start()
    with stage.worker():
        found = await stage.waiting(handle.id)
    # That worker was killed by SIGKILL.
    mails = stage.provider.requests("mail")
    edited = {"to": "eve@example.com"} if approve else None
    if edited is None:
        await stage.decide(handle.id, found, approve=False, reason="not now")
    with stage.worker():
        if edited is not None:
            await stage.decide(handle.id, found, approve=True, args=edited)
        told = await asyncio.wait_for(handle.result(), 240)

    assert mails == 0
    assert json.loads(found.args) == {"to": "ada@example.com"}
    effects = stage.provider.stats()["effects"]
    if approve:
        assert effects == {"charge:4821": 1, "mail:eve@example.com": 1}
    else:
        assert effects == {"charge:4821": 1}
        refused = json.loads(str(told).split(" | ")[1])
        assert (refused["status"], refused["effect"]) == ("error", "none")
        assert refused["message"] == "not executed: rejected by ada: not now"


@pytest.mark.slow
@pytest.mark.parametrize("app", ["openai_shop"])
async def test_an_undo_whose_worker_is_killed_in_the_middle_refunds_once(stage: Stage) -> None:
    handle = await stage.start()
    with stage.worker():
        await asyncio.wait_for(handle.result(), 240)
    undo = await stage.command("undo", handle.id, "--json")
    with stage.worker(DIE_AFTER="refund") as worker:
        died = await asyncio.to_thread(worker.wait, 240)
    with stage.worker():
        said, _ = await asyncio.wait_for(undo.communicate(), 240)
        listed = await stage.command("actions", "list", "--run", handle.id, "--json")
        rows, _ = await listed.communicate()

    assert died == -signal.SIGKILL, stage.log()
    assert stage.provider.stats()["effects"]["refund:4821"] == 1
    assert stage.provider.requests("refund") == 2
    report = json.loads(said)
    fates = {one["tool"]: one["fate"] for one in report["actions"]}
    assert fates == {"send_mail": "stands", "charge_card": "undone"}
    assert sorted(one["tool"] for one in json.loads(rows)) == ["charge_card", "refund", "send_mail"]


@pytest.mark.slow
@pytest.mark.parametrize("app", ["pydantic_asks"])
async def test_a_call_that_only_asked_holds_nothing_and_the_resumed_one_acts_once(
    stage: Stage,
) -> None:
    handle = await stage.start()
    with stage.worker(DIE_AFTER="charge_card") as worker:
        died = await asyncio.to_thread(worker.wait, 240)
    with stage.worker():
        told = await asyncio.wait_for(handle.result(), 240)
        await stage.reset(handle.id)
        again = await asyncio.wait_for(stage.client.get_workflow_handle(handle.id).result(), 240)

    assert died == -signal.SIGKILL, stage.log()
    assert told == again
    assert stage.provider.stats()["effects"] == {"charge:4821": 1}
    assert stage.provider.requests("charge") == 2
    assert await stage.tools() == [("charge_card", "error"), ("charge_card", "ok")]


@pytest.mark.slow
async def test_without_the_plugin_a_killed_worker_charges_and_mails_twice(stage: Stage) -> None:
    stage.guarded = False

    await stage.play("charge_card", "send_mail")

    effects = stage.provider.stats()["effects"]
    # A node of LangGraph makes both calls, and makes both again after the mail.
    charges = 3 if stage.app == "langgraph_shop" else 2
    assert effects == {"charge:4821": charges, "mail:ada@example.com": 2}


@pytest.mark.slow
async def test_a_reset_charges_nothing_again_and_asks_no_model_again(stage: Stage) -> None:
    handle = await stage.start()
    with stage.worker():
        told = await asyncio.wait_for(handle.result(), 90)
        asked = stage.model_calls()
        await stage.reset(handle.id)
        again = await asyncio.wait_for(stage.client.get_workflow_handle(handle.id).result(), 90)

    assert again == told
    assert stage.model_calls() == asked == MODEL_CALLS.get(stage.app, 3)
    assert stage.provider.requests("charge") == stage.provider.requests("mail") == 1
    assert await stage.tools() == [("charge_card", "ok"), ("send_mail", "ok")]


@pytest.mark.slow
@pytest.mark.parametrize("guarded", [False, True])
async def test_a_history_replays_with_the_plugin_and_without_it(
    stage: Stage, guarded: bool
) -> None:
    stage.guarded = guarded
    handle = await stage.start()
    with stage.worker():
        await asyncio.wait_for(handle.result(), 90)
    history = (await handle.fetch_history()).to_json()

    stage.guarded = not guarded
    await stage.replay(history)


@pytest.mark.slow
@pytest.mark.parametrize("app", ["langgraph_shop"], indirect=True)
async def test_what_a_node_did_before_its_interrupt_is_read_back_when_it_goes_on(
    stage: Stage,
) -> None:
    handle = await stage.start()
    await handle.signal("answer", "eve@example.com")
    with stage.worker(ASKS="1"):
        told = str(await asyncio.wait_for(handle.result(), 90))

    assert "unknown" not in told
    assert stage.provider.stats()["effects"] == {"charge:4821": 1, "mail:eve@example.com": 1}
    assert stage.provider.requests("charge") == stage.provider.requests("mail") == 1
    assert await stage.tools() == [("charge_card", "ok"), ("send_mail", "ok")]

"""`App(temporal=…)`: the worker and every command have one codec, and one set of interceptors."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from temporalio.service import RPCError

from commitline.activities.app.load import load_app
from commitline.client import AgentClient
from commitline.errors import ModelRejected, PayloadUnreadable
from commitline.identity import undo_workflow
from commitline.tests.crash.stage import APPS, Scene, until

APP = "encoded:app"


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        assert self.status == 0, self.err
        return json.loads(self.out)


async def commitline(scene: Scene, *arguments: str, app: str = APP) -> Done:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "commitline.cli", *arguments),
        cwd=APPS,
        env={**os.environ, **scene.environment, "COMMITLINE_APP": app},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return Done(process.returncode or 0, out.decode(), err.decode())


@pytest.fixture
async def client(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AgentClient]:
    """A client of the application's own, with the app's options."""
    for name, value in scene.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(APPS))
    async with await AgentClient.connect(scene.settings, app=load_app(APP)) as made:
        yield made


async def test_a_run_with_encoded_payloads_is_had_by_every_command_that_has_the_app(
    scene: Scene, client: AgentClient
) -> None:
    waiting = await client.start("support", "Pay order 4821.", id=f"{scene.run_id}-waits")
    ended = await client.start("broken", "Break.", id=f"{scene.run_id}-ends")
    approve = ("approve", f"{waiting.id}:0.0")

    async def waits() -> bool:
        return bool(await (await client.ledger()).approvals.list())

    with scene.worker("", COMMITLINE_APP=APP):
        await until(waits)
        with pytest.raises(ModelRejected):
            await ended.result()
        refused, not_undone, unread, read = await asyncio.gather(
            commitline(scene, *approve, app=""),
            commitline(scene, "undo", ended.id, app=""),
            commitline(scene, "runs", "show", ended.id, "--json", app=""),
            commitline(scene, "runs", "show", ended.id, "--json"),
        )
        approved = await commitline(scene, *approve, "--json")
        answer = await waiting.result()

    assert (refused.status, refused.out) == (1, "")
    assert (not_undone.status, not_undone.out) == (1, "")
    (kept,) = await (await client.ledger()).runs.list(workflow_id=ended.id)
    undoing = client.temporal.get_workflow_handle(undo_workflow(kept.run_key))
    with pytest.raises(RPCError, match="not found"):
        await undoing.describe()
    for told in (refused.err, not_undone.err, unread.data["why"]):
        assert "encoded as 'binary/shop'" in told
        assert f"[{PayloadUnreadable.code}]" in told
        assert "COMMITLINE_APP" in told
    assert "Traceback" not in refused.err + unread.err
    assert "no such model" in read.data["why"]
    assert approved.data["decision"] == "approved"
    assert answer.output == "Paid."
    seen = set((scene.log.parent / "seen").read_text().split())
    assert {"client", "worker"} <= seen
    await _holds_nothing_readable(scene, waiting.id)


async def _holds_nothing_readable(scene: Scene, run: str) -> None:
    history = await scene.temporal.get_workflow_handle(run).fetch_history()
    text = "".join(str(event) for event in history.events)
    assert "binary/shop" in text
    assert "4821" not in text.replace(run, "")


async def test_a_worker_without_the_codec_fails_no_run_and_names_what_it_lacks(
    scene: Scene, client: AgentClient
) -> None:
    run = await client.start("broken", "Break.", id=scene.run_id)

    async def is_refused() -> bool:
        text = scene.log.read_text() if scene.log.exists() else ""
        return PayloadUnreadable.code in text

    with scene.worker("services:till"):
        await until(is_refused)
    described = await run.describe()

    assert described.close_time is None
    with pytest.raises(PayloadUnreadable, match="binary/shop"):
        await scene.client.run(scene.run_id).decide("0.0", approve=True, by="ada")

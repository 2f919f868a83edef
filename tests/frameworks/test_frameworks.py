"""Agents of other frameworks, killed by SIGKILL after an effect: with the plugin it counts once."""

from __future__ import annotations

import asyncio
import json
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.client import Client

from commitline.testing.processes import ProviderProcess

from .stage import Stage

MODEL_CALLS = {"mcp_shop": 0, "langgraph_shop": 2}
"""How often the model of an app is asked, where it is not three times."""


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
        told = await asyncio.wait_for(handle.result(), 240)
        asked = stage.model_calls()
        await stage.reset(handle.id)
        again = await asyncio.wait_for(stage.client.get_workflow_handle(handle.id).result(), 240)

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
        await asyncio.wait_for(handle.result(), 240)
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
        told = str(await asyncio.wait_for(handle.result(), 240))

    assert "unknown" not in told
    assert stage.provider.stats()["effects"] == {"charge:4821": 1, "mail:eve@example.com": 1}
    assert stage.provider.requests("charge") == stage.provider.requests("mail") == 1
    assert await stage.tools() == [("charge_card", "ok"), ("send_mail", "ok")]


@pytest.mark.slow
@pytest.mark.parametrize("app", ["mcp_shop"], indirect=True)
async def test_hints_of_an_mcp_server_count_where_they_are_trusted(stage: Stage) -> None:
    told = await stage.play("charge_card", "send_mail", HINTS="1")

    assert stage.provider.stats()["effects"] == {"charge:4821": 1, "mail:ada@example.com": 1}
    assert stage.provider.requests("charge") == 2
    assert "unknown" in told.split(" | ")[1]
    # What only reads has no row.
    assert await stage.tools() == [("charge_card", "ok"), ("send_mail", "unknown")]

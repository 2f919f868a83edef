"""Workers that die around a question: it is asked, answered and acted on once."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import Final

import pytest

from commitline.tests.crash.stage import Aftermath, Scene, Stage, until

APP: Final = "asks:app"


def commitline(scene: Scene, *arguments: str) -> str:
    """Run the command as an operator does; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "commitline.cli", *arguments],
        env={**os.environ, **scene.environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def asked(scene: Scene) -> bool:
    return len(await scene.client.run(scene.run_id).questions()) == 1


async def answer(scene: Scene, value: str) -> None:
    await asyncio.to_thread(
        commitline, scene, "answer", f"{scene.run_id}:0.0/1", "--value", value, "--by", "ada"
    )


async def killed_while_it_waits(scene: Scene) -> Aftermath:
    await scene.start()
    with scene.worker(APP):
        await until(lambda: asked(scene))
        listed = await asyncio.to_thread(commitline, scene, "questions", "--json")
    (one,) = json.loads(listed)
    assert (one["message"], one["payload"]) == ("How much?", {"order_id": "4821"})
    with scene.worker(APP):
        await answer(scene, "4900")
        return await scene.aftermath()


async def killed_as_it_asks(scene: Scene) -> Aftermath:
    await scene.start()
    await scene.crash(APP, at="before_record@charge_card")
    with scene.worker(APP):
        await until(lambda: asked(scene))
        await answer(scene, "4900")
        return await scene.aftermath()


async def killed_after_its_answer(scene: Scene) -> Aftermath:
    await scene.start()
    with scene.worker(APP):
        await until(lambda: asked(scene))
    with scene.worker(APP, crash_at="after_claim@charge_card") as worker:
        # Whoever answers may hear of it only from the next worker: this one dies by the answer.
        answering = asyncio.create_task(answer(scene, "4900"))
        await asyncio.to_thread(worker.wait_until_killed)
    after = await scene.finish(APP)
    await answering
    return after


SCRIPTS = {
    "while it waits": killed_while_it_waits,
    "as it asks": killed_as_it_asks,
    "after its answer": killed_after_its_answer,
}


@pytest.fixture(scope="module")
def played(stage: Stage) -> object:
    return stage.play(SCRIPTS)


@pytest.mark.parametrize("when", SCRIPTS)
def test_a_question_outlives_its_worker_and_its_call_has_one_effect(
    played: dict[str, Aftermath], when: str
) -> None:
    after = played[when]

    assert after.output == "Done."
    assert after.effects == {"charge:4821": 1}
    assert after.row("charge_card").state == "ok"
    ((_, body),) = after.sent["charge"]
    assert json.loads(body)["amount_cents"] == 4900

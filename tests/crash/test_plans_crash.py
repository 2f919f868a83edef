"""A worker is killed in the middle of a plan that then fails: each effect once, each undo once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from commitline import Plan, result_of, step
from commitline.errors import PlanFailed
from commitline.tests.crash.stage import Played, Scene, Stage

STEPS = "steps:app"
KINDS = ("reservation", "charge", "invoice")
POINTS = ("after_effect@invoice", "after_effect@undo_charge")


def _plan() -> Plan:
    """Return the plan of the app, by names: the starter does not have the tools."""
    order: dict[str, Any] = {"order_id": "4821"}
    return Plan(
        "fulfil",
        [
            step("reservation", order),
            step("charge", {**order, "after": result_of("reservation", "id")}),
            step("invoice", {**order, "after": result_of("charge", "id")}),
            step("ship", order),
        ],
    )


@pytest.fixture(scope="module")
def crashed(stage: Stage) -> Played[tuple[str, list[str], dict[str, int]]]:
    """What the run said, what reached the world in order, and how often it took effect."""

    def killed_at(point: str) -> Any:
        async def play(scene: Scene) -> tuple[str, list[str], dict[str, int]]:
            run = await scene.client.start_plan(_plan(), id=scene.run_id)
            await scene.crash(STEPS, at=point)
            with scene.worker(STEPS), pytest.raises(PlanFailed) as raised:
                async with asyncio.timeout(60):
                    await run.result()
            stats = await asyncio.to_thread(scene.provider.stats)
            took = [sent["kind"] for sent in stats["sent"] if sent["effect"]]
            return str(raised.value), took, stats["effects"]

        return play

    return stage.play({point: killed_at(point) for point in POINTS})


@pytest.mark.parametrize("point", POINTS)
def test_every_effect_and_every_undo_happens_once(
    crashed: Played[tuple[str, list[str], dict[str, int]]], point: str
) -> None:
    told, took, effects = crashed[point]

    assert took == [*KINDS, *(f"undo_{kind}" for kind in reversed(KINDS))]
    assert set(effects.values()) == {1}
    assert "the step 'ship' (ship at 3.0) failed: ToolRefused" in told
    assert "The run is compensated: 3 undone" in told

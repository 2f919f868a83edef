"""Workers are killed while they take back what a run did; then the outside world is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest

from commitline.errors import MaxStepsExceeded
from commitline.ledger import Action, UndoReport
from commitline.tests.crash.stage import Played, Scene, Script, Stage

APP: Final = "undo:app"
# Each point, at the first refund, and how many requests of it the provider has seen in the end.
REQUESTS: Final = {"before_record": 2, "after_record": 1}


@dataclass(frozen=True)
class Undone:
    told: str
    effects: dict[str, int]
    keys: Sequence[str]
    """Of the refunds that were asked for, in order."""
    before: UndoReport
    after: UndoReport
    rows: dict[str, Action]


@pytest.fixture(scope="module")
def undone(stage: Stage) -> Played[Undone]:
    """A run that fails, its worker killed at its first refund; another one goes on."""
    return stage.play({point: _crash_an_undo(point) for point in REQUESTS})


def _crash_an_undo(point: str) -> Script[Undone]:
    async def play(scene: Scene) -> Undone:
        run = await scene.start()
        await scene.crash(APP, at=f"{point}@refund")
        with scene.worker(APP, REFUSED="3"):
            with pytest.raises(MaxStepsExceeded) as raised:
                async with asyncio.timeout(60):
                    await run.result()
            before = await run.undo_report()
        with scene.worker(APP):
            async with asyncio.timeout(60):
                after = await run.undo(reason="the bank is open")
        stats: dict[str, Any] = await asyncio.to_thread(scene.provider.stats)
        return Undone(
            told=str(raised.value),
            effects=stats["effects"],
            keys=[sent["key"] for sent in stats["sent"] if sent["kind"] == "refund"],
            before=before,
            after=after,
            rows={str(one.position): one for one in await run.actions()},
        )

    return play


@pytest.mark.parametrize(("point", "requests"), REQUESTS.items())
def test_each_undo_takes_effect_once_wherever_its_worker_is_killed(
    undone: Played[Undone], point: str, requests: int
) -> None:
    seen = undone[point]

    assert seen.effects == {
        **{f"charge:{order}": 1 for order in "134"},
        **{f"refund:{order}": 1 for order in "134"},
        "mail:ada": 1,
    }
    assert seen.keys == [
        *["order-4-refund"] * requests,
        "order-1-refund",
        "order-3-refund~2",
    ]


@pytest.mark.parametrize("point", REQUESTS)
def test_what_could_not_be_undone_is_said_and_is_undone_when_it_is_asked_for_again(
    undone: Played[Undone], point: str
) -> None:
    seen = undone[point]

    assert [(one.position, one.fate) for one in seen.before.actions] == [
        ("3.0", "undone"),
        ("2.0", "stands"),
        ("1.0", "stands"),
        ("0.0", "undone"),
    ]
    assert seen.before.state == "partly compensated"
    assert "The run is partly compensated: 2 undone; charge at 2.0 stands" in seen.told
    assert "the bank is closed" in seen.told
    assert seen.after.state == "compensated"
    assert [one.tool for one in seen.after.standing] == ["send_mail"]
    assert [seen.rows[at].state for at in ("undo-3.0", "undo-2.0", "undo-2.0~2", "undo-0.0")] == [
        *("ok", "error", "ok", "ok"),
    ]
    assert seen.rows["undo-3.0"].tries == (1 if point == "after_record" else 2)

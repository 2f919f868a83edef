"""The list of runs, as a person reads it: in a window, and again and again on a terminal."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO

from rich.console import Console, RenderableType

from commitline.identity import RunKey
from commitline.ledger.waiting import RunWaits, Waiting
from commitline.operating import run_list, top
from commitline.operating.run_list import Listed

NOW = datetime.now(tz=UTC)
KEY = RunKey("order-4821/e1")
RUN = Listed(
    id="order-4821",
    agent="clerk",
    state="running",
    undone=None,
    waits=(),
    why=None,
    started=NOW - timedelta(hours=2),
    ended=None,
    run_id="e1",
    run_key=KEY,
)
WAITS = [
    RunWaits(KEY, "approval", 2, NOW - timedelta(minutes=30)),
    RunWaits(KEY, "unknown", 1, NOW - timedelta(hours=1)),
]


def printed(shown: RenderableType, *, width: int = 80) -> list[str]:
    to = StringIO()
    Console(file=to, width=width, no_color=True).print(shown)
    return [line.rstrip() for line in to.getvalue().splitlines()]


def note(one: Listed) -> str:
    return run_list.rows([one])[0][-1].plain


def test_a_note_says_what_waits_and_since_when_what_was_undone_and_why_a_run_failed() -> None:
    failed = replace(RUN, state="failed", undone="partly", why="no such model [CL402]")

    assert note(RUN) == ""
    assert note(replace(RUN, waits=WAITS)) == "2 to approve; 1 unknown, since 1 h"
    assert note(failed) == "partly undone; no such model [CL402]"
    assert note(replace(RUN, undone="under way")) == "undoing"


def test_a_program_gets_what_waits_by_kind() -> None:
    found = run_list.data(replace(RUN, waits=WAITS))

    assert found["waits"] == {"approval": 2, "unknown": 1}
    assert found["waits_since"] == NOW - timedelta(hours=1)


def test_the_live_view_is_a_line_a_run_however_long_its_id_and_its_note_are() -> None:
    long = replace(RUN, id="customer-" * 20, why="it failed " * 40, state="failed")
    waiting = [Waiting("approval", 100, 7_200.0), Waiting("unknown", 0, 0.0)]

    lines = printed(top.screen(top.Snapshot(NOW, waiting, [RUN, long])))

    assert f"{NOW:%H:%M:%S}  100+ to approve (2 h)" in lines[0]
    assert [line.split()[0] for line in lines[3:5]] == ["run", "order-4821"]
    assert len(lines) == 6
    assert max(len(line) for line in lines) <= 80
    assert "failed" in lines[5]


def test_the_live_view_says_that_nothing_waits() -> None:
    lines = printed(top.screen(top.Snapshot(NOW, [Waiting("relay", 0, 0.0)], [])))

    assert lines[0].endswith("nothing waits for a person")

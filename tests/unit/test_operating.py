"""What operators read: lists in which every row can be told from the others, and what to do."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from io import StringIO

import pytest
from rich.console import Console

from commitline.activities.contract.conversation import FinishReason, RunResult
from commitline.identity import ActionKey, Position, RunKey
from commitline.ledger import QueuedAction, UndoReport
from commitline.ledger.undo_rules import ActionFate, Fate
from commitline.operating import actions, console, relay, runs
from commitline.operating.check import Check
from commitline.operating.console import OUT
from commitline.operating.doctor import print_checks
from commitline.operating.undo import print_undo_report
from commitline.tests.builders import NOON, done_row

FIRST, SECOND = RunKey("r/1"), RunKey("r/2")


def rows_of(printed: str) -> list[list[str]]:
    return [line.split()[:4] for line in printed.splitlines()[1:]]


def test_two_runs_of_one_id_and_two_of_the_outbox_are_told_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = [FIRST, SECOND, RunKey("other/1"), RunKey("outbox/k1"), RunKey("outbox/k2")]

    actions.table([done_row(run, "0.0", NOON, now=NOON) for run in runs]).print(OUT)

    assert [row[0] for row in rows_of(capsys.readouterr().out)] == [
        *("r/1", "r/2", "other", "outbox/k1", "outbox/k2"),
    ]


def test_a_receipt_is_no_plain_ok(capsys: pytest.CaptureFixture[str]) -> None:
    other = ActionKey("r/2:0.0")
    made = [
        done_row(FIRST, "0.0", NOON, now=NOON),
        done_row(FIRST, "0.1", NOON, now=NOON, duplicate_of=other),
    ]

    actions.table(made).print(OUT)

    assert [row[3] for row in rows_of(capsys.readouterr().out)] == ["ok", "receipt"]


@pytest.mark.parametrize(
    ("fates", "summary", "told"),
    [
        (["stands"], "Nothing of it is undone: 0 of 1.", ["Undo what stands"]),
        (["unknown"], "Nothing of it is undone: 0 of 1.", ["Settle what is unknown"]),
        (
            ["unknown", "stands", "undone"],
            "Partly undone: 1 of 3.",
            ["Settle what is unknown", "Undo what stands"],
        ),
    ],
)
def test_an_undo_says_what_there_is_to_do_and_no_more(
    capsys: pytest.CaptureFixture[str], fates: list[Fate], summary: str, told: list[str]
) -> None:
    found = [
        ActionFate(ActionKey(f"r/1:{at}.0"), FIRST, Position(f"{at}.0"), "charge", "{}", fate)
        for at, fate in enumerate(fates)
    ]

    print_undo_report("r", UndoReport("partly compensated", found))

    shown = capsys.readouterr()
    assert shown.out.splitlines()[-1] == f"r: {summary}"
    assert [line.partition(":")[0] for line in shown.err.splitlines()] == told


def test_an_undo_does_not_say_to_try_again_what_nothing_undoes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fate = ActionFate(ActionKey("r/1:0.0"), FIRST, Position("0.0"), "mail", "{}", "stands")
    found = [replace(fate, why="its tool names no other to undo it")]

    print_undo_report("r", UndoReport("partly compensated", found))

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("stop", ""),
        ("tool_calls", ""),
        ("refusal", "No whole answer; why the model stopped: refusal.\n"),
    ],
)
def test_an_answer_that_is_none_is_printed_with_the_reason_beside_it(
    capsys: pytest.CaptureFixture[str], reason: FinishReason, told: str
) -> None:
    runs.print_answer(RunResult("I cannot do that.", 1, reason))

    assert tuple(capsys.readouterr()) == ("I cannot do that.\n", told)


def test_what_waits_behind_another_is_not_called_untaken(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def queued(number: int, behind: str | None) -> QueuedAction:
        return QueuedAction(
            key=ActionKey(f"outbox/k{number}:0"),
            seq=number,
            why="send",
            tool="mail",
            order_key="order-1",
            due_at=NOON,
            starts=0,
            shown=False,
            created_at=NOON,
            run_key=RunKey(f"outbox/k{number}"),
            position="0",
            parked_reason=None,
            behind=None if behind is None else ActionKey(behind),
            now=NOON + timedelta(hours=1),
        )

    first, second = queued(1, None), queued(2, "outbox/k1:0")
    report = relay.RelayReport("relay", "on", None, [first, second], [], [])

    relay.print_report(report)

    shown = capsys.readouterr()
    assert (first.overdue, second.overdue) == (True, False)
    assert "nobody takes it" in shown.out.splitlines()[1]
    assert "after the one before it" in shown.out.splitlines()[2]
    assert "the first is outbox/k1:0" in shown.err


def test_what_doctor_found_is_broken_nowhere() -> None:
    remedy = f"set COMMITLINE_DATABASE_URL to postgresql://{'host.' * 20}example.com/ledger"
    found = [Check("database", "missing", "no address", remedy), Check("Python", "ok", "3.11.7")]
    out = StringIO()

    print_checks(found, Console(file=out, width=80))

    assert out.getvalue().splitlines() == [
        "missing  database  no address",
        "         -> set COMMITLINE_DATABASE_URL to",
        f"            postgresql://{'host.' * 20}example.com/ledger",
        "ok       Python    3.11.7",
    ]


def test_what_doctor_found_fits_80_columns_and_breaks_no_command() -> None:
    command = "`commitline relay run --and-so-on --and-so-forth`"
    found = [Check("actions", "wrong", "one two " * 20, f"if this stays for long, use {command}")]
    out = StringIO()

    print_checks(found, Console(file=out, width=80))

    lines = out.getvalue().splitlines()
    assert max(len(line) for line in lines) <= 80
    assert [line for line in lines if command in line]
    assert lines[1].startswith(" " * len("wrong  actions  ") + "one")


def test_a_task_queue_that_no_worker_polls_is_named_with_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    left = [relay.LeftQueue("old", 3, "run-1", 1), relay.LeftQueue("older", 1, "undo:run-2", 1)]

    relay.print_report(relay.RelayReport("relay", "on", None, [], [], left))

    shown = " ".join(capsys.readouterr().err.split())
    assert "No worker polls the task queue old: 3 workflows wait there, run-1 for" in shown
    assert "COMMITLINE_TASK_QUEUE=old" in shown
    assert "1 of them are undos and settlements: the next look of the relay moves" in shown
    assert "COMMITLINE_TASK_QUEUE=older" not in shown
    assert "nothing to do" not in shown


async def test_a_command_that_waits_for_long_says_what_for_and_no_other_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with console.waiting("r: undoing", "It takes a worker."):
        await asyncio.sleep(0)
    in_time = capsys.readouterr().err
    monkeypatch.setattr(console, "_PATIENCE", 0)
    with console.waiting("r: undoing", "It takes a worker."):
        await asyncio.sleep(0.01)

    assert "It takes a worker." not in in_time
    assert "It takes a worker." in capsys.readouterr().err

"""What of a run is undone and what stands, for an operator; and what to do about it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from ..canonical import parse
from ..ledger import Action, UndoReport
from ..ledger.undo_rules import NOTHING_UNDOES_IT
from ..shown import one_line
from .actions import print_unknown
from .console import ERR, OUT, line, state_text
from .listing import Listing


def print_undo_report(run: str, report: UndoReport) -> None:
    """Print what of a run is undone, and what stands; and in the end what to do about it."""
    if report.actions:
        listing = Listing("at", "action", "fate", "why", long=("why",))
        for one in report.actions:
            listing.add_row(
                line(one.at, limit=40),
                line(one.tool, limit=24),
                state_text(one.fate),
                line(one.why, limit=300),
            )
        listing.print(OUT)
        OUT.print()
    undone = len(report.actions) - len(report.standing)
    partly = "Partly undone" if undone else "Nothing of it is undone"
    summary = {
        "nothing to undo": "Nothing of it is to be undone.",
        "compensated": f"What can be undone of it is undone: {undone}.",
        "partly compensated": f"{partly}: {undone} of {len(report.actions)}.",
    }[report.state]
    OUT.print(Text(f"{one_line(run, limit=200)}: {summary}"), soft_wrap=True)
    if report.state == "partly compensated":
        open_to = {one.fate for one in report.standing if one.why != NOTHING_UNDOES_IT}
        _say_what_to_do(one_line(run, limit=200), open_to)


def _say_what_to_do(run: str, fates: Collection[str]) -> None:
    remedies = {
        "unknown": f"Settle what is unknown: commitline actions settle {run}:AT",
        "stands": f"Undo what stands:  commitline undo {run}",
    }
    for fate, remedy in remedies.items():
        if fate in fates:
            ERR.print(remedy, style="dim", markup=False, soft_wrap=True)


def print_earlier_runs(runs: Sequence[str]) -> None:
    """Name the runs that had an id before the one that was meant by it."""
    if runs:
        named = "\n".join(f"  {one_line(run, limit=300)}" for run in runs[:5])
        ERR.print(
            f"That is its newest run. Earlier ones go by their keys:\n{named}",
            style="dim",
            markup=False,
            soft_wrap=True,
        )


def undo_data(report: UndoReport) -> dict[str, Any]:
    """Return the same as plain data: arguments as JSON, not as text."""
    actions = [{**asdict(one), "args": parse(one.args)} for one in report.actions]
    return {"state": report.state, "actions": actions}


def is_partial(report: UndoReport | None) -> bool:
    """Whether something stands that should be undone."""
    return report is not None and report.state == "partly compensated"


def print_what_stands(run: str, unknown: Sequence[Action], report: UndoReport | None) -> None:
    """Print what of a stopped run is undone and what stands.

    Args:
        run: The run's id.
        unknown: Its actions that an operator has to settle; printed where there is no report.
        report: What its undo came to; None where there was none, or it is not through.
    """
    if report is not None:
        print_undo_report(run, report)
        return
    for one in unknown:
        print_unknown(one)


def stop_data(
    run: str, state: str, unknown: Sequence[Action], report: UndoReport | None
) -> dict[str, Any]:
    """Return what a stop came to, for programs; ``undo`` where it was one that undoes."""
    shown = {"id": run, "state": state, "unknown": [one.key for one in unknown]}
    return shown if report is None else shown | {"undo": undo_data(report)}

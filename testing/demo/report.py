"""What the demo prints: a timeline for each scenario, then a table and what it means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .stage import AT_A_TIME, Result

_WIDE: Final = 100
"""Columns from which a row of the table fits on one line."""
_STYLES: Final = {"worker 1": "yellow", "worker 2": "cyan", "provider": "magenta"}


def introduction(count: int) -> str:
    """Say what is about to happen."""
    what = "scenario" if count == 1 else "scenarios"
    return (
        f"Playing {count} {what}, {AT_A_TIME} at a time, on real servers of their own. In each, "
        "a shop's agent calls three tools at once (lookup_order, charge_card, send_receipt). Its "
        "worker is killed with SIGKILL, and a second worker finishes the run; or a tool hangs; or "
        "the database is gone when the charge is to be recorded.\n"
    )


def timeline(result: Result) -> RenderableType:
    """Return one scenario's timeline, in a frame that carries its verdict."""
    lines = Table.grid(padding=(0, 1))
    lines.add_column(justify="right", style="dim")
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    for entry in result.timeline:
        loud = entry.text.split(" ")[0].isupper()  # KILLED, GONE
        text = Text(entry.text, style="bold red" if loud else "")
        who = Text(entry.who, style=_STYLES.get(entry.who, "dim"))
        lines.add_row(f"{entry.seconds:.2f}", who, text)
    kind = "Guarded by Commitline" if result.scenario.guarded else "Plain Temporal, no Commitline"
    head = Text(f"{kind}. {result.scenario.where}.\n", style="dim")
    return Panel(
        Group(head, lines),
        title=Text(result.scenario.name, style="bold"),
        title_align="left",
        subtitle=Text(_summary(result), style=_style(result)),
        subtitle_align="left",
        box=box.ROUNDED,
    )


def table(results: Sequence[Result], *, width: int) -> RenderableType:
    """Return the final table."""
    found = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False, pad_edge=False)
    found.add_column("scenario", no_wrap=True)
    for name in ("charges", "requests", "mails"):
        found.add_column(name, justify="right", no_wrap=True)
    found.add_column("rows", no_wrap=True)
    found.add_column("run", no_wrap=True)
    found.add_column("sec", justify="right", no_wrap=True)
    found.add_column("paid", no_wrap=True)
    for result in results:
        data = result.as_json()
        seconds = result.recovery_seconds
        found.add_row(
            result.scenario.name,
            str(data["charges"]),
            str(data["requests"]),
            str(data["mails"]),
            _rows(result, separator=", " if width >= _WIDE else "\n"),
            data["run"],
            "-" if seconds is None else f"{seconds:.1f}",
            Text(_verdict(result), style=_style(result)),
        )
    return found


def explanation(results: Sequence[Result]) -> str:
    """Say what the table shows."""
    wrong = [result for result in results if result.faults]
    if wrong:
        return "\n".join(
            [
                "Not as promised:",
                *(f"  {one.scenario.name}: {'; '.join(one.faults)}" for one in wrong),
            ]
        )
    parts = [
        "charges, requests (for charges), mails: what the provider counted. rows: the calls that "
        "the ledger holds, by state. sec: seconds from the kill (or the charge, where nothing is "
        "killed) to the end of the run.",
    ]
    if any(result.scenario.guarded for result in results):
        parts.append(
            "Guarded, the customer is charged once wherever the worker dies. Where a second "
            "charge request was sent, it carried the key of the first, so the provider answered "
            "it with the first charge."
        )
    mishaps = {result.scenario.mishap for result in results}
    if "hang" in mishaps:
        parts.append(
            "hung tool: the first attempt ended at its tool_timeout. The next ones asked again "
            "with the same key, and while the provider said that it was at work on that (409, "
            "StillInProgress), again and again, until it gave the answer of the one charge."
        )
    if "outage" in mishaps:
        parts.append(
            "ledger away: the charge was made and could not be recorded. It was not made again: "
            "its outcome went into Temporal's history and into the ledger when that was back."
        )
    if any(not result.scenario.guarded for result in results):
        parts.append(
            "The baseline is the same crash and the same tools as plain Temporal activities. "
            "Temporal runs an activity at least once, each attempt asked for a charge of its "
            "own, and the customer paid twice."
        )
    if any(_states(result)["unknown"] for result in results):
        parts.append(
            "unknown: the worker died after the intent to send a mail and before its record, and "
            "mails have no idempotency key. Whether it went out cannot be known from here, so "
            "Commitline neither sends it again nor says that it was sent: the model is told so, "
            "the run goes on, and an operator, who can look at the mail system, settles it. "
            "`commitline actions list --parked` lists what waits for one."
        )
    return "\n\n".join(parts)


def show(console: Console, results: Sequence[Result]) -> None:
    """Print table and explanation."""
    console.print()
    console.print(table(results, width=console.width))
    console.print()
    console.print(Text(explanation(results)))


def _summary(result: Result) -> str:
    data = result.as_json()
    counts = ", ".join(f"{name} {data[name]}" for name in ("charges", "requests", "mails"))
    return f"{counts}; run {data['run']}; paid {_verdict(result)}"


def _verdict(result: Result) -> str:
    if result.faults:
        return "WRONG"
    return "once" if result.scenario.guarded else "TWICE"


def _style(result: Result) -> str:
    return "green" if result.scenario.guarded and not result.faults else "bold red"


def _states(result: Result) -> Counter[str]:
    return Counter(action.state for action in result.world.actions)


def _rows(result: Result, *, separator: str) -> str:
    return separator.join(f"{count} {state}" for state, count in sorted(_states(result).items()))

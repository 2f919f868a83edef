"""What the demo prints: a timeline for each scenario, then a table and what it means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .frameworks import FRAMEWORKS
from .play import Result
from .scenarios import Scenario
from .stage import AT_A_TIME
from .verdicts import UNDONE

_WIDE: Final = 100
"""Columns from which a row of the table fits on one line."""
_STYLES: Final = {
    "worker 1": "yellow",
    "worker 2": "cyan",
    "worker 3": "blue",
    "provider": "magenta",
    "ada": "green",
}


def introduction(count: int, *, integrations: bool = False) -> str:
    """Return what the demo is about to do, in words."""
    what = "scenario" if count == 1 else "scenarios"
    begins = f"Playing {count} {what}, {AT_A_TIME} at a time, on real servers of their own. "
    if integrations:
        return (
            f"{begins}A shop's agent, written for another framework on Temporal, calls "
            "charge_card and then send_receipt. Worker 1 is killed with SIGKILL after the charge, "
            "worker 2 after the mail, and worker 3 finishes the run: without LedgerPlugin, and "
            "with it.\n"
        )
    return (
        f"{begins}In most, a shop's agent calls three tools at once (lookup_order, charge_card, "
        "send_receipt). Its worker is killed with SIGKILL, and a second worker finishes the run; "
        "or a tool hangs; or the database is gone when the worker has to record the charge. In "
        "two more, a plan fails and is undone, and a refund waits for a person, while workers are "
        "killed.\n"
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
    head = Text(f"{_kind(result.scenario)}. {result.scenario.where}.\n", style="dim")
    return Panel(
        Group(head, lines),
        title=Text(result.scenario.name, style="bold"),
        title_align="left",
        subtitle=Text(_summary(result), style=_style(result)),
        subtitle_align="left",
        box=box.ROUNDED,
    )


def _kind(scenario: Scenario) -> str:
    if scenario.framework:
        how = "with" if scenario.guarded else "without"
        return f"{FRAMEWORKS[scenario.framework].title}, {how} LedgerPlugin"
    return "Guarded by Commitline" if scenario.guarded else "Plain Temporal, no Commitline"


def tables(results: Sequence[Result], *, width: int) -> Sequence[RenderableType]:
    """Return the final tables: what was paid, by which framework, what was undone or approved."""
    frameworks = [result for result in results if result.scenario.framework]
    pays = [result for result in results if _is_own_payment(result)]
    others = [result for result in results if not result.scenario.pays]
    return [
        *([_frameworks(frameworks)] if frameworks else []),
        *([_payments(pays, width=width)] if pays else []),
        *([_undone_and_approved(others)] if others else []),
    ]


def _payments(results: Sequence[Result], *, width: int) -> Table:
    found = _table("scenario", "charges>", "requests>", "mails>", "rows", "run", "sec>", "paid")
    for result in results:
        data = result.as_json()
        found.add_row(
            result.scenario.name,
            str(data["charges"]),
            str(data["requests"]),
            str(data["mails"]),
            _rows(result, separator=", " if width >= _WIDE else "\n"),
            data["run"],
            _seconds(result),
            Text(_verdict(result), style=_style(result)),
        )
    return found


def _frameworks(results: Sequence[Result]) -> Table:
    found = _table(
        "framework",
        "plugin",
        "charges>",
        "requests>",
        "mails>",
        "model read",
        "run",
        "sec>",
        "acted",
    )
    for result in results:
        found.add_row(
            FRAMEWORKS[result.scenario.framework].title,
            "with" if result.scenario.guarded else "without",
            str(result.world.charges),
            str(len(result.world.charge_requests)),
            str(result.world.mails),
            ", ".join(result.world.read.values()) or "-",
            result.world.run,
            _seconds(result),
            Text(_verdict(result), style=_style(result)),
        )
    return found


def _is_own_payment(result: Result) -> bool:
    return result.scenario.pays and not result.scenario.framework


def _undone_and_approved(results: Sequence[Result]) -> Table:
    found = _table(
        "scenario", "done", "undone", "sent>", "early>", "rows", "run", "sec>", "verdict"
    )
    for result in results:
        waits = result.scenario.mishap == "approval"
        takes_back = () if waits else UNDONE
        done = [kind for kind in result.world.effects if kind not in takes_back]
        undone = [kind for kind in result.world.effects if kind in takes_back]
        found.add_row(
            result.scenario.name,
            "\n".join(done) or "-",
            "\n".join(undone) or "-",
            str(len(result.world.sent)),
            str(result.world.early) if waits else "-",
            _rows(result, separator="\n"),
            result.world.run,
            _seconds(result),
            Text(_verdict(result), style=_style(result)),
        )
    return found


def _table(*columns: str) -> Table:
    """Return an empty table; a column whose name ends with ``>`` holds numbers."""
    found = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False, pad_edge=False)
    for name in columns:
        justify: JustifyMethod = "right" if name.endswith(">") else "left"
        found.add_column(name.removesuffix(">"), justify=justify, no_wrap=True)
    return found


def _seconds(result: Result) -> str:
    return "-" if result.recovery_seconds is None else f"{result.recovery_seconds:.1f}"


def explanation(results: Sequence[Result]) -> str:
    """Return what the tables show, in words."""
    wrong = [result for result in results if result.faults]
    if wrong:
        return "\n".join(
            [
                "Not as promised:",
                *(f"  {one.scenario.name}: {'; '.join(one.faults)}" for one in wrong),
            ]
        )
    parts = [_ABOUT_FRAMEWORKS] if any(one.scenario.framework for one in results) else []
    parts += _about_payments([one for one in results if _is_own_payment(one)])
    parts += [_ABOUT[one.scenario.mishap] for one in results if not one.scenario.pays]
    if any(_states(result)["unknown"] for result in results):
        parts.append(
            "unknown: the worker died after the intent to send a mail and before its record, and "
            "mails have no idempotency key. Whether it went out cannot be known from here, so "
            "Commitline neither sends it again nor says that it was sent: the model is told so, "
            "the run goes on, and an operator, who can look at the mail system, settles it. "
            "`commitline actions list --parked` lists what waits for one."
        )
    return "\n\n".join(parts)


_ABOUT_FRAMEWORKS: Final = (
    "charges, requests (for charges), mails: what the provider counted. model read: what the "
    "agent's model was told of the charge and of the mail. sec: seconds from the last kill to the "
    "end of the run.\n\n"
    "Without the plugin Temporal runs the tool's activity again, so the customer paid twice and "
    "got two mails, and the model was told that all was well. With it the second charge request "
    "carried the key of the first, and no second mail was sent."
)
_ABOUT: Final = {
    "undo": (
        "plan undone: the stock was reserved, the card charged and a shipment booked; then the "
        "carrier refused the parcel, so the plan failed and was undone, last first. Worker 1 was "
        "killed halfway there and worker 2 halfway back, each between an effect and its record. "
        "done and undone: what the provider did, in its order. sent: requests; the two that were "
        "sent again carried the first one's key, so nothing was done, or undone, twice. rows: the "
        "calls and the undos that the ledger holds, by state; it says: compensated. sec: since "
        "the last kill."
    ),
    "approval": (
        "approval: the worker was killed while a refund waited for a person. For a second no "
        "worker was alive, and the next one waited as well. early: requests that reached the "
        "provider before the approval. What was approved was carried out, once. sec: since the "
        "approval."
    ),
}


def _about_payments(results: Sequence[Result]) -> list[str]:
    if not results:
        return []
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
    return parts


def show(console: Console, results: Sequence[Result]) -> None:
    """Print tables and explanation."""
    console.print()
    for one in tables(results, width=console.width):
        console.print(one)
        console.print()
    console.print(Text(explanation(results)))


def _summary(result: Result) -> str:
    data = result.as_json()
    if result.scenario.pays:
        counts = ", ".join(f"{name} {data[name]}" for name in ("charges", "requests", "mails"))
        return f"{counts}; run {data['run']}; paid {_verdict(result)}"
    requests = f"requests {len(result.world.sent)}, effects {len(result.world.effects)}"
    return f"{requests}; run {data['run']}; {_verdict(result)}"


def _verdict(result: Result) -> str:
    if result.faults:
        return "WRONG"
    if result.scenario.mishap == "undo":
        return "undone"
    return "once" if result.scenario.guarded else "TWICE"


def _style(result: Result) -> str:
    return "green" if result.scenario.guarded and not result.faults else "bold red"


def _states(result: Result) -> Counter[str]:
    return Counter(action.state for action in result.world.actions)


def _rows(result: Result, *, separator: str) -> str:
    return separator.join(f"{count} {state}" for state, count in sorted(_states(result).items()))

"""What a soak prints for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from commitline.tests.soak.result import Result

_STATES: Final = ("ok", "error", "unknown", "intent", "dispatched")
_EVENTS_IN_WORDS: Final = {
    "ledger.action_taken_over": "taken over",
    "ledger.action_found": "looked up: it had happened",
    "ledger.action_never_happened": "looked up: it never happened",
    "ledger.action_parked": "parked",
    "ledger.action_replayed": "replayed from the ledger",
    "ledger.late_recorded": "recorded late",
    "ledger.late_record_fenced": "late, and fenced",
    "ledger.outcome_handed_over": "handed over to the run",
    "ledger.unavailable": "found the ledger unavailable",
    "tool.timed_out": "timed out",
}


def report(result: Result) -> RenderableType:
    """Return the summary and every violation."""
    parts: list[RenderableType] = [
        Text(
            f"{result.seconds:.0f} s; the last run ended {result.settled_in:.1f} s after the last "
            f"fault; runs: {_listed(result.runs)}."
        ),
        Text(f"Conversations: {_listed(result.talks)}."),
        Text(f"Plans: {_listed(result.plans)}. People: {_listed(result.people)}."),
        Text(f"Undos: {_listed(result.undos)}. Transactions: {_listed(result.outbox)}."),
        _actions(result),
        Text(f"Of these, claimed locally: {_listed(result.local)}."),
        Text(f"Faults: {_listed(result.faults)}."),
        Text(f"Of the provider: {_listed(result.provider_faults)}."),
        Text(f"Calls: {_listed(_named(result.events))}."),
    ]
    if result.violations:
        parts.append(Text(f"{len(result.violations)} violations:", style="bold red"))
        parts += [Text(f"  {found}", style="red") for found in result.violations]
    else:
        parts.append(Text("No violation.", style="green"))
    return Group(*parts)


def _actions(result: Result) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False, pad_edge=False)
    table.add_column("actions")
    for state in _STATES:
        table.add_column(state, justify="right")
    for effect in sorted({effect for effect, _ in result.actions}):
        table.add_row(effect, *(str(result.actions[effect, state]) for state in _STATES))
    return table


def _named(events: Counter[str]) -> dict[str, int]:
    return {name: events[event] for event, name in _EVENTS_IN_WORDS.items() if events[event]}


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"

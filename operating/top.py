"""`commitline top`: the list of runs and what waits, shown again and again on a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..client import AgentClient
from ..errors import LedgerUnavailable
from ..ledger.waiting import MOST_COUNTED, Waiting, WaitingLedger
from . import run_list
from .console import age_of_seconds
from .run_list import Listed, RunList

_KINDS: Final = {
    "approval": "to approve",
    "question": "to answer",
    "unknown": "unknown",
    "relay": "due in the relay",
}


@dataclass(frozen=True)
class Snapshot:
    """What is shown at one moment."""

    at: datetime
    waiting: Sequence[Waiting]
    runs: Sequence[Listed]


class Top:
    """Looks at the runs again and again.

    Args:
        client: Connected.
        limit: How many runs are listed at most.
        agent: As `RunList.newest` takes it.
        state: The same.
    """

    def __init__(
        self, client: AgentClient, *, limit: int, agent: str | None, state: str | None
    ) -> None:
        self._client = client
        self._list = RunList(client)
        self._limit, self._agent, self._state = limit, agent, state

    async def look(self) -> Snapshot:
        """Return what is to be shown now; it only reads."""
        ledger = await self._client.ledger()
        waiting = await WaitingLedger.beside(ledger).look()
        runs = await self._list.newest(limit=self._limit, agent=self._agent, state=self._state)
        return Snapshot(await ledger.relay.now(), waiting, runs)

    async def show(self, console: Console, *, every_seconds: float) -> None:
        """Show it until the caller is interrupted; where the ledger is away, say so and go on."""
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                try:
                    shown: Group | Text = screen(await self.look())
                except LedgerUnavailable as err:
                    shown = Text(str(err), style="red")
                live.update(shown, refresh=True)
                await asyncio.sleep(every_seconds)


def screen(found: Snapshot) -> Group:
    """Return what is shown of a snapshot: a line a run, cut where the terminal ends."""
    hint = Text("Ctrl-C ends this. All about one: commitline runs show RUN", style="dim")
    table = Table(box=None, pad_edge=False, expand=True, header_style="bold")
    for name in run_list.COLUMNS:
        share = {"run": 2, "note": 3}.get(name)
        table.add_column(name, no_wrap=True, overflow="ellipsis", ratio=share)
    for row in run_list.rows(found.runs):
        table.add_row(*row)
    return Group(summary(found), hint, Text(), table)


def summary(found: Snapshot) -> Text:
    """Say in a line how much waits, and since when."""
    said = [
        f"{one.number}{'+' if one.number >= MOST_COUNTED else ''} {_KINDS[one.kind]}"
        f" ({age_of_seconds(one.oldest_seconds)})"
        for one in found.waiting
        if one.number
    ]
    return Text(f"{found.at:%H:%M:%S}  " + (", ".join(said) or "nothing waits for a person"))


def data(found: Snapshot) -> dict[str, Any]:
    """Return a snapshot as plain data."""
    waiting = {
        one.kind: {k: v for k, v in asdict(one).items() if k != "kind"} for one in found.waiting
    }
    return {"at": found.at, "waiting": waiting, "runs": [run_list.data(one) for one in found.runs]}

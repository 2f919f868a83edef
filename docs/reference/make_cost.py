"""Writes the figures of docs/cost.md from what the benches print with ``--json``.

    python bench/turns.py --json > turns.json
    python bench/history.py --json > history.json
    python bench/scale.py --json > scale.json
    python docs/reference/make_cost.py turns.json history.json scale.json

A table whose bench is not given, as ``-``, stays as it is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

PAGE: Final = Path(__file__).parents[1] / "cost.md"
TURNS: Final = {
    "turn_ms": "milliseconds, one run at a time",
    "turns_a_second_20": "turns a second, 20 runs side by side",
    "turns_a_second_100": "turns a second, 100 runs side by side",
    "worker_ms_a_turn": "milliseconds of a worker's processor",
    "temporal_ms_a_turn": "milliseconds of Temporal's processor",
    "postgres_ms_a_turn": "milliseconds of Postgres's processor",
    "actions_a_turn": "actions on Temporal Cloud's bill, those of the run included",
}
HISTORY: Final = {
    "commits": "commits in Postgres",
    "history_bytes": "bytes of history in Temporal",
    "postgres_bytes": "bytes of tables and indexes in Postgres",
    "wal_bytes": "bytes of Postgres's log, which standbys get",
}
QUERIES: Final = {
    "claim_new": "a call is claimed",
    "commit_turn": "a model turn is committed",
    "intend": "an application intends an action",
    "take_due": "the relay takes what is due",
    "take_runs": "it looks at open runs",
    "clear_runs": "it forgets those that have ended",
    "list_actions, of a run": "the actions of a run",
    "list_approvals": "what waits for a person",
    "list_questions": "the same of questions",
}


def turns_table(found: dict[str, Any]) -> Iterator[str]:
    """Yield the table of a turn's time, and of the processors that it needs."""
    yield "| a turn of one call | Commitline | by hand, lean |"
    yield "| --- | --- | --- |"
    for key, told in TURNS.items():
        yield f"| {told} | {found['commitline'][key]:.4g} | {found['lean'][key]:.4g} |"


def history_table(found: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the table of what a turn leaves behind: what the longest run has more than another."""
    *_, some, most = (one for one in found if one["system"] == "commitline")
    turns = most["turns"] - some["turns"]
    yield "| a turn of one call | |"
    yield "| --- | --- |"
    for key, told in HISTORY.items():
        yield f"| {told} | {(most[key] - some[key]) / turns:,.0f} |"


def scale_table(found: dict[str, Any]) -> Iterator[str]:
    """Yield the table of the queries."""
    yield "| query | median ms | |"
    yield "| --- | --- | --- |"
    for name, told in QUERIES.items():
        yield f"| `{name}` | {found['queries'][name]['median_ms']:.2f} | {told} |"


def main() -> None:
    """Write the tables."""
    page = PAGE.read_text(encoding="utf-8")
    tables: dict[str, Callable[[Any], Iterator[str]]] = {
        "turns": turns_table,
        "history": history_table,
        "scale": scale_table,
    }
    for (name, table), file in zip(tables.items(), sys.argv[1:], strict=True):
        if file == "-":
            continue
        rows = "\n".join(table(json.loads(Path(file).read_text(encoding="utf-8"))))
        before, begins, rest = page.partition(f"<!-- {name} -->\n")
        _, ends, after = rest.partition("<!-- -->")
        assert ends, f"the page has no table {name}"
        page = f"{before}{begins}{rows}\n{ends}{after}"
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()

"""Lists for people: no id is broken, whether they fit the terminal or not."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from commitline.operating.listing import Listing

LONG_ID = "customer-0123456789-order-0123456789-in-the-shop-of-Ada/2026-11-29/0123456789/abcdef/a"
ARGUMENTS = '{"order_id":"4821","note":"a text that is far too long for any line of a terminal"}'


def printed(listing: Listing, *, terminal: bool = True, width: int = 80) -> list[str]:
    to = StringIO()
    console = Console(file=to, width=width, force_terminal=terminal, no_color=True)
    listing.print(console)
    return [line.rstrip() for line in to.getvalue().splitlines()]


def of(*runs: str) -> Listing:
    listing = Listing("run", "at", "arguments", "state", long=("arguments",))
    for run in runs:
        listing.add_row(run, "0.1", "{}" if run == "r1" else ARGUMENTS, "ok")
    return listing


@pytest.fixture(autouse=True)
def _no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("TERM", "dumb")


def test_what_fits_is_a_table() -> None:
    assert printed(of("r1", "r1")) == [
        "run  at   arguments  state",
        "r1   0.1  {}         ok",
        "r1   0.1  {}         ok",
    ]


def test_what_does_not_fit_is_a_block_for_each_row_with_nothing_broken() -> None:
    assert printed(of("r1", LONG_ID)) == [
        "run",
        "  at   state",
        "  arguments",
        "r1",
        "  0.1  ok",
        "  {}",
        "",
        LONG_ID,
        "  0.1  ok",
        f"  {ARGUMENTS}",
    ]


def test_into_a_pipe_everything_is_one_line_a_row() -> None:
    lines = printed(of("r1", LONG_ID), terminal=False)

    assert [line.split()[0] for line in lines] == ["run", "r1", LONG_ID]
    assert lines[2].endswith(f"0.1  {ARGUMENTS}  ok")


def test_a_value_of_many_lines_keeps_them() -> None:
    listing = Listing("question", "asks", long=("asks",))
    listing.add_row("r1:0.1/1", "Refund?\n{}")

    assert printed(listing) == ["question", "  asks", "r1:0.1/1", "  Refund?", "  {}"]

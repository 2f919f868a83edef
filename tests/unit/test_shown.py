"""Text from outside as it is shown: it begins no line, moves no cursor, and is no Markdown."""

from __future__ import annotations

import io
import sys

import pytest
import structlog

from commitline.log_output import configure_logging
from commitline.shown import block, markdown_line, one_line
from commitline.workflows.progress import Progress, summarise

HOSTILE = "charge\n-> refund {}\x1b[31m\r\u202e\u2028"


def test_a_name_in_a_line_begins_no_line_and_moves_no_cursor() -> None:
    assert one_line(HOSTILE) == "charge -> refund {}?[31m???"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("[approved](https://evil.example)", "[approved] (https: //evil.example)"),
        ("![x](//evil.example/x.png)", "![x] (//evil.example/x.png)"),
        ("[a][b] and [a]: javascript:x", "[a] [b] and [a] : javascript:x"),
        (
            "see https://evil.example or www.evil.example",
            "see https: //evil.example or www .evil.example",
        ),
        ("<b onclick=x>now</b>", "\u2039b onclick=x>now\u2039/b>"),
        (
            "**done** __done__ `done` ~~done~~",
            "{0}done{0} {1}done{1} 'done' {2}done{2}".format(
                "\u2217\u2217", "\uff3f\uff3f", "\u223c\u223c"
            ),
        ),
        ("a | b\\|c", "a ¦ b\\¦c"),
        (
            "charge_card order_id=4821 deep=[1, [2]] to=a@b.example",
            "charge_card order_id=4821 deep=[1, [2]] to=a@b.example",
        ),
    ],
)
def test_what_is_shown_as_markdown_is_no_markdown(written: str, shown: str) -> None:
    assert markdown_line(written) == shown
    assert markdown_line(shown) == shown


def test_a_summary_fits_temporals_bytes() -> None:
    assert len(markdown_line("\U0001f600|<" * 200).encode()) <= 400


def test_several_lines_are_indented_under_a_line_of_ours() -> None:
    assert block("Hi.\ntools  (version 3)\x1b[2J") == "  Hi.\n  tools  (version 3)?[2J"


def test_a_models_link_is_not_live_in_a_runs_details_nor_in_a_summary() -> None:
    link = "[waits for a person](https://evil.example)"
    progress = Progress(link, f"> {link}", model=link, state=link)
    call = progress.begin("0.0", summarise("pay", "Pay {to}", {"to": link}))
    call.state, call.question, call.workflow_id = "awaiting_answer", link, f"x`|{link}"

    shown = progress.markdown().replace(f"`x'¦{link}`", "")  # in code nothing is live

    assert "](" not in shown
    assert "://" not in shown
    assert "](" not in summarise("pay", None, {"to": link})


def test_a_persons_name_does_not_reach_a_terminal_raw(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    before, screen = structlog.get_config(), Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    try:
        configure_logging()
        structlog.get_logger("commitline").info("approval.decided", by="ada\x1b[31m\nforged.line")
    finally:
        structlog.configure(**before)

    (line,) = screen.getvalue().splitlines()
    assert "ada?[31m forged.line" in line

"""What a run shows of itself: in business words, one line per call, nothing that breaks out."""

from __future__ import annotations

from commitline.workflows.progress import CallState, Progress, summarise


def test_the_details_are_a_table_of_calls_with_their_state() -> None:
    progress = Progress("support", "Charge order 4821.", model="gpt", state="step 1: 2 calls")
    progress.begin("0.0", "Look up order 4821").state = "ok"
    progress.begin("0.1", "Charge 4900 cents")

    assert progress.markdown() == (
        "**support** (gpt): step 1: 2 calls\n"
        "\n"
        "> Charge order 4821.\n"
        "\n"
        "| position | action | state |\n"
        "| --- | --- | --- |\n"
        "| 0.0 | Look up order 4821 | done |\n"
        "| 0.1 | Charge 4900 cents | running |"
    )


def test_a_run_without_calls_shows_no_table() -> None:
    assert Progress("support", "Hi.", model="gpt", state="done").markdown() == (
        "**support** (gpt): done\n\n> Hi."
    )


def test_every_state_is_shown_in_words() -> None:
    progress = Progress("support", "Hi.")
    for position, state in enumerate(("ok", "existing", "happened", "error", "unknown")):
        progress.begin(f"0.{position}", "x").state = state  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]

    told = [line.split("|")[3].strip() for line in progress.markdown().splitlines()[6:]]

    assert told == [
        "done",
        "already done, by another action",
        "done, but its result could not be kept",
        "not done: error",
        "**unknown: a person must settle it**",
    ]


def test_the_row_after_calls_names_those_that_did_not_go_well_and_counts_the_others() -> None:
    progress = Progress("support", "Hi.")
    ends: list[CallState] = ["error", "ok", "existing", "rejected", "unknown", "ok"]
    for at, state in enumerate(ends):
        progress.begin(f"0.{at}", "x").state = state

    assert (
        progress.outcomes() == "0.4 unknown, 0.0 not done: error, 0.2 done before, 1 more, 2 done"
    )
    assert progress.outcomes(latest=1) == "1 done"
    assert progress.outcomes(latest=0) == ""
    assert progress.open_ends() == "unknown: 0.4"


def test_the_details_name_the_next_command_for_what_waits_for_a_person() -> None:
    progress = Progress("support", "Hi.")
    waits: list[CallState] = ["awaiting_approval", "awaiting_answer", "unknown", "ok"]
    for at, state in enumerate(waits):
        progress.begin(f"0.{at}", "x").state = state

    told = progress.markdown("support-4821").splitlines()

    assert told[-3:] == [
        "- `commitline approve support-4821:0.0` or `commitline reject support-4821:0.0`",
        "- `commitline answer support-4821:0.1`",
        "- `commitline actions show support-4821:0.2` says what stands by now; `commitline actions "
        "settle support-4821:0.2` with what a person has found out",
    ]
    assert "commitline" not in progress.markdown()  # of an undo or a settlement


def test_an_unknown_call_is_kept_among_the_latest_of_very_many() -> None:
    progress = Progress("support", "Hi.")
    progress.begin("0.0", "x").state = "unknown"
    for step in range(1, 1000):
        progress.begin(f"{step}.0", "x").state = "ok"

    assert (progress.calls[0].position, len(progress.calls), progress.begun) == ("0.0", 600, 1000)
    assert progress.open_ends() == "unknown: 0.0"


def test_a_long_run_shows_its_last_calls_and_counts_the_others() -> None:
    progress = Progress("support", "Hi.")
    for step in range(30):
        progress.begin(f"{step}.0", f"call {step}")

    lines = progress.markdown().splitlines()

    assert "| … | 5 earlier calls | |" in lines
    assert lines[-1] == "| 29.0 | call 29 | running |"
    assert len([line for line in lines if "running" in line]) == 25


def test_what_people_and_models_write_cannot_break_out_of_its_line() -> None:
    progress = Progress("a|b", "first\nsecond <script>", model="m")
    progress.begin("0.0", "x | y\n| fake | row | done |\ud83d\x00")

    lines = progress.markdown().splitlines()

    assert lines[2] == "> first second \u2039script>"
    assert lines[0].startswith("**a¦b**")
    assert len(lines) == 7
    assert lines[6] == "| 0.0 | x ¦ y ¦ fake ¦ row ¦ done ¦?? | running |"


def test_a_long_prompt_is_cut() -> None:
    shown = Progress("support", "x" * 10_000).markdown()

    assert len(shown) < 300
    assert shown.endswith("…")


def test_a_summary_is_the_tools_own_words_with_the_arguments_in_them() -> None:
    summary = summarise(
        "charge_card", "Charge {amount_cents} cents for {order_id}", {"amount_cents": 4900}
    )

    assert summary == "Charge 4900 cents for (default)"


def test_a_tool_without_words_of_its_own_is_summed_up_by_name_and_arguments() -> None:
    assert summarise("look", None, {"order_id": "4821", "deep": [1]}) == (
        "look order_id=4821 deep=[1]"
    )
    assert summarise("look", None, {}) == "look"


def test_a_summary_is_printable_and_short_whatever_the_model_wrote() -> None:
    summary = summarise("look", "Look at {x}", {"x": "\ud83d\x00" + "y" * 10_000})

    assert summary.startswith("Look at ??yyy")
    assert len(summary) == 150
    assert summary.encode("utf-8").decode() == summary


def test_a_call_that_asks_shows_its_question_and_nothing_breaks_out_of_the_table() -> None:
    progress = Progress("support", "Hi.")
    call = progress.begin("0.0", "Refund")
    call.state, call.question = "awaiting_answer", "How | much?\n<b>"

    assert progress.markdown().splitlines()[-1] == (
        "| 0.0 | Refund | **waits for an answer**: How ¦ much? \u2039b> |"
    )

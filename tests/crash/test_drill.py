"""A bad night, played once: what moves, which alert fires, what a person sees, what ends it.

docs/drill.md is what an operator reads of it. The alert rules are held against what the worker
served: by name, and by Prometheus' promtool (`make test-alerts`).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from commitline.devstack import DevStack
from commitline.tests.crash.night import (
    RESET,
    SETTLE,
    SHOW,
    SITUATIONS,
    START,
    UNDO,
    WORKER,
    Night,
    Series,
    play_night,
)
from commitline.tests.crash.stage import Stage

pytestmark = pytest.mark.slow

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ROOT / "deploy/prometheus/alerts.yml"
PROMTOOL: Final = os.environ.get("PROMTOOL", "promtool")


@pytest.fixture(scope="module")
def night(stage: Stage, devstack: DevStack) -> Night:
    """Play the night, once for all tests of this module."""
    return stage.play({"night": lambda scene: play_night(scene, devstack)})["night"]


# --- what a person sees, and what ends it


def test_a_run_whose_worker_died_in_a_call_goes_on_at_another_worker(night: Night) -> None:
    died = night.typed[SHOW][0].said
    (listed,) = night.typed["commitline actions list --run RUN"]

    assert re.search(r"^state +running$", died, re.MULTILINE)
    assert re.search(r"0\.0 +charge +dispatched", listed.said)
    assert WORKER in night.typed
    assert (night.outputs["charges"], night.effects["charge:1"]) == ("Charged.", 1)
    assert night.takeovers == 1


def test_an_outage_of_postgres_is_named_by_doctor_until_it_is_over(night: Night) -> None:
    away, back = night.typed["commitline doctor"]

    assert away.status == 1
    assert re.search(r"^wrong +database +no database: ", away.said, re.MULTILINE)
    assert back.status == 0
    assert re.search(r"^ok +database", back.said, re.MULTILINE)


def test_a_run_that_failed_by_its_provider_says_so_and_goes_on_when_it_is_taken_back(
    night: Night,
) -> None:
    (reset,) = night.typed[RESET]

    assert "503" in night.typed[SHOW][1].said
    assert "503" in night.outputs["answers"]
    assert (reset.status, night.outputs["answers, reset"]) == (0, "On its way.")


def test_an_approval_that_expired_is_listed_and_the_call_is_made_when_it_is_asked_for_again(
    night: Night,
) -> None:
    (listed,) = night.typed["commitline approvals --all"]
    (approved,) = night.typed["commitline approve RUN:AT"]

    assert re.search(r"^pays-\S+:0\.0 +pay .* expired", listed.said, re.MULTILINE)
    assert "commitline approve" not in listed.said  # nothing waits any more
    assert night.typed[START][0].status == approved.status == 0
    assert (night.outputs["pays"], night.outputs["again"]) == ("Paid.", "Paid.")
    assert night.effects["payout:4"] == 1


def test_an_undo_that_stayed_partial_says_what_stands_and_is_finished_by_another(
    night: Night,
) -> None:
    (shown,), (undone,) = night.typed["commitline undo RUN --show"], night.typed[UNDO]

    assert "The run is partly compensated" in night.outputs["fails"]
    listed = night.typed["commitline runs"][0].said
    assert re.search(r"^fails-\S+ +fails +failed .* partly undone; ", listed, re.MULTILINE)
    assert (shown.status, undone.status) == (1, 0)
    assert re.search(r"0\.0 +charge +stands .*the refund is refused", shown.said)
    assert re.search(r"0\.0 +charge +undone", undone.said)
    assert (night.effects["charge:5"], night.effects["refund:5"]) == (1, 1)


def test_a_mail_that_is_unknown_is_listed_until_it_is_settled(night: Night) -> None:
    (runs,) = night.typed["commitline runs --state waiting"]
    (listed,) = night.typed["commitline actions list --parked"]
    (shown,) = night.typed["commitline actions show RUN:AT"]
    (settled,) = night.typed[SETTLE]

    assert re.findall(r"^(\S+)-.* 1 unknown, since ", runs.said, re.MULTILINE) == ["mails"]
    assert re.search(r"^mails-\S+ +0\.0 +send_mail +unknown", listed.said, re.MULTILINE)
    assert "RemoteDisconnected" in shown.said
    assert settled.status == 0
    assert re.search(r"0\.0 +send_mail +ok", settled.said)
    assert night.effects["mail:ada"] == 1


def test_the_page_names_the_commands_that_were_typed_and_no_other(night: Night) -> None:
    page = (ROOT / "docs/drill.md").read_text()

    assert set(re.findall(r"`(commitline [^`]+)`", page)) == set(night.typed)
    for name, situation in SITUATIONS.items():
        (row,) = (line for line in page.splitlines() if line.startswith(f"| {name} |"))
        assert f"[{situation.alert}](runbook.md#{situation.alert.lower()})" in row
        assert f"`{situation.moves.partition('{')[0].removesuffix('_total')}" in row


# --- the alerts


def _rule(alert: str) -> dict[str, Any]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    (rule,) = (one for one in group["rules"] if one["alert"] == alert)
    return dict(rule)


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_series_that_an_alert_reads_moves_at_its_situation(night: Night, name: str) -> None:
    situation = SITUATIONS[name]
    metric = situation.moves.partition("{")[0]
    before, meanwhile, after = night.moments[name]

    assert metric in _rule(situation.alert)["expr"]
    assert before[situation.moves] != meanwhile.get(situation.moves)
    assert situation.moves in after
    if metric.endswith("_total"):
        assert before[situation.moves] < meanwhile[situation.moves] == after[situation.moves]
    else:  # a gauge comes back
        assert after[situation.moves] == before[situation.moves]


@pytest.mark.promtool
@pytest.mark.parametrize("name", SITUATIONS)
def test_the_alert_fires_by_what_was_read_and_ends(night: Night, name: str, tmp_path: Path) -> None:
    situation = SITUATIONS[name]
    alert, expression = situation.alert, _rule(situation.alert)["expr"]
    named = set(re.findall(r"commitline_\w+", expression))
    firing = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) > bool 0'
    rules = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": _labelled(series), "values": values}
                    for series, values in _replayed(night.moments[name], grows=situation.grows)
                    if series.partition("{")[0] in named
                ],
                "promql_expr_test": [
                    {"expr": firing, "eval_time": f"{minute}m", "exp_samples": [*firing_then]}
                    for minute, firing_then in (
                        (_BEFORE - 1, []),
                        (_BEFORE + 10, [{"labels": "{}", "value": 1}]),
                        (_BEFORE + _MEANWHILE + _AFTER, []),
                    )
                ],
            }
        ],
    }
    file = tmp_path / "night_test.yml"
    file.write_text(yaml.safe_dump(rules))

    done = subprocess.run(
        [PROMTOOL, "test", "rules", file], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, f"{done.stdout}{done.stderr}{file.read_text()}"


_BEFORE, _MEANWHILE, _AFTER = 20, 20, 90
"""Minutes for which what was read is played: alerts want a quarter of an hour, or look back one."""


def _labelled(series: str) -> str:
    name, _, own = series.partition("{")
    others = f", {own}" if own != "}" else own
    return f'{name}{{namespace="default", task_queue="shop"{others}'


def _replayed(moments: tuple[Series, Series, Series], *, grows: bool) -> Iterator[tuple[str, str]]:
    """Play what was read for minutes each, as promtool has it; ``grows`` repeats what was counted.

    The night itself is shorter than the times for which an alert waits.
    """
    before, meanwhile, after = moments
    for series in {**before, **meanwhile, **after}:
        was = f"{before[series]}x{_BEFORE - 1}" if series in before else f"_x{_BEFORE}"
        then, last = meanwhile.get(series), after.get(series, 0)
        if then is None:
            yield series, f"{was} stale _x{_MEANWHILE - 1} {last}x{_AFTER}"
        elif grows:
            counted = then - before.get(series, 0)
            rises = f"{then}+{counted}x{_MEANWHILE - 1}"
            yield series, f"{was} {rises} {then + counted * _MEANWHILE}x{_AFTER}"
        else:
            yield series, f"{was} {then}x{_MEANWHILE - 1} {last}x{_AFTER}"

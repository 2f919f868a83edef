"""The demo's own promises: what it counts, what it calls wrong, what it leaves behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil  # type: ignore[import-untyped]
import pytest
from packaging.requirements import Requirement
from rich.console import Console

from commitline.errors import ConfigurationError
from commitline.ledger import Action
from commitline.testing.demo import (
    INTEGRATIONS,
    SCENARIOS,
    Result,
    Scenario,
    Sent,
    World,
    faults,
    run_demo,
)
from commitline.testing.demo.frameworks import FRAMEWORKS
from commitline.testing.demo.report import show

ROOT = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "commitline.cli", "demo"]
DONE = ["reservation", "charge", "shipment"]
UNDONE = ["cancellation", "refund", "release"]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files that Postgres may enter under root, too."""
    folder = Path(tempfile.mkdtemp(prefix="commitline-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def processes_of(folder: Path) -> list[str]:
    """Command lines of what works in the folder, or was told of it."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(folder) in line or str(folder) in (process.info["cwd"] or ""):
            found.append(line)
    return found


@pytest.fixture(scope="module")
def played() -> Iterator[dict[str, Result]]:
    """What came of four scenarios, by name; afterwards nothing of them may be left."""
    with tempfile.TemporaryDirectory(prefix="commitline-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "tempdir", name)
            results = run_demo(["plan undone", "approval", "after_effect@charge_card", "baseline"])
        assert processes_of(folder) == []
        assert list(folder.glob("commitline-*")) == []
        yield {result.scenario.name: result for result in results}


def test_guarded_the_customer_pays_once_and_on_plain_temporal_twice(
    played: dict[str, Result],
) -> None:
    guarded, baseline = played["after_effect@charge_card"], played["baseline"]

    found = guarded.as_json()
    assert guarded.faults == []
    assert (found["charges"], found["requests"], found["run"]) == (1, 2, "completed")
    assert sum(found["rows"].values()) == 2
    assert len({key for key, _ in guarded.world.charge_requests}) == 1
    found = baseline.as_json()
    assert baseline.faults == []
    assert (found["charges"], found["requests"], found["run"]) == (2, 2, "completed")
    assert (found["guarded"], found["rows"]) == (False, {})


def test_a_plan_that_failed_is_undone_once_and_in_reverse_though_workers_are_killed(
    played: dict[str, Result],
) -> None:
    undone = played["plan undone"]
    told = [entry.text for entry in undone.timeline]

    assert undone.faults == []
    assert without_seconds(undone) == {
        "scenario": "plan undone",
        "guarded": True,
        "charges": 1,
        "requests": 1,
        "mails": 0,
        "rows": {"error": 1, "ok": 6},
        "run": "failed",
        "sent": {
            "reservation": 1,
            "charge": 1,
            "shipment": 2,
            "handover": 1,
            "cancellation": 1,
            "refund": 2,
            "release": 1,
        },
        "order": [*DONE, *UNDONE],
        "done": DONE,
        "undone": UNDONE,
        "undo": "compensated",
    }
    assert "KILLED (SIGKILL) at before_record@book_shipment" in told
    assert "KILLED (SIGKILL) at before_record@refund_charge" in told


def test_a_call_waits_for_a_person_without_any_worker_and_is_carried_out_once(
    played: dict[str, Result],
) -> None:
    approved = played["approval"]
    told = [entry.text for entry in approved.timeline]

    assert approved.faults == []
    assert without_seconds(approved) == {
        "scenario": "approval",
        "guarded": True,
        "charges": 0,
        "requests": 0,
        "mails": 0,
        "rows": {"ok": 1},
        "run": "completed",
        "sent": {"refund": 1},
        "order": ["refund"],
        "approval": "approved",
        "early": 0,
    }
    assert "KILLED (SIGKILL) while refund_charge waits for a person" in told
    assert "has the run; requests at the provider: 0" in told


def test_what_people_read_has_80_columns_and_tells_of_each_scenario(
    played: dict[str, Result],
) -> None:
    printed = StringIO()

    show(Console(file=printed, width=80), list(played.values()))

    lines = printed.getvalue().splitlines()
    rows = [line.split()[-1] for line in lines if line.startswith(tuple(played))][:4]
    assert max(map(len, lines)) <= 80
    assert "…" not in printed.getvalue()
    assert rows == ["once", "TWICE", "undone", "once"]


def without_seconds(result: Result) -> dict[str, Any]:
    """Return what is printed of it, but for the seconds, of which there have to be some."""
    found = result.as_json()
    assert found.pop("recovery_seconds") > 0
    return found


@pytest.mark.slow
def test_the_command_prints_json_and_nothing_else_and_tells_the_rest_on_stderr(
    temporary: Path,
) -> None:
    demo = subprocess.run(
        [*DEMO, "--json", "--scenario", "after_claim@send_receipt"],
        env={**os.environ, "TMPDIR": str(temporary), "COLUMNS": "300"},
        capture_output=True,
        text=True,
        check=False,
    )

    [found] = json.loads(demo.stdout)
    seconds = found.pop("recovery_seconds")
    told = demo.stderr.partition("KILLED (SIGKILL) at after_claim@send_receipt")
    assert demo.returncode == 0
    assert found.pop("requests") in (1, 2)  # the charge beside it was recorded, or was not
    assert found == {
        "scenario": "after_claim@send_receipt",
        "guarded": True,
        "charges": 1,
        "mails": 0,
        "rows": {"ok": 1, "unknown": 1},
        "run": "completed",
    }
    assert seconds > 0
    assert "claimed send_receipt: its intent is committed" in told[0]
    assert "answered unknown for send_receipt" in told[2]


def test_nothing_is_left_after_ctrl_c_in_the_middle(temporary: Path) -> None:
    demo = subprocess.Popen(
        [*DEMO, "--json"],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # A test run in the background ignores Ctrl-C, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    deadline = time.monotonic() + 60
    while not any("commitline.worker" in line for line in processes_of(temporary)):
        assert demo.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)

    demo.send_signal(signal.SIGINT)
    printed, _ = demo.communicate(timeout=60)

    assert demo.returncode == 130
    assert printed == b""
    assert processes_of(temporary) == []
    assert list(temporary.glob("commitline-*")) == []


def test_there_is_a_scenario_for_every_crash_point_for_more_and_a_baseline() -> None:
    assert [scenario.name for scenario in SCENARIOS] == [
        "before_claim@charge_card",
        "after_claim@charge_card",
        "after_effect@charge_card",
        "before_record@charge_card",
        "after_record@charge_card",
        "after_completion",
        "completion_recorded",
        "after_claim@send_receipt",
        "after_effect@send_receipt",
        "hung tool",
        "ledger away",
        "plan undone",
        "approval",
        "baseline",
    ]


@pytest.mark.parametrize(
    ("world", "fault"),
    [
        (World(2, 1, [], [], "completed"), "2 charges"),
        (World(1, 2, [], [], "completed"), "2 mails"),
        (World(1, 1, [], [], "running"), "the run is running"),
        (World(1, 1, [], [], "completed"), "rows per call: {}"),
        (
            World(1, 1, [("a", "{}"), ("b", "{}")], [], "completed"),
            "charge requests with different keys or bodies",
        ),
    ],
)
def test_what_must_not_happen_to_a_guarded_run_is_called_wrong(world: World, fault: str) -> None:
    found = faults(Scenario("x", "after_claim@charge_card"), world)

    assert fault in found


def test_a_baseline_that_charges_once_shows_nothing_and_is_wrong() -> None:
    baseline = Scenario("baseline", "after_effect@charge_card", guarded=False)

    assert faults(baseline, World(2, 1, [], [], "completed")) == []
    assert faults(baseline, World(1, 1, [], [], "completed")) == [
        "the baseline did not charge twice: the demo shows nothing"
    ]


def rows(**states: str) -> Sequence[Action]:
    """As much of rows as a verdict reads."""
    return [cast("Action", SimpleNamespace(tool=tool, state=now)) for tool, now in states.items()]


def sent(*kinds: str, effect: bool = True) -> list[Sent]:
    return [Sent(kind, f"key of {kind}", "{}", effect) for kind in kinds]


def again(kind: str) -> list[Sent]:
    """Something that is done, and is asked for again with its key."""
    return [*sent(kind), *sent(kind, effect=False)]


REFUSED = sent("handover", effect=False)
PLAN_UNDONE = World(
    charges=1,
    mails=0,
    charge_requests=[],
    actions=rows(
        reserve_stock="ok",
        charge_card="ok",
        book_shipment="ok",
        hand_over="error",
        cancel_shipment="ok",
        refund_charge="ok",
        release_stock="ok",
    ),
    run="failed",
    sent=[
        *sent("reservation", "charge"),
        *again("shipment"),
        *REFUSED,
        *sent("cancellation"),
        *again("refund"),
        *sent("release"),
    ],
    undo="compensated",
)
APPROVED = World(
    charges=0,
    mails=0,
    charge_requests=[],
    actions=rows(refund_charge="ok"),
    run="completed",
    sent=sent("refund"),
    approval="approved",
)


ACTED_ONCE = World(
    charges=1,
    mails=1,
    charge_requests=[("order-4821-charge", "{}")] * 2,
    actions=rows(charge_card="ok", send_receipt="unknown"),
    run="completed",
    read={"charge_card": "ok", "send_receipt": "unknown"},
)
ACTED_TWICE = World(
    charges=2,
    mails=2,
    charge_requests=[("a", "{}"), ("b", "{}")],
    actions=[],
    run="completed",
    read={"charge_card": "ok", "send_receipt": "ok"},
)


def named(name: str) -> Scenario:
    return next(one for one in (*SCENARIOS, *INTEGRATIONS) if one.name == name)


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        ({"run": "completed"}, "the run is completed"),
        ({"undo": "partly compensated"}, "the ledger says 'partly compensated'"),
        ({"sent": sent(*DONE, "shipment", *UNDONE)}, "shipment: 2 effects"),
        ({"sent": sent(*DONE, *UNDONE[:2], "refund", "release")}, "refund: 2 effects"),
        ({"sent": sent(*DONE, *UNDONE, "handover")}, "handover: an effect, and it was refused"),
        (
            {"sent": sent(*DONE, "refund", "cancellation", "release")},
            "the order was reservation, charge, shipment, refund, cancellation, release",
        ),
        ({"sent": sent(*DONE, *UNDONE[:2])}, "not undone: reservation"),
        ({"sent": sent(*DONE, *UNDONE)}, "refund: 1 requests"),
        ({"sent": [*PLAN_UNDONE.sent, *sent("mail")]}, "mail: 1 requests"),
        (
            {"sent": [*PLAN_UNDONE.sent, Sent("refund", "another key", "{}")]},
            "refund requests with different keys or bodies",
        ),
        ({"actions": rows(charge_card="ok")}, "rows: [('charge_card', 'ok')]"),
    ],
)
def test_what_must_not_become_of_a_plan_that_failed_is_called_wrong(
    other: dict[str, Any], fault: str
) -> None:
    assert faults(named("plan undone"), PLAN_UNDONE) == []
    assert fault in faults(named("plan undone"), replace(PLAN_UNDONE, **other))


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        ({"run": "running"}, "the run is running"),
        ({"approval": ""}, "no call waited for a person"),
        ({"approval": "expired"}, "the approval is expired"),
        ({"early": 1}, "1 requests before the approval"),
        ({"sent": []}, "refund: 0 effects"),
        ({"sent": sent("refund", "refund")}, "refund: 2 effects"),
        ({"sent": again("refund")}, "refund: 2 requests"),
        ({"actions": rows(refund_charge="unknown")}, "rows: [('refund_charge', 'unknown')]"),
    ],
)
def test_what_must_not_happen_to_a_call_that_waits_for_a_person_is_called_wrong(
    other: dict[str, Any], fault: str
) -> None:
    assert faults(named("approval"), APPROVED) == []
    assert fault in faults(named("approval"), replace(APPROVED, **other))


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        ({"run": "failed"}, "the run is failed"),
        ({"charges": 2}, "2 charges"),
        ({"mails": 2}, "2 mails"),
        ({"mails": 0}, "0 mails"),
        (
            {"read": {"charge_card": "ok", "send_receipt": "ok"}},
            "the model has read {'charge_card': 'ok', 'send_receipt': 'ok'}",
        ),
        (
            {"charge_requests": [("a", "{}"), ("b", "{}")]},
            "charge requests with different keys or bodies",
        ),
        ({"actions": rows(charge_card="ok")}, "rows per call: {'charge_card': 1}"),
    ],
)
def test_what_must_not_become_of_another_frameworks_agent_with_the_plugin_is_called_wrong(
    other: dict[str, Any], fault: str
) -> None:
    assert faults(named("pydantic_ai+ledger"), ACTED_ONCE) == []
    assert fault in faults(named("pydantic_ai+ledger"), replace(ACTED_ONCE, **other))


@pytest.mark.parametrize("other", [{"charges": 1}, {"mails": 1}, {"run": "running"}])
def test_another_frameworks_agent_that_acts_once_without_the_plugin_shows_nothing(
    other: dict[str, Any],
) -> None:
    assert faults(named("openai_agents"), ACTED_TWICE) == []
    assert faults(named("openai_agents"), replace(ACTED_TWICE, **other)) != []


def test_the_table_of_the_frameworks_says_how_often_each_acted_in_80_columns() -> None:
    printed = StringIO()
    results = [
        Result(one, ACTED_ONCE if one.guarded else ACTED_TWICE, 123.4, [], [])
        for one in INTEGRATIONS
    ]

    show(Console(file=printed, width=80), results)

    head, _, *table = printed.getvalue().strip().splitlines()[:6]
    assert [" ".join(row.split()) for row in (head, *table)] == [
        "framework plugin charges requests mails model read run sec acted",
        "OpenAI Agents without 2 2 2 ok, ok completed 123.4 TWICE",
        "OpenAI Agents with 1 2 1 ok, unknown completed 123.4 once",
        "pydantic-ai without 2 2 2 ok, ok completed 123.4 TWICE",
        "pydantic-ai with 1 2 1 ok, unknown completed 123.4 once",
    ]
    assert max(map(len, printed.getvalue().splitlines())) <= 80


def test_a_framework_that_is_not_installed_is_named_with_the_command_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    absent = replace(FRAMEWORKS["openai_agents"], modules=("temporalio.no_such_thing",))
    monkeypatch.setitem(FRAMEWORKS, "openai_agents", absent)
    began: list[str] = []

    with pytest.raises(ConfigurationError) as refused:
        run_demo(of=INTEGRATIONS, doing=began.append)

    assert refused.value.message == (
        "OpenAI Agents for Temporal missing: pip install 'temporalio-openai-agents>=1.1,<2'"
    )
    assert began == []


def test_the_frameworks_are_asked_for_in_the_versions_that_are_tested() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    tested = [Requirement(one) for name in ("integrations-dev", "models") for one in extras[name]]

    for wanted in (Requirement(one.requirement) for one in FRAMEWORKS.values()):
        assert (wanted.name, wanted.specifier) in [(one.name, one.specifier) for one in tested]


@pytest.mark.slow
def test_the_demo_of_the_integrations_acts_twice_without_the_plugin_and_once_with_it(
    temporary: Path,
) -> None:
    demo = subprocess.run(
        [*DEMO, "--integrations", "--json"],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert demo.returncode == 0, demo.stderr
    assert processes_of(temporary) == []
    found = json.loads(demo.stdout)
    shown = ("framework", "guarded", "charges", "mails", "rows", "run")
    read = [(*(one[name] for name in shown), one["read"]["send_receipt"]) for one in found]
    assert read == [
        one
        for framework in ("openai_agents", "pydantic_ai")
        for one in (
            (framework, False, 2, 2, {}, "completed", "ok"),
            (framework, True, 1, 1, {"ok": 1, "unknown": 1}, "completed", "unknown"),
        )
    ]


def test_an_unknown_scenario_is_refused_and_the_known_ones_are_named() -> None:
    refused = subprocess.run(
        [*DEMO, "--scenario", "nonsense"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert refused.returncode == 2
    assert "after_effect@charge_card" in refused.stderr

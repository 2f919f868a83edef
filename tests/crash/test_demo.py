"""The demo's own promises: what it counts, what it calls wrong, what it leaves behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from commitline.testing.demo import SCENARIOS, Scenario, World, faults, run_demo

DEMO = [sys.executable, "-m", "commitline.cli", "demo"]


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


def test_guarded_the_customer_pays_once_and_on_plain_temporal_twice(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    guarded, baseline = run_demo(["after_effect@charge_card", "baseline"])

    found = guarded.as_json()
    assert guarded.faults == []
    assert (found["charges"], found["requests"], found["run"]) == (1, 2, "completed")
    assert sum(found["rows"].values()) == 2
    assert len({key for key, _ in guarded.world.charge_requests}) == 1
    found = baseline.as_json()
    assert baseline.faults == []
    assert (found["charges"], found["requests"], found["run"]) == (2, 2, "completed")
    assert (found["guarded"], found["rows"]) == (False, {})
    assert processes_of(temporary) == []
    assert list(temporary.glob("commitline-*")) == []


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


def test_there_is_a_scenario_for_every_crash_point_and_a_baseline() -> None:
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


def test_an_unknown_scenario_is_refused_and_the_known_ones_are_named() -> None:
    refused = subprocess.run(
        [*DEMO, "--scenario", "nonsense"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert refused.returncode == 2
    assert "after_effect@charge_card" in refused.stderr

"""The benches start, measure something, and print nothing else on stdout: they rot unseen."""

from __future__ import annotations

import importlib
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCHES = sorted(
    path.stem
    for path in (ROOT / "bench").glob("*.py")
    if 'if __name__ == "__main__"' in path.read_text(encoding="utf-8")
)
TINY: dict[str, tuple[list[str], str]] = {
    "start": (["--rounds", "1"], "worker_seconds"),
    "ledger": (["--rounds", "2"], "ratio"),
    "turns": (["--rounds", "1", "--small"], "ratio"),
    "history": (["--turns", "1", "2"], "history_bytes"),
    "recovery": (["--runs", "1"], "recovery_seconds"),
    "integrations": (["--rounds", "1", "--calls", "2"], "ratio"),
    "traces": (["--rounds", "1"], "spans"),
    "scale": (["--actions", "10000"], "queries"),
}
"""The arguments that make a bench short, and a name of what it finds."""


def test_every_bench_is_run_by_make_and_tried_here() -> None:
    recipes = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nbench:")[2]

    assert [name for name in BENCHES if name not in recipes or name not in TINY] == []


@pytest.mark.parametrize("name", BENCHES)
def test_a_bench_can_be_imported_and_says_what_it_takes(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = importlib.import_module(f"commitline.bench.{name}")
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])

    with pytest.raises(SystemExit) as ended:
        bench.main()

    assert ended.value.code == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHES)
def test_a_bench_measures_and_prints_nothing_but_its_result(name: str) -> None:
    arguments, figure = TINY[name]

    done = subprocess.run(
        [sys.executable, f"bench/{name}.py", *arguments, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode in (0, 1), done.stderr  # 1: a figure is beyond its limit
    found: Any = json.loads(done.stdout)
    assert figure in (found[0] if isinstance(found, list) else found)
    if table := runpy.run_path(str(ROOT / "docs/reference/make_cost.py")).get(f"{name}_table"):
        assert len([*table(found)]) > 2  # the page on costs is made of it

"""The examples of other frameworks' agents, as their readers run them: one command each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from commitline.devstack import DevStack
from commitline.tests.integration.test_cli import environment


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("openai_agents", "4821"),
        pytest.param("pydantic_ai", "4822", marks=pytest.mark.slow),
        pytest.param("langgraph", "4823", marks=pytest.mark.slow),
    ],
)
def test_an_example_charges_and_mails_by_its_own_command(
    name: str, order: str, devstack: DevStack, database_url: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"commitline.examples.{name}"],
        cwd=tmp_path,
        env=environment(
            TEMPORAL_ADDRESS=devstack.temporal_address, COMMITLINE_DATABASE_URL=database_url
        ),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    told, look = done.stdout.splitlines()
    assert told == f"charged 4900 cents under the key order-{order}-charge; mailed ada@example.com"
    assert look.startswith("Look: commitline actions list --run ")

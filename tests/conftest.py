"""Fixtures for every test, the order of the files, and a clean end of the process."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from commitline.process import leave

# The commands and workers that tests start import the package anew; an environment that forbids
# bytecode would have each of them compile it anew too, which is a third of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

pytest_plugins = ["commitline.testing.fixtures"]

_STATUS = pytest.StashKey[int]()
_TESTS: Final = Path(__file__).parent

_LONGEST_FIRST: Final[Sequence[str]] = (
    "crash/test_drill.py",
    "crash/test_soak.py",
    "integration/test_fuzz.py",
    "integration/runs/test_deadlines.py",
    "integration/test_cli.py",
    "crash/test_threads_crash.py",
    "integration/runs/test_references.py",
    "crash/test_replay_of_plans.py",
    "integration/runs/test_reset_and_fork.py",
    "crash/test_demo.py",
    "crash/test_sub_agents_crash.py",
    "integration/test_cli_operators.py",
    "integration/test_cli_threads.py",
    "crash/test_ledger_away.py",
    "integration/ledger/test_threads_property.py",
    "integration/test_devstack.py",
    "integration/runs/test_undo.py",
    "integration/runs/test_hostile_tools.py",
    "crash/test_deploys.py",
    "integration/runs/test_threads.py",
    "crash/test_fencing.py",
    "integration/runs/test_stop.py",
    "integration/test_cli_relay.py",
    "integration/runs/test_sub_agents.py",
    "integration/runs/test_relay_sends.py",
    "integration/runs/test_relay_gone.py",
    "integration/runs/test_plans.py",
    "integration/runs/test_removed_tools.py",
    "integration/runs/test_long_runs.py",
    "integration/runs/test_forgotten_runs.py",
    "crash/test_crash_windows.py",
    "integration/runs/test_attempts.py",
    "integration/ledger/test_claims_property.py",
    "integration/runs/test_thread_requests.py",
    "crash/test_worker_process.py",
    "integration/test_provider_ids.py",
    "integration/runs/test_guard_for_any_activity.py",
    "integration/runs/test_client.py",
    "integration/runs/test_agent_run.py",
    "integration/runs/test_identity_in_runs.py",
    "replay/test_replay.py",
    "migration/test_migrations.py",
)
"""The files that take longest; those that compute are placed between those that wait.

pytest-xdist gives whole files to its processes. A long file at the end would keep one process busy
while the others have nothing left to do. The order needs ``--no-loadscope-reorder``, without which
xdist begins with the files that have the most tests.
"""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(_LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path.relative_to(_TESTS).as_posix(), len(places)))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[_STATUS] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End as our commands do: an abort after the last test must not fail a green run."""
    if _STATUS in config.stash:
        leave(config.stash[_STATUS])

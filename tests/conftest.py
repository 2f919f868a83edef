"""Fixtures for every test, the order of the files, and a clean end of the process."""

import os
import sys
from collections.abc import Sequence
from typing import Final

import pytest

from commitline.process import leave

# The commands and workers that tests start import the package anew; an environment that forbids
# bytecode would have each of them compile it anew too, which is a third of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

pytest_plugins = ["commitline.testing.fixtures"]

_STATUS = pytest.StashKey[int]()

_LONGEST_FIRST: Final[Sequence[str]] = (
    "test_soak.py",
    "test_deadlines.py",
    "test_long_runs.py",
    "test_cli.py",
    "test_threads_crash.py",
    "test_references.py",
    "test_replay_of_plans.py",
    "test_reset_and_fork.py",
    "test_demo.py",
    "test_cli_threads.py",
    "test_ledger_away.py",
    "test_thread_ledger_property.py",
    "test_devstack.py",
    "test_undo.py",
    "test_hostile_tools.py",
    "test_deploys.py",
    "test_threads.py",
    "test_fencing.py",
    "test_stop.py",
    "test_cli_relay.py",
    "test_sub_agents.py",
    "test_relay_sends.py",
    "test_relay_gone.py",
    "test_plans.py",
    "test_removed_tools.py",
    "test_crash_windows.py",
    "test_attempts.py",
    "test_ledger_property.py",
    "test_thread_requests.py",
    "test_worker_process.py",
    "test_provider_ids.py",
    "test_guard_for_any_activity.py",
    "test_client.py",
    "test_agent_run.py",
    "test_identity_in_runs.py",
    "test_replay.py",
    "test_migrations.py",
)
"""The files that take longest, those that compute among those that wait. A process is given whole
files: one of these at the end would have it work alone, while the others have nothing left to do.
It needs ``--no-loadscope-reorder``: xdist would begin with those that have the most tests."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(_LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[_STATUS] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End as our commands do: an abort after the last test must not fail a green run."""
    if _STATUS in config.stash:
        leave(config.stash[_STATUS])

"""Two minutes of runs while workers, Postgres, the ways to it and the provider fail at random."""

from typing import Final

import pytest

from commitline.testing.soak.stage import Result, run_soak

SECONDS: Final = 120
"""All in all, the calm at the end included."""
SEED: Final = 20260


@pytest.fixture(scope="module")
def soaked() -> Result:
    """What a soak came to. It has servers of its own, as it restarts them."""
    print(f"again: python -m commitline.testing.soak --seconds {SECONDS} --seed {SEED}")
    return run_soak(seconds=SECONDS, seed=SEED, told=print)


def test_world_ledger_and_model_agree_after_everything_has_failed(soaked: Result) -> None:
    print(f"seed {SEED}:", *soaked.violations, sep="\n")

    assert not soaked.violations


def test_enough_has_failed_for_them_to_disagree(soaked: Result) -> None:
    assert soaked.runs["completed"] >= 20
    assert sum(soaked.faults.values()) >= 20
    assert sum(soaked.provider_faults.values()) >= 50
    assert soaked.events["ledger.action_taken_over"] >= 5
    assert soaked.actions["at_most_once", "unknown"] >= 1

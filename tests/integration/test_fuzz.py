"""Half a minute of the fuzz: twenty actors on one ledger, a few seconds of each theme.

`make fuzz` plays it for twenty minutes. What it has found is in the tests of the ledger, arranged.
"""

from __future__ import annotations

from typing import Any, Final, LiteralString

import pytest

from commitline.devstack import DevStack
from commitline.tests.fuzz.mutants import MUTANTS, Mutant
from commitline.tests.fuzz.report import told
from commitline.tests.fuzz.stage import Round, play_round
from commitline.tests.fuzz.tools import THEMES

SECONDS: Final = 3.2
SEED: Final = 2026
_SLOW_ROUNDS: Final = 12
"""After which a broken ledger must have been seen."""


@pytest.mark.parametrize("theme", range(len(THEMES)))
def test_the_promises_hold_and_no_row_is_left_without_an_exit(
    devstack: DevStack, database_template: str, theme: int
) -> None:
    played = play(devstack, database_template, f"{SEED}-{theme}", theme=theme)

    assert played.counts["claim: Dispatched"] > 0
    assert not played.violations, told(played)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_ledger_that_is_broken_is_seen(
    devstack: DevStack, database_template: str, monkeypatch: pytest.MonkeyPatch, mutant: Mutant
) -> None:
    mutant.apply(monkeypatch)
    given: dict[str, Any] = {"theme": mutant.theme, "seconds": 10, "broken": mutant.broken}
    rounds = (
        play(devstack, database_template, f"{mutant.name}-{at}", **given)
        for at in range(_SLOW_ROUNDS)
    )

    # A statement that Postgres refuses is seen in any round, and proves nothing.
    found = (one for played in rounds for one in played.violations)
    assert any("StatementRefused" not in one.text for one in found)


def play(
    devstack: DevStack,
    template: str,
    seed: str,
    *,
    theme: int,
    seconds: float = SECONDS,
    broken: LiteralString = "",
) -> Round:
    """Play one round on the session's server."""
    server = devstack.database_url
    return play_round(server, template, THEMES[theme], seed=seed, seconds=seconds, broken=broken)

"""A soak ends in a verdict: what its actors meet is counted, or is a violation."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from commitline.errors import ConfigurationError, IntentRefused
from commitline.identity import RunKey
from commitline.tests.soak.__main__ import conclude
from commitline.tests.soak.counted import Violation
from commitline.tests.soak.result import CannotLook, Result
from commitline.tests.soak.unforeseen import Unforeseen
from commitline.tests.soak.verdict import Aftermath, RunSeen


def result(*violations: Violation) -> Result:
    counts: Counter[str] = Counter()
    return Result(
        seed=7,
        seconds=60.0,
        settled_in=1.0,
        runs=Counter(completed=3),
        talks=counts,
        plans=counts,
        undos=counts,
        people=counts,
        outbox=counts,
        actions=Counter(),
        local=counts,
        faults=counts,
        provider_faults=counts,
        exits=Counter(),
        events=counts,
        violations=violations,
    )


GOOD, BAD = result(), result(Violation("a run", "", "it happened twice"))


def unreadable() -> Result:
    raise CannotLook(BAD, OSError("the server is gone"))


def without_servers() -> Result:
    raise ConfigurationError("no servers")


@pytest.mark.parametrize(
    ("play", "status", "counted", "why"),
    [
        (lambda: GOOD, 0, GOOD, ""),
        (lambda: BAD, 1, BAD, ""),
        (unreadable, 2, BAD, "could not be read: OSError: the server is gone"),
        (without_servers, 2, None, "no servers"),
    ],
    ids=["as promised", "a promise is broken", "it could not look", "it never began"],
)
def test_a_soak_ends_with_its_verdict_and_what_it_has_counted(
    play: Callable[[], Result], status: int, counted: Result | None, why: str
) -> None:
    played = conclude(play)

    assert (played.status, played.result) == (status, counted)
    assert why in played.why


@pytest.mark.parametrize(
    ("failure", "found"), [("no time is left [NODE_TIMEOUT_001]", False), ("it broke", True)]
)
def test_a_run_that_nobody_ended_may_fail_at_its_deadline_and_for_nothing_else(
    failure: str, found: bool
) -> None:
    run = RunSeen("soak-1", RunKey("soak-1/e1"), "failed", failure, "ended", False, ())

    assert bool(Aftermath([run], [], []).violations()) is found


def test_what_an_actor_meets_and_nobody_foresaw_is_a_violation_and_it_goes_on() -> None:
    unforeseen = Unforeseen()

    with unforeseen.noted("outbox"):
        raise IntentRefused("no")
    with unforeseen.noted("people"):
        raise ExceptionGroup("two", [ValueError("one"), ExceptionGroup("in it", [KeyError("two")])])
    with unforeseen.noted("load"):
        pass

    found = [str(one) for one in unforeseen.violations]
    assert [one.partition(" at ")[0] for one in found] == [
        f"outbox: met IntentRefused: {IntentRefused('no')}",
        "people: met ValueError: one",
        "people: met KeyError: 'two'",
    ]


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt])
def test_who_ends_the_soak_ends_it(error: type[BaseException]) -> None:
    unforeseen = Unforeseen()

    with pytest.raises(error), unforeseen.noted("outbox"):
        raise error

    assert unforeseen.violations == []

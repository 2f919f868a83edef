"""Ways to break the ledger, each of which the fuzz must see.

A mutant takes one thing out: a condition, a lock, a step of what follows from an outcome. Some that
a reader would expect are not here, since another thing in the ledger does the same: the index of
live undos, say, is the second of two locks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import pytest

from commitline.ledger import Action, ActionRequest, Outcome, claim, claim_rules, outcome
from commitline.ledger.claim_rules import Verdict
from commitline.ledger.outcome_rules import judge_settlement
from commitline.ledger.sql import QUERIES

_NOTHING: Final = "select key from agent_actions where false and %(key)s is null"
_NOTHING_OF_MANY: Final = "select key from agent_actions where false and %(keys)s is null"


@dataclass(frozen=True)
class Mutant:
    """One way to break it."""

    name: str
    theme: int
    """Of the round in which it shows."""
    apply: Callable[[pytest.MonkeyPatch], None]


def _query(name: str, *changes: tuple[str, str]) -> Callable[[pytest.MonkeyPatch], None]:
    """Change a named query; with one text only, that is the query."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        text = QUERIES[name]
        for old, new in changes:
            assert old in text, f"{name} has no {old!r} any more"
            text = text.replace(old, new)
        patch.setitem(QUERIES, name, text)

    return apply


def _no(name: str, nothing: str = _NOTHING) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setitem(QUERIES, name, nothing)


def _settle_any_time(patch: pytest.MonkeyPatch) -> None:
    def judge(key: Any, found: Action | None, word: Outcome) -> Action:
        over = None if found is None else replace(found, lease_until=None, sent_until=None)
        return judge_settlement(key, over, word)

    patch.setattr(outcome, "judge_settlement", judge)


def _send_anything_again(patch: pytest.MonkeyPatch) -> None:
    rule = claim_rules.take_over

    def take_over(found: Action, **given: Any) -> Verdict:
        verdict = rule(found, **given)
        return Verdict.TAKE_OVER if verdict is Verdict.PARK else verdict

    patch.setattr(claim_rules, "take_over", take_over)
    patch.setattr(claim, "take_over", take_over)


def _believe_a_lookup_at_once(patch: pytest.MonkeyPatch) -> None:
    def settles_in(found: Action, request: ActionRequest) -> timedelta:
        return timedelta()

    patch.setattr(claim, "settles_in", settles_in)


MUTANTS: Final = (
    Mutant("send-anything-again", 1, _send_anything_again),
    Mutant("believe-a-lookup-at-once", 1, _believe_a_lookup_at_once),
    Mutant("settle-at-any-time", 0, _settle_any_time),
    Mutant("do-not-release", 0, _no("release_domain_key")),
    Mutant("do-not-undo-repeats", 0, _no("mark_repeats_undone", _NOTHING_OF_MANY)),
    Mutant("do-not-queue-late-undos", 2, _no("relay_undo")),
)

"""Ways to break the ledger, each of which the fuzz must see.

A mutant takes one thing out: a condition, a lock, a step of what follows from an outcome. Those are
here that show within a minute or two on a busy machine. Others need luck, or show never, since
another thing in the ledger does the same: the index of live undos is the second of two locks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import pytest

from commitline.ledger import Action, ActionRequest, Attempt, claim, claim_facts, claim_rules
from commitline.ledger.claim_rules import Verdict
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


def _query(name: str, text: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Replace a named query."""
    return lambda patch: patch.setitem(QUERIES, name, text)


def _send_anything_again(patch: pytest.MonkeyPatch) -> None:
    rule = claim_rules.take_over

    def take_over(found: Action, request: ActionRequest, attempt: Attempt) -> Verdict:
        verdict = rule(found, request, attempt)
        return Verdict.TAKE_OVER if verdict is Verdict.PARK else verdict

    patch.setattr(claim_rules, "take_over", take_over)
    patch.setattr(claim, "take_over", take_over)


def _believe_a_lookup_at_once(patch: pytest.MonkeyPatch) -> None:
    def settles_in(found: Action, request: ActionRequest, attempt: Attempt) -> timedelta:
        return timedelta()

    patch.setattr(claim, "settles_in", settles_in)


def _let_every_undo_go(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim_facts, "judge_undo", lambda *rows: None)


_UNLOCKED_FACT: Final = """
with made as (
    insert into agent_domain_keys (domain_key, generation, held_by)
    values (%(domain_key)s, 0, null)
    on conflict (domain_key) do nothing
    returning domain_key, generation, held_by, undone_by
)
select * from made
union all
select domain_key, generation, held_by, undone_by from agent_domain_keys
 where domain_key = %(domain_key)s
 limit 1"""

MUTANTS: Final = (
    Mutant("send-anything-again", 1, _send_anything_again),
    Mutant("believe-a-lookup-at-once", 2, _believe_a_lookup_at_once),
    Mutant("let-every-undo-go", 0, _let_every_undo_go),
    Mutant("lock-no-business-fact", 0, _query("lock_domain_key", _UNLOCKED_FACT)),
    Mutant("do-not-release", 0, _query("release_domain_key", _NOTHING)),
    Mutant("do-not-undo-repeats", 0, _query("mark_repeats_undone", _NOTHING_OF_MANY)),
)

"""Ways to break the ledger, each of which the fuzz must see.

A mutant takes one thing out: a condition, a lock, a step of what follows from an outcome. Where the
ledger holds something twice, it takes both out: the index of live undos is the second of two locks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, LiteralString

import pytest

from commitline.ledger import Action, ActionRequest, Attempt, claim, claim_facts, claim_rules
from commitline.ledger.claim_rules import Standing, Verdict
from commitline.ledger.sql import QUERIES

_NOTHING: Final = "select key from agent_actions where false and %(key)s::text is null"
_NOTHING_OF_RUN: Final = "select key from agent_actions where false and %(run_key)s::text is null"
_NOTHING_OF_MANY: Final = "select key from agent_actions where false and %(keys)s::text[] is null"


@dataclass(frozen=True)
class Mutant:
    """One way to break it."""

    name: str
    theme: int
    """Of the round in which it shows."""
    apply: Callable[[pytest.MonkeyPatch], None] = lambda patch: None
    broken: LiteralString = ""
    """Statements that break the database."""


def _changed(*changes: tuple[str, str, str]) -> Callable[[pytest.MonkeyPatch], None]:
    """Change named queries: in which one, what is changed, and to what."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        for name, part, by in changes:
            assert part in QUERIES[name], f"{name} does not say {part!r}"
            patch.setitem(QUERIES, name, QUERIES[name].replace(part, by))

    return apply


def _query(name: str, text: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Replace a named query."""
    return lambda patch: patch.setitem(QUERIES, name, text)


def _never_queue_an_undo(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(QUERIES, "relay_undo", _NOTHING)
    patch.setitem(QUERIES, "queue_lost_undos", _NOTHING_OF_RUN)


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


def _send_two_undos(patch: pytest.MonkeyPatch) -> None:
    rule = claim_rules.judge_undo
    patch.setattr(claim_facts, "judge_undo", lambda undone, live: rule(undone, None))


def _take_every_fact_for_standing(patch: pytest.MonkeyPatch) -> None:
    async def standing(claimant: object, holder: Action) -> Standing:
        return Standing.STANDS

    patch.setattr(claim._Claimant, "_standing", standing)


def _take_every_key_for_known(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Action, "key_forgotten", lambda row, attempt=None: False)


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
    Mutant(
        "do-not-lock-the-run",
        4,
        _changed(("claim_new", "for share", ""), ("lock_run", "for share", "")),
    ),
    Mutant(
        "record-without-the-claim",
        1,
        _changed(("record", "claim_token = %(token)s", "%(token)s::uuid is not null")),
    ),
    Mutant("send-two-undos", 0, _send_two_undos, "drop index agent_actions_one_live_undo"),
    Mutant(
        "forget-what-is-unknown",
        1,
        _changed(
            ("claim_new", "is not null or not exists", "is not null or true or not exists"),
            ("open_unknown", "where ", "where false and "),
        ),
    ),
    Mutant(
        "forget-what-is-tried-again",
        3,
        _changed(
            (
                "open_unknown",
                "(parked_at is not null or reopened_at is not null)",
                "parked_at is not null",
            )
        ),
    ),
    Mutant("let-sub-agents-go-on", 3, _query("stop_sub_runs", _NOTHING_OF_RUN)),
    Mutant(
        "let-any-workflow-claim",
        3,
        _changed(("claim_new", "and (owner is null or owner = %(owner)s)", "")),
    ),
    Mutant("do-not-undo-late-successes", 2, _never_queue_an_undo),
    Mutant("do-not-find-lost-undos", 2, _query("queue_lost_undos", _NOTHING_OF_RUN)),
    Mutant("take-every-fact-for-standing", 0, _take_every_fact_for_standing),
    Mutant("leave-what-a-run-leaves", 1, _query("park_left_over", _NOTHING_OF_RUN)),
    Mutant("take-every-key-for-known", 1, _take_every_key_for_known),
    Mutant("decide-twice", 2, _changed(("decide", "and decision is null", ""))),
    Mutant("answer-twice", 2, _changed(("answer", "and answered_at is null", ""))),
)

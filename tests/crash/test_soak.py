"""A minute of runs, plans and intents while workers, Postgres and the provider fail at random."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import pytest

from commitline.activities.contract.conversation import Completion, Message, RunResult, ToolResult
from commitline.activities.contract.encoding import to_text
from commitline.activities.model.scripted_model import call, say
from commitline.errors import NodeTimeout
from commitline.identity import RunKey
from commitline.ledger import StoredMessage
from commitline.tests.soak.conversations import malformed
from commitline.tests.soak.result import Result
from commitline.tests.soak.stage import run_soak
from commitline.tests.soak.verdict import Aftermath, RunSeen, TalkSeen

SECONDS: Final = 60
"""All in all, the calm at the end included. `make soak` is the long one."""
SEED: Final = 20260


@pytest.fixture(scope="module")
def soaked() -> Result:
    """What a soak came to. It has servers of its own, as it restarts them."""
    print(f"again: python -m commitline.tests.soak --seconds {SECONDS} --seed {SEED}")
    return run_soak(seconds=SECONDS, seed=SEED, progress=print)


def test_world_ledger_and_model_agree_after_everything_has_failed(soaked: Result) -> None:
    print(f"seed {SEED}:", *soaked.violations, sep="\n")

    assert not soaked.violations


def test_enough_has_failed_for_them_to_disagree(soaked: Result) -> None:
    # Well below what this seed brings about on an idle machine, so that a busy one passes too.
    assert soaked.runs["completed"] >= 3
    assert sum(soaked.faults.values()) >= 8
    assert sum(soaked.provider_faults.values()) >= 5
    assert soaked.talks["requests"] >= 2
    assert soaked.plans.total() >= 2
    assert soaked.outbox["committed"] >= 3
    assert soaked.local.total() >= 2
    # Each of these is a matter of chance in so short a time, and most of them happen.
    rare = {
        "taken over": soaked.events["ledger.action_taken_over"],
        "parked": soaked.events["ledger.action_parked"],
        "sent again": soaked.talks["sent again"],
        "runs lost": soaked.talks["runs lost"],
        "undone": soaked.undos["actions undone"],
        "compensated": soaked.undos["compensated"],
        "approved": soaked.people["approved"],
        "rolled back": soaked.outbox["rolled back"],
    }
    assert sum(count > 0 for count in rare.values()) >= 4, rare


# --- what the verdict finds


def _stored(version: int, ordinal: int, message: Message, request: str | None) -> StoredMessage:
    step = version - 1
    at = datetime(2026, 1, 1, tzinfo=UTC)
    key = RunKey("thread:talk/1")
    return StoredMessage(
        version, ordinal, message.role, to_text(message), key, step, 0, request, at
    )


def _said(completion: Completion) -> Message:
    return Message.assistant(completion)


_LOOK: Final = call(("look", {}), ("look", {}), ids=["a", "b"])
_TOLD: Final = [ToolResult(f"0.{at}", "ab"[at], "look", "ok", "1") for at in range(2)]
_GOOD: Final = [
    _stored(1, 0, Message.user("Look."), "r1"),
    _stored(1, 1, _said(_LOOK), None),
    _stored(2, 0, Message.tool(_TOLD), None),
    _stored(2, 1, _said(say("done")), None),
]
_BAD: Final = {
    "no result": [*_GOOD[:2], replace(_GOOD[3], ordinal=0)],
    "one result only": [*_GOOD[:2], _stored(2, 0, Message.tool(_TOLD[:1]), None), _GOOD[3]],
    "another order": [*_GOOD[:2], _stored(2, 0, Message.tool(_TOLD[::-1]), None), _GOOD[3]],
    "results without calls": [*_GOOD, _stored(3, 0, Message.tool(_TOLD), None)],
    "no results at the end": _GOOD[:2],
    "a hole between versions": [*_GOOD[:2], *(replace(one, version=3) for one in _GOOD[2:])],
    "a hole in a version": [*_GOOD[:3], replace(_GOOD[3], ordinal=2)],
    "no beginning": _GOOD[2:],
    "a turn twice": [*_GOOD, replace(_GOOD[3], version=3, ordinal=0)],
    "a request twice": [*_GOOD, _stored(3, 0, Message.user("Look."), "r1")],
}


@pytest.mark.parametrize("stored", [[], _GOOD])
def test_a_conversation_that_is_whole_is_called_so(stored: Sequence[StoredMessage]) -> None:
    assert malformed(stored) == []


@pytest.mark.parametrize("stored", _BAD.values(), ids=_BAD)
def test_what_a_conversation_must_not_be_is_called_wrong(stored: Sequence[StoredMessage]) -> None:
    assert malformed(stored)


def test_calls_without_results_at_the_end_of_a_lost_run_are_no_fault() -> None:
    assert malformed(_GOOD[:2], torn=True) == []


@pytest.mark.parametrize(("state", "wrong"), [("failed", False), ("completed", True)])
def test_a_run_that_failed_in_a_turn_has_told_its_model_nothing_more(
    state: str, wrong: bool
) -> None:
    failure = f"{NodeTimeout.code}: no time is left for a model request"
    run = RunSeen("soak-1", RunKey("soak-1/e1"), state, failure, "ended", False, _GOOD[:2])
    found = [str(one) for one in Aftermath([run], [], []).violations()]

    assert any("have the results []" in one for one in found) is wrong


_REPLY: Final = RunResult("done", 2)
_TALK: Final = TalkSeen("talk", 2, _GOOD, {"r1": [_REPLY, _REPLY]}, {"r1": _REPLY})


@pytest.mark.parametrize(
    ("talk", "text"),
    [
        (replace(_TALK, replies={"r1": [_REPLY, RunResult("no", 2)]}), "was answered"),
        (replace(_TALK, replies={"r1": [None]}, kept={"r1": None}), "was answered"),
        (replace(_TALK, kept={"r1": RunResult("no", 2)}), "was answered"),
        (replace(_TALK, replies={"r2": [_REPLY]}, kept={"r2": _REPLY}), "is not there"),
        (replace(_TALK, version=3), "is at version 3"),
        (replace(_TALK, stored=[*_GOOD[:2], replace(_GOOD[3], ordinal=0)]), "have the results"),
    ],
)
def test_what_must_not_become_of_a_request_is_called_wrong(talk: TalkSeen, text: str) -> None:
    found = [str(one) for one in Aftermath([], [], [], [talk]).violations()]

    assert Aftermath([], [], [], [_TALK]).violations() == []
    assert any(text in one for one in found)

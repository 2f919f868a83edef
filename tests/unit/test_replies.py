"""What the model is told: one of three statuses, made of what is recorded and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from commitline.activities.contract.reply import Reply
from commitline.activities.replies import call_reply, notices
from commitline.activities.replies.reply_content import content_text
from commitline.errors import IdempotencyKeyConflict, InvalidArguments
from commitline.identity import ActionKey, RunKey
from commitline.ledger import Action, Effect, Outcome
from commitline.tests.builders import action_row

KEY = "support/1:0.0"
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def parked(*, duplicate_of: str | None = None) -> Action:
    return action_row(
        RunKey("support/1"),
        "0.0",
        NOW,
        effect=Effect.AT_MOST_ONCE,
        idempotency_key="cl_x",
        requested_digest="",
        effective_digest="",
        tries=1,
        parked_at=NOW,
        parked_reason="timed out",
        duplicate_of=None if duplicate_of is None else ActionKey(duplicate_of),
    )


def test_a_result_is_told_as_it_is() -> None:
    assert call_reply.done(KEY, Outcome.ok('{"id":"c1"}')) == Reply("ok", {"id": "c1"}, KEY)


def test_nothing_is_a_result_like_any_other() -> None:
    told = [call_reply.done(KEY, Outcome.ok(text)) for text in ("null", '""', "[]")]

    assert [(reply.status, content_text(reply)) for reply in told] == [
        ("ok", "null"),
        ("ok", '""'),
        ("ok", "[]"),
    ]


def test_a_receipt_of_another_action_is_marked_as_existing() -> None:
    reply = call_reply.done(KEY, Outcome.ok('{"id":"c1"}'), duplicate_of="other/1:2.0")

    assert reply == Reply(
        "ok",
        {
            "existing": True,
            "action": "other/1:2.0",
            "note": "This had already been done by that action; it was not done again.",
            "result": {"id": "c1"},
        },
        KEY,
        existing=True,
    )


def test_an_error_says_whether_its_effect_happened() -> None:
    declined = Outcome.error(kind="ToolRefused", message="declined", effect_possible=False)
    odd = Outcome.error(kind="UnrepresentableResult", message="a file", effect_possible=True)

    assert call_reply.done(KEY, declined) == Reply(
        "error",
        {"error": {"type": "ToolRefused", "message": "declined", "effect": "none"}},
        KEY,
        effect_possible=False,
    )
    assert call_reply.done(KEY, odd) == Reply(
        "error",
        {"error": {"type": "UnrepresentableResult", "message": "a file", "effect": "happened"}},
        KEY,
        effect_possible=True,
    )


def test_an_error_of_another_action_is_marked_as_existing() -> None:
    odd = Outcome.error(kind="UnrepresentableResult", message="a file", effect_possible=True)

    reply = call_reply.done(KEY, odd, duplicate_of="other/1:2.0")

    assert (reply.status, reply.existing, reply.effect_possible) == ("error", True, True)
    assert reply.content["error"]["existing_action"] == "other/1:2.0"


def test_an_unknown_says_why_and_who_settles_it() -> None:
    assert call_reply.unknown(parked()) == Reply(
        "unknown",
        {
            "unknown": {
                "message": "This may or may not have happened. Do not assume either.",
                "reason": "timed out",
                "action": KEY,
                "settled_by": "an operator, who looks at the downstream system",
                "asking_again": "will not repeat it while this is unknown",
            }
        },
        KEY,
    )


def test_an_unknown_of_another_action_names_that_one() -> None:
    reply = call_reply.unknown(parked(duplicate_of="other/1:2.0"))

    assert reply.content["unknown"]["action"] == "other/1:2.0"
    assert reply.action_key == KEY


def test_a_refused_call_had_no_effect() -> None:
    assert call_reply.refused(InvalidArguments("charge: cents: too many")) == Reply(
        "error",
        {
            "error": {
                "type": "InvalidArguments",
                "message": "charge: cents: too many",
                "effect": "none",
            }
        },
        effect_possible=False,
    )


def test_a_conflict_says_that_the_existing_action_stands() -> None:
    reply = call_reply.refused(IdempotencyKeyConflict("used for 4900", existing="a/1:0.0"), key=KEY)

    assert reply == Reply(
        "error",
        {
            "error": {
                "type": "IdempotencyKeyConflict",
                "message": "used for 4900",
                "effect": "none",
                "existing_action": "a/1:0.0",
                "existing_action_stands": True,
            }
        },
        KEY,
        effect_possible=False,
    )


def test_a_call_that_was_not_run_has_no_row() -> None:
    assert call_reply.not_run("UnknownTool", "there is no tool 'refnd'") == Reply(
        "error",
        {
            "error": {
                "type": "UnknownTool",
                "message": "there is no tool 'refnd'",
                "effect": "none",
            }
        },
        effect_possible=False,
    )


def test_a_result_over_the_limit_is_told_in_part_and_says_so() -> None:
    whole = json.dumps("x" * 300_000)

    reply = call_reply.done(KEY, Outcome.ok(whole))

    assert reply.status == "ok"
    assert reply.content == {
        "truncated": True,
        "characters": 300_002,
        "whole_value": f"in the ledger, as the result of {KEY}",
        "head": whole[:8_000],
    }


def test_a_large_receipt_of_another_action_says_whose_row_has_the_whole() -> None:
    reply = call_reply.done(KEY, Outcome.ok(json.dumps("x" * 300_000)), duplicate_of="other/1:2.0")

    assert reply.content["result"]["whole_value"] == ("in the ledger, as the result of other/1:2.0")


def test_a_large_result_that_has_no_key_is_told_in_part_and_kept_nowhere() -> None:
    reply = call_reply.done(None, Outcome.ok(json.dumps("x" * 300_000)))

    assert reply.content["whole_value"] == "not kept"


def test_the_text_that_the_model_reads_is_ascii() -> None:
    reply = call_reply.done(KEY, Outcome.ok('"\\ud83d caf\\u00e9"'))

    assert content_text(reply) == '"\\ud83d caf\\u00e9"'


def relayed(**changes: Any) -> Action:
    intent = replace(parked(), parked_at=None, parked_reason=None, relayed=True, tries=0)
    return replace(intent, **changes)


DONE: dict[str, Any] = {
    "status": "done",
    "outcome": "ok",
    "effect_possible": True,
    "result": '"a receipt"',
    "done_at": NOW,
}
DECLINED: dict[str, Any] = {
    **DONE,
    "outcome": "error",
    "effect_possible": False,
    "result": '{"type":"Declined","message":"no"}',
}


def test_what_is_accepted_cannot_be_taken_for_done_and_is_told_alike_whatever_became_of_it() -> (
    None
):
    reply = call_reply.accepted(relayed())

    assert reply.content["accepted"] is True
    assert reply.content["state"] == "pending"
    assert reply.content["action"] == KEY
    assert reply.content["note"].startswith("NOT done yet")
    assert (reply.status, reply.accepted, reply.existing) == ("ok", True, False)
    assert call_reply.accepted(relayed(**DONE)) == reply
    assert call_reply.accepted(relayed(), own=False).existing is True
    assert (
        call_reply.of_action(relayed()) == reply
    )  # where another run goes on with the conversation
    assert call_reply.of_action(relayed(**DONE)).content == "a receipt"


def test_the_state_of_an_action_is_told_by_its_row() -> None:
    about = {"action": KEY, "tool": "charge"}

    assert call_reply.action_state(relayed()) == {
        **about,
        "state": "pending",
        "note": "NOT done yet. It may still fail.",
    }
    assert call_reply.action_state(relayed(**DONE)) == {
        **about,
        "state": "ok",
        "result": "a receipt",
    }
    error = call_reply.action_state(relayed(**DECLINED))
    assert (error["state"], error["error"]["effect"]) == ("error", "none")
    undone = call_reply.action_state(relayed(**DONE, undone_by=f"{KEY}-undo"))
    assert undone["state"] == "undone"
    assert f"by {KEY}-undo" in undone["note"]
    unknown = call_reply.action_state(parked())
    assert unknown["state"] == "unknown"
    assert unknown["unknown"]["reason"] == "timed out"


def test_how_an_accepted_call_ended_is_told_with_its_error_where_it_did_not_happen() -> None:
    happened = notices.settled(relayed(**DONE))
    declined = notices.settled(relayed(**DECLINED))
    settled = notices.settled(relayed(**DECLINED, decided_by="ada", decided_at=NOW))

    accepted = f"[notice] The call of charge at 0.0, which was accepted as {KEY}, has ended"
    assert happened == f'{accepted}: it happened. Its result: "a receipt"'
    told = 'it did NOT happen. Its error: {"type":"Declined","message":"no"}'
    assert declined == f"{accepted}: {told}"
    assert settled == f"{accepted}, settled by ada: {told}"

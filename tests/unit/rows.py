"""A row of ``agent_actions`` as a test needs it: what it does not name is as plain as can be."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from commitline.identity import Position, RunKey, action_key
from commitline.ledger import Action, Effect


def action_row(run: RunKey, at: str, now: datetime, **given: Any) -> Action:
    """Return an intent that nobody has claimed, made and read at that moment.

    Args:
        run: Its run's key.
        at: Its position.
        now: By the database's clock.
        given: What is otherwise.
    """
    position = Position(at)
    plain: dict[str, Any] = {
        "key": action_key(run, position),
        "run_key": run,
        "position": position,
        "tool": "charge",
        "args": "{}",
        "effect": Effect.IDEMPOTENT,
        "status": "pending",
        "result": None,
        "outcome": None,
        "effect_possible": None,
        "created_at": now,
        "done_at": None,
        "now": now,
        "thread_id": None,
        "idempotency_key": "k",
        "domain_key": None,
        "generation": 1,
        "key_ttl": None,
        "requested_digest": "r",
        "effective_digest": "e",
        "claim_token": None,
        "claimed_by": None,
        "attempt_at": None,
        "lease_until": None,
        "dispatched_at": None,
        "sent_until": None,
        "tries": 0,
        "failures": 0,
        "parked_at": None,
        "parked_reason": None,
        "reopened_at": None,
        "settled_at": None,
        "decided_by": None,
        "decided_at": None,
        "duplicate_of": None,
        "compensator": None,
        "undoes": None,
        "undone_by": None,
        "asking": False,
        "in_progress": False,
        "relayed": False,
        "notified_step": None,
        "notified_version": None,
        "codec_version": 1,
    }
    return Action(**{**plain, **given})

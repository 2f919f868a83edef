"""Builders: what many tests begin with, each thing with plain defaults.

A test names only what it is about. Moments are seconds after noon, by Temporal's clock.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID, uuid4

from commitline.canonical import digest, parse
from commitline.identity import Position, RunKey, action_key
from commitline.ledger import (
    Action,
    ActionLedger,
    ActionRequest,
    Attempt,
    Dispatched,
    Effect,
    Outcome,
    Run,
)

NOON: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
LEASE: Final = timedelta(minutes=5)
OVER: Final = timedelta(seconds=-1)
"""The lease of an attempt that is lost: it is over as soon as it begins."""
ORDER: Final = '{"order_id":"4821"}'
DECLINED: Final = Outcome.error(kind="ToolRefused", message="declined", effect_possible=False)
DID_NOT_HAPPEN: Final = Outcome.error(
    kind="DidNotHappen", message="ada looked", effect_possible=False
)
"""What an operator settles an unknown action with."""


def after_noon(seconds: float) -> datetime:
    """That many seconds after noon."""
    return NOON + timedelta(seconds=seconds)


def attempt(
    second: float = 0,
    *,
    since: datetime = NOON,
    lease: timedelta = LEASE,
    deadline: timedelta | None = None,
    scheduled: float | None = None,
) -> Attempt:
    """An attempt that began that many seconds after noon, or after another moment.

    Args:
        second: When it began.
        since: The moment from which the seconds count.
        lease: Its lease.
        deadline: How long it may send; by default as long as its lease.
        scheduled: When Temporal scheduled it, in seconds after the same moment.
    """
    return Attempt(
        since + timedelta(seconds=second),
        uuid4(),
        lease,
        deadline,
        scheduled_at=None if scheduled is None else since + timedelta(seconds=scheduled),
    )


def action_request(
    run: RunKey,
    position: str = "0.0",
    *,
    tool: str = "ship",
    args: str = ORDER,
    effect: Effect = Effect.IDEMPOTENT,
    **given: Any,
) -> ActionRequest:
    """A call that a run wants to make; its digests are those of its arguments."""
    same = digest(parse(args))
    digests = {"requested_digest": same, "effective_digest": same}
    return ActionRequest(
        run_key=run,
        position=Position(position),
        tool=tool,
        args=args,
        effect=effect,
        **{**digests, **given},
    )


def relay_request(action: Action) -> ActionRequest:
    """The same call, as the relay claims it."""
    return ActionRequest(
        run_key=action.run_key,
        position=action.position,
        tool=action.tool,
        args=action.args,
        effect=action.effect,
        requested_digest=action.requested_digest,
        effective_digest=action.effective_digest,
        domain_key=action.domain_key,
        purpose="relay",
    )


async def open_run(ledger: ActionLedger, run: RunKey, second: float = 0, **given: Any) -> Run:
    """Open a run; its workflow id is its key without the last part."""
    plain: dict[str, Any] = {
        "workflow_id": run.rpartition("/")[0],
        "agent": "support",
        "input_digest": "input",
        "attempt_at": after_noon(second),
    }
    return await ledger.runs.open(run_key=run, **{**plain, **given})


async def dispatched(
    ledger: ActionLedger, request: ActionRequest, by: Attempt | None = None
) -> Dispatched:
    """Claim a call that is to be sent."""
    claim = await ledger.claim(request, by or attempt())
    assert isinstance(claim, Dispatched), claim
    return claim


async def parked(
    ledger: ActionLedger, request: ActionRequest, by: Attempt | None = None
) -> Dispatched:
    """Claim a call and park it, so that a person may settle it."""
    claim = await dispatched(ledger, request, by)
    await ledger.park(claim, "its answer was lost")
    return claim


def done_row(run: RunKey, at: str, done_at: datetime, *, now: datetime, **given: Any) -> Action:
    """Return the row of an action that its first attempt carried out at that moment."""
    done: dict[str, Any] = {
        "status": "done",
        "result": "null",
        "outcome": "ok",
        "effect_possible": True,
        "created_at": done_at,
        "claim_token": UUID(int=1),
        "claimed_by": action_key(run, Position(at)),
        "attempt_at": done_at,
        "lease_until": done_at,
        "dispatched_at": done_at,
        "sent_until": done_at,
        "tries": 1,
        "done_at": done_at,
    }
    return action_row(run, at, now, **{**done, **given})


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
        "looking_up": False,
        "in_progress": False,
        "relayed": False,
        "notified_version": None,
        "codec_version": 1,
    }
    return Action(**{**plain, **given})

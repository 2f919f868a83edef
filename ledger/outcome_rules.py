"""The rules of outcomes: which ones a person may record, and which recorded error is a conflict.

Pure functions over rows, as in `claim_rules`.
"""

from __future__ import annotations

from typing import Final

from ..canonical import parse, storable
from ..errors import Fenced, IdempotencyKeyConflict, SettlementRefused, Unstorable
from ..identity import ActionKey
from .action_records import Action, Outcome
from .claim_results import Dispatched, HeldClaim

CONFLICT: Final = IdempotencyKeyConflict.__name__
"""The kind of the error that is recorded for a refused claim of a domain key."""


def judge_settlement(key: ActionKey, found: Action | None, word: Outcome) -> Action:
    """Return the row, if a person may settle it with this word.

    Raises:
        SettlementRefused: They may not, or not now; the message says why.
    """
    if found is None:
        raise SettlementRefused(f"there is no action {key}")
    if found.status == "done":
        raise SettlementRefused(f"{key} is settled already: {found.state}")
    if found.duplicate_of is not None:
        raise SettlementRefused(f"{key} repeats {found.duplicate_of}: settle that one")
    calls_off = (found.relayed or found.parked) and not word.effect_possible
    if found.dispatched_at is None and not calls_off:
        raise SettlementRefused(f"{key} was never sent: nothing is unknown about it")
    if found.leased:
        raise SettlementRefused(
            f"an attempt may be at work on {key} until {found.lease_until:%Y-%m-%d %H:%M:%S %Z}"
        )
    if found.may_be_sent and not word.effect_possible:
        raise SettlementRefused(
            f"an attempt whose call was taken over may still send {key} until "
            f"{found.sent_until:%Y-%m-%d %H:%M:%S %Z}: nobody can know yet that it did not happen"
        )
    return found


def raise_if_conflict(found: Action) -> None:
    """Refuse again what was refused: a conflict is kept as its own row, with its message.

    It is known by its shape, not by the name of its error, which a tool may choose: it names the
    action that stands, had no effect, and was never unknown: no person has settled it, and no
    late record.
    """
    refused = found.outcome == "error" and not found.effect_possible
    settled = found.decided_by is not None or found.settled_at is not None
    if refused and found.duplicate_of is not None and not settled:
        message = parse(found.result or "{}").get("message", "")
        raise IdempotencyKeyConflict(message, existing=found.duplicate_of)


def conflict_outcome(error: IdempotencyKeyConflict) -> Outcome:
    """Return the outcome that keeps a conflict, so that a replay finds it again."""
    return Outcome.error(kind=CONFLICT, message=error.message, effect_possible=False)


def without_result(outcome: Outcome, error: Unstorable) -> Outcome:
    """Return what is recorded of an outcome whose text Postgres cannot hold: what it means."""
    happened = "its effect stands" if outcome.effect_possible else "nothing happened"
    return Outcome.error(
        kind="UnrepresentableResult",
        message=f"it ended, and {happened}, but what it returned could not be kept: "
        f"{storable(error.message)[:200]}",
        effect_possible=outcome.effect_possible,
    )


def standing_outcome(claim: Dispatched | HeldClaim, row: Action | None) -> Outcome:
    """Return the outcome that stands where an attempt could not record its own.

    Raises:
        Fenced: Another attempt has claimed the action, or a failover lost its row.
    """
    if row is None or row.recorded is None:
        raise fenced(claim, row)
    return row.recorded


def fenced(claim: Dispatched | HeldClaim, row: Action | None) -> Fenced:
    """Return why the holder of a claim may not write on its row."""
    if row is None:
        return Fenced(f"{claim.key} is gone: a failover lost it", lost=True)
    return Fenced(f"{claim.key} was taken over by another attempt, or is settled")

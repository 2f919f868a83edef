"""What the model reads later: notices of something that changed after a call was answered.

Each is a user message that begins with ``[notice]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...canonical import dumps
from ...ledger.action_records import Action
from ..contract.state_changes import Conflict, Dropped
from .reply_content import bounded
from .standing_actions import listed, shortened

MAX_NOTICE: Final = 16 * 1024
"""Characters of a result that a notice holds."""

_MAX_LISTED: Final = 200
"""Actions that the notice of a fork lists one by one."""


def settled(action: Action) -> str:
    """Say how an action ended that was unknown or accepted before, or that it was undone since."""
    if action.undone_by is not None:
        return (
            f"[notice] The call of {action.tool} at {action.position} was undone afterwards, by "
            f"{action.undone_by}: what it did does not stand any more."
        )
    by = f"by {action.decided_by}" if action.decided_by else "by its own late answer"
    outcome = action.recorded
    assert outcome is not None, "a notice is only of an action with an outcome"
    if outcome.effect_possible:
        answer = dumps(bounded(outcome, action.key, MAX_NOTICE))
        became = f"it happened. Its {'result' if outcome.kind == 'ok' else 'error'}: {answer}"
    elif action.relayed:
        became = f"it did NOT happen. Its error: {dumps(bounded(outcome, action.key, MAX_NOTICE))}"
    else:
        became = "it did NOT happen."
    if action.relayed:
        by_whom = f", settled {by}" if action.decided_by else ""
        return (
            f"[notice] The call of {action.tool} at {action.position}, which was accepted as "
            f"{action.key}, has ended{by_whom}: {became}"
        )
    return (
        f"[notice] The call of {action.tool} at {action.position}, which was unknown, has been "
        f"settled {by}: {became}"
    )


def forked(actions: Sequence[Action]) -> str:
    """Say which actions stand of the turns that a fork took out of the conversation."""
    lines = listed(actions, _MAX_LISTED)
    return (
        "[notice] You are asked again from here. What you did after this point was taken out of "
        "the conversation, but these actions took effect, or may have, and stand unless it says "
        "otherwise:\n" + ("\n".join(lines) or "- none")
    )


def state_conflict(found: Conflict) -> str:
    """Say that two calls of one message gave a field of the state different values."""
    return (
        f"[notice] Two calls of one message changed {found.field!r} of the shared state "
        f"differently: {found.earlier} to {shortened(dumps(found.value))}, {found.later} to "
        f"{shortened(dumps(found.stands))}. The later call's value stands; correct it if it should "
        "not."
    )


def state_dropped(found: Dropped) -> str:
    """Say that the changes of one call were not merged into the state."""
    changed = f" ({', '.join(found.fields)})" if found.fields else ""
    return (
        f"[notice] What the call at {found.position} changed in the shared state{changed} was "
        f"dropped, and the state is without it: {found.why}. The call's own result stands."
    )

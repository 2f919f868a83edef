"""Which actions stand, that is took effect or may have, and how a list of them reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from ...identity import within_run
from ...ledger.action_records import Action

_MAX_TEXT: Final = 500
"""Characters that are shown of arguments, and of a result."""


def stands(action: Action) -> bool:
    """Whether an action took effect, or may have."""
    return action.state in ("unknown", "dispatched") or bool(action.effect_possible)


def left_standing(actions: Sequence[Action]) -> list[Action]:
    """Return the actions that stand, without those that were undone and those that undid them."""
    undid = {one.undone_by for one in actions}
    return [
        one for one in actions if stands(one) and one.undone_by is None and one.key not in undid
    ]


def listed(actions: Sequence[Action], most: int) -> list[str]:
    """Return a line for each of the first ``most`` actions; of the rest, a count for each tool."""
    lines = [
        f"- {action.tool} at {within_run(action.run_key, action.position)} "
        f"with {shortened(action.args)}: {_became(action)}"
        for action in actions[:most]
    ]
    more = Counter(action.tool for action in actions[most:])
    return lines + [f"- {tool}: {count} more of these" for tool, count in more.items()]


def _became(action: Action) -> str:
    outcome = action.recorded
    if outcome is None:
        return "UNKNOWN: it may or may not have happened"
    if action.undone_by is not None:
        return f"it happened, and was UNDONE afterwards by {action.undone_by}"
    return f"it happened; its {'result' if outcome.kind == 'ok' else 'error'}: " + shortened(
        outcome.result
    )


def shortened(text: str) -> str:
    """Return a text, cut after 500 characters."""
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"

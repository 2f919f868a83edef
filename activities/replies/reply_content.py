"""The content of a reply, cut to what may travel through Temporal. The ledger keeps the whole."""

from __future__ import annotations

from typing import Any, Final

from ...ledger.action_records import Outcome
from ..contract.encoding import to_text
from ..contract.reply import Reply
from ..contract.sizes import MAX_CONTENT

_MAX_HEAD: Final = 8_000
"""Characters that the model reads of a result that is too large to travel."""
_BESIDE_HEAD: Final = 400
"""Characters of what stands beside such a beginning: its size, where the whole is."""
_BESIDE_RESULT: Final = 2_000
"""Characters of what may stand beside a result that travels whole: notes, keys."""
_MAX_CUT_TEXT: Final = 300
"""Characters that are left of each text of a content that is far too large."""


def bounded(outcome: Outcome, key: str | None, limit: int) -> Any:
    """Return the result of an outcome as JSON data, or its beginning where it is too large.

    Args:
        outcome: How the call ended.
        key: The row that keeps the whole result; None if no row does.
        limit: Characters of a result that may travel.
    """
    if len(outcome.result) <= limit:
        return outcome.value
    return {
        "truncated": True,
        "characters": len(outcome.result),
        "whole_value": f"in the ledger, as the result of {key}" if key else "not kept",
        "head": _head(outcome.result, limit),
    }


def _head(text: str, limit: int) -> str:
    """Return the beginning of a result, as much as travels: it is escaped twice on its way."""
    head = text[: min(_MAX_HEAD, limit // 2)]
    while head and len(to_text(to_text(head))) > limit - _BESIDE_HEAD:
        head = head[: len(head) * 3 // 4]
    return head


def content_text(reply: Reply, *, limit: int = MAX_CONTENT) -> str:
    """Return a reply's content as the JSON text that the model reads.

    The text of an error may be far over the limit (characters). Then each text in the content
    is cut. The fields that say whether there was an effect, and in which row, stay.
    """
    # Not `dumps`, which limits the depth: the content wraps a result that may be that deep.
    text = to_text(reply.content)
    if len(text) <= limit + _BESIDE_RESULT:
        return text
    return to_text(_cut(reply.content))


def _cut(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _cut(item) for name, item in content.items()}
    if isinstance(content, str) and len(content) > _MAX_CUT_TEXT:
        return f"{content[:_MAX_CUT_TEXT]}…"
    return content

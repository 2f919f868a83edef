"""What is wrong with a value, in words that a model or a person can act on.

Validators, serializers and reducers belong to the application and may raise anything. Whatever
they raise means that the value does not fit, so it is caught and explained here.
"""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from ...canonical import scrub
from ...errors import CommitlineError
from ...ledger.result_codec import error_text

_MAX_PROBLEMS: Final = 5
_MAX_TEXT: Final = 500


def explain(error: Exception, *, whole: str = "it", limit: int = _MAX_TEXT) -> str:
    """Return in words why a value does not fit.

    Args:
        error: What was raised while the value was read, written or merged.
        whole: What a problem is said of that lies in no field of the value.
        limit: Characters of the answer.
    """
    if isinstance(error, CommitlineError):
        text = error.message
    elif isinstance(error, ValidationError):
        text = _problems(error, whole)
    else:
        text = f"{type(error).__name__}: {error_text(error)}"
    return scrub(text, limit=limit)


def _problems(error: ValidationError, whole: str) -> str:
    found = error.errors(include_url=False, include_input=False, include_context=False)
    shown = [
        f"{'.'.join(map(str, one['loc'])) or whole}: {one['msg']}" for one in found[:_MAX_PROBLEMS]
    ]
    more = f"; and {len(found) - _MAX_PROBLEMS} more" if len(found) > _MAX_PROBLEMS else ""
    return "; ".join(shown) + more

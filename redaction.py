"""What is taken out of the text of an exception before it is kept, logged or shown.

An exception of a tool or a model often repeats what it was called with: a provider's 401 names the
key, a declined payment its card. Its text goes into the ledger, the log, Temporal and the model's
next request. Whatever an application adds, the well-known shapes are always taken out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

Redact: TypeAlias = Callable[[str], str]
"""Returns a text without what nobody may read."""

GONE: Final = "[redacted]"

_KEYS: Final = re.compile(
    r"""\b(?:
        sk-[A-Za-z0-9_-]{8,}                              # OpenAI, Anthropic
      | [srp]k_(?:live|test)_[A-Za-z0-9]{8,} | whsec_[A-Za-z0-9]{8,}  # Stripe
      | gh[opsur]_[A-Za-z0-9]{20,} | github_pat_[A-Za-z0-9_]{20,} | glpat-[A-Za-z0-9_-]{16,}
      | xox[abeoprs]-[A-Za-z0-9-]{10,}                    # Slack
      | A[KS]IA[0-9A-Z]{16}                               # AWS
      | AIza[0-9A-Za-z_-]{30,}                            # Google
      | eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*  # JSON web tokens
    )""",
    re.VERBOSE,
)
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{8,}")
_NAMED: Final = re.compile(
    r"""(?ix)
    \b((?:[a-z0-9]+[_-])*(?:api[_-]?key|access[_-]?key|secret|password|passwd|pwd|token))
    (["']?\s*[=:]\s*)
    (?!\[redacted\])
    ( "[^"\n]*" | '[^'\n]*' | [^\s,;&"')}\]]+ )"""
)
_IN_URL: Final = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://[^\s/:@]*:)[^\s/]*(?=@)")
_DIGITS: Final = re.compile(r"(?<![0-9A-Za-z_.])[0-9](?:[ -]?[0-9]){12,18}(?![0-9A-Za-z_])")

_hooks: list[Redact] = []
"""Of the workers of this process."""


def redact(text: str) -> str:
    """Return the text without secrets: the well-known shapes, and what hooks take out.

    Never raises. Of a hook that does, nothing of the text is left.
    """
    for hook in (*_hooks, without_well_known):
        try:
            text = hook(text)
        except Exception:
            return GONE
    return text


def without_well_known(text: str) -> str:
    """Take out keys of well-known shapes, bearer tokens, passwords in URLs, and card numbers.

    A card number is 13 to 19 digits that pass Luhn's check, also in groups.
    """
    text = _IN_URL.sub(rf"\1{GONE}", text)
    text = _BEARER.sub(rf"\1\2{GONE}", text)
    text = _NAMED.sub(rf"\1\2{GONE}", text)
    text = _KEYS.sub(GONE, text)
    return _DIGITS.sub(lambda found: GONE if _passes_luhn(found[0]) else found[0], text)


@contextmanager
def redacting(hook: Redact | None) -> Iterator[None]:
    """Have a hook see every text of this process while the body runs."""
    if hook is None:
        yield
        return
    _hooks.append(hook)
    try:
        yield
    finally:
        _hooks.remove(hook)


def _passes_luhn(found: str) -> bool:
    digits = [int(one) for one in found if one.isdigit()][::-1]
    doubled = (2 * one - 9 * (one > 4) for one in digits[1::2])  # noqa: PLR2004
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0

"""The keys that a downstream system is given, so that it can tell a repeated call.

    idempotency key  order-4821-charge  or  cl_…        what is sent
    domain key       order-4821-charge                  names a business fact, over all runs
    key template     order-{order_id}-charge            what a tool declares
    generation       order-4821-charge~2                the second holder of a domain key

Every key is a pure function of the position or of the arguments. See `identity` for why.
"""

from __future__ import annotations

import base64
import hashlib
import string
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import quote

from .canonical import Json, canonical
from .errors import DefinitionError, InvalidIdempotencyKey
from .identity import ActionKey

MAX_IDEMPOTENCY_KEY: Final = 255
"""Characters; the limit that Stripe and others publish for an idempotency key."""

_GENERATION_ROOM: Final = 8
"""Characters kept free for ``~2``, a later generation, and for ``~of2``, what undoes one."""

_PLAIN = frozenset(string.ascii_letters + string.digits)


@lru_cache(maxsize=1_000)
def default_idempotency_key(action: ActionKey) -> str:
    """Return ``cl_`` and 40 base32 characters: ASCII, short, without personal data."""
    hashed = hashlib.sha256(action.encode()).digest()
    return "cl_" + base64.b32encode(hashed).decode("ascii")[:40].lower()


def check_idempotency_key(key: str) -> str:
    """Return a domain key that the application wrote itself, if it can be one.

    Raises:
        InvalidIdempotencyKey: It is blank, holds ``~`` (which marks generations) or anything
            but printable ASCII, or is over 247 long.
    """
    if not (key.strip() and key.isascii() and key.isprintable()) or "~" in key:
        raise InvalidIdempotencyKey(
            f"an idempotency key is printable ASCII without '~', and not blank: {key[:80]!a}"
        )
    if len(key) > MAX_IDEMPOTENCY_KEY - _GENERATION_ROOM:
        raise InvalidIdempotencyKey(
            f"the idempotency key has {len(key)} characters, over "
            f"{MAX_IDEMPOTENCY_KEY - _GENERATION_ROOM}: {key[:60]}…"
        )
    return key


def with_generation(domain_key: str, generation: int) -> str:
    """Return what the ``generation``-th holder of a domain key sends: ``key``, ``key~2``, ….

    A provider would answer the old key with its old answer, also after a refund.
    """
    return domain_key if generation == 1 else f"{domain_key}~{generation}"


def undo_key(domain_key: str, generation: int) -> str:
    """Return the domain key of the action that undoes the ``generation``-th holder of a key.

    The refund of a second charge is not the refund of the first.
    """
    return domain_key if generation == 1 else f"{domain_key}~of{generation}"


@dataclass(frozen=True)
class KeyTemplate:
    """A domain key with parameters in it: ``order-{order_id}-charge``.

    Values keep letters and digits; everything else is percent-escaped, separators included,
    so that no two lists of values give the same key. ``~`` is kept for generations.
    A value is taken by its text: where a parameter may be ``1`` or ``"1"``, both are one fact.
    """

    text: str
    parts: tuple[tuple[str, str | None], ...]
    """Literal text and the parameter after it, as `string.Formatter` splits them."""

    @property
    def fields(self) -> frozenset[str]:
        """The parameters that the template names."""
        return frozenset(name for _, name in self.parts if name is not None)

    @classmethod
    def parse(cls, text: str) -> KeyTemplate:
        """Read a template.

        Raises:
            DefinitionError: No parameter, two parameters without a separator that no value
                can hold, ``~`` or characters outside printable ASCII, or a format or
                attribute behind a name.
        """
        try:
            found = list(string.Formatter().parse(text))
        except ValueError as err:
            raise DefinitionError(f"idempotency_key {text!r} is not a template: {err}") from err
        template = cls(text, tuple((literal, name) for literal, name, _, _ in found))
        plain = all(not spec and conversion is None for _, _, spec, conversion in found)
        template._check(plain=plain)
        return template

    def render(self, arguments: Mapping[str, Json]) -> str:
        """Return the domain key for these effective arguments (plain JSON values).

        Raises:
            InvalidIdempotencyKey: A named argument is null or empty, or the key is over 247.
        """
        key = "".join(
            literal + (_escape(name, arguments.get(name)) if name is not None else "")
            for literal, name in self.parts
        )
        if len(key) > MAX_IDEMPOTENCY_KEY - _GENERATION_ROOM:
            raise InvalidIdempotencyKey(
                f"the idempotency key has {len(key)} characters, over "
                f"{MAX_IDEMPOTENCY_KEY - _GENERATION_ROOM}: {key[:60]}…"
            )
        return key

    def _check(self, *, plain: bool) -> None:
        names = [name for _, name in self.parts if name is not None]
        literals = [literal for literal, _ in self.parts]
        if not names or not plain or not all(name.isidentifier() for name in names):
            raise DefinitionError(
                f"idempotency_key {self.text!r} must name parameters, as in 'order-{{order_id}}'"
            )
        if "~" in "".join(literals) or not all(s.isascii() and s.isprintable() for s in literals):
            raise DefinitionError(
                f"idempotency_key {self.text!r} may hold printable ASCII except '~'"
            )
        # Between two values stands at least one character that no escaped value can hold.
        between = [literal for literal, name in self.parts[1:] if name is not None]
        if not all(set(literal) - _PLAIN - {"%"} for literal in between):
            raise DefinitionError(
                f"idempotency_key {self.text!r} needs a separator such as '-' between parameters"
            )


def _escape(name: str, value: Json) -> str:
    if value is None or value == "":
        raise InvalidIdempotencyKey(f"the idempotency key needs {name!r}, which is empty")
    text = value if isinstance(value, str) else canonical(value)
    escaped = quote(text, safe="", errors="surrogatepass")
    # `quote` leaves these four alone, whatever `safe` says.
    for char in "_.-~":
        escaped = escaped.replace(char, f"%{ord(char):02X}")
    return escaped

"""The address of a Postgres database, checked before libpq reads it.

libpq repeats what it cannot read, and so it prints a password: in a URL of another library, where
a password holds what a URL cannot, or where half of one is taken for a host or a port. Nothing
here repeats anything of an address.
"""

from __future__ import annotations

import re
from typing import Final

from .errors import ConfigurationError

_ESCAPE: Final = (
    "it cannot be read. In a URL, percent-encode what is special in the user or the password: "
    "%25 for %, %40 for @, %2F for /, %3A for :, %20 for a space"
)
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9.+-]*(?=://)")
_PORTS: Final = re.compile(r"[0-9]{0,5}(,[0-9]{0,5})*")


def check_database_url(url: str, *, name: str = "COMMITLINE_DATABASE_URL") -> dict[str, str]:
    """Return the parts of a URL, or of a libpq connection string.

    Args:
        url: The address.
        name: Of the setting, for the message.

    Raises:
        ConfigurationError: It cannot be read. The message repeats nothing of it.
    """
    scheme = _SCHEME.match(url)
    if scheme is not None and scheme[0].lower() not in ("postgresql", "postgres"):
        driver = "+" in scheme[0]
        why = "it names a driver, as SQLAlchemy's do" if driver else "it is no URL of Postgres"
        raise ConfigurationError(f"{name}: {why}; it begins with postgresql://")
    parts = _parsed(url)
    if parts is None or not _is_whole(parts):
        raise ConfigurationError(f"{name}: {_ESCAPE}")
    return parts


def _is_whole(parts: dict[str, str]) -> bool:
    """Whether no part of a password was taken for a host or a port."""
    at = "@" in parts.get("host", "")[1:]  # in front it is a socket without a file
    return not at and _PORTS.fullmatch(parts.get("port", "")) is not None


def _parsed(url: str) -> dict[str, str] | None:
    """Return what libpq reads in an address; None if it cannot read it, however it says so."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        return {name: str(value) for name, value in conninfo_to_dict(url).items()}
    except (psycopg.Error, ValueError):
        return None

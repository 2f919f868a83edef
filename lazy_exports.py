"""`find`: what a package re-exports, imported when it is first used (PEP 562).

Importing any module of a package runs the package's ``__init__``. Were the names imported there,
workflow code would load a database driver, and the ledger alone would load Temporal.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module


def find(package: str, homes: Mapping[str, str], name: str) -> object:
    """Return what a package re-exports under a name; for its ``__getattr__``.

    Args:
        package: Its ``__name__``.
        homes: The module of each name, relative to the package: ``{"Action": ".records"}``.
        name: The name that is used.

    Raises:
        AttributeError: The package exports no such name.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(import_module(homes[name], package), name)

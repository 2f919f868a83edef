"""`lazy`: what a package re-exports, imported when it is first used (PEP 562).

Importing any module of a package runs the package's ``__init__``. Were the names imported there,
workflow code would load a database driver, and the ledger alone would load Temporal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a package.

    Args:
        package: Its ``__name__``.
        homes: The module of each name, relative to the package: ``{"Action": ".records"}``.
    """

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name], package), name)

    return get

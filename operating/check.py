"""One thing that `commitline doctor` has looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final, Literal

from ..errors import ConfigurationError

CheckState = Literal["ok", "missing", "wrong"]

START_DEV: Final = "start `commitline dev` in this folder or one above"
_SECONDS: Final = 6.0
"""For each look."""


@dataclass(frozen=True)
class Check:
    """One thing that a worker needs, or may use."""

    name: str
    """Of the thing: ``Python``, ``database``, ``Temporal``, …"""
    state: CheckState
    """``wrong``: it is there and cannot be used as it is."""
    found: str
    """What was found of it."""
    remedy: str = ""
    """How to get it; empty when it is there."""
    needed: bool = True
    """False: Commitline works without it."""


async def bounded(name: str, look: Awaitable[Check], *, needed: bool = True) -> Check:
    """Return what was found; whatever goes wrong is found, too."""
    try:
        async with asyncio.timeout(_SECONDS):
            return await look
    except TimeoutError:
        found, remedy = f"no answer within {_SECONDS:g} s", "check its address and the network"
    except ConfigurationError as err:
        found, remedy = err.message, "correct the setting"
    except Exception as err:
        # Whatever it is (a URL or a file that cannot be read, …), the other checks go on.
        found = " ".join(f"{type(err).__name__}: {err}".split())
        remedy = "correct the setting, or the file that it comes from"
    return Check(name, "wrong", found, remedy, needed=needed)


def clock_check(name: str, seconds: float, uncertain_seconds: float) -> Check:
    """Return what a server's clock shows beside this machine's.

    Args:
        name: Of the check.
        seconds: By how much the server's is ahead.
        uncertain_seconds: How far off that may be.
    """
    where = "ahead of" if seconds > 0 else "behind"
    found = f"{abs(seconds):.1f} s {where} this machine's"
    if abs(seconds) - uncertain_seconds <= _CLOCK_SECONDS:
        return Check(name, "ok", found, needed=False)
    remedy = "have NTP set both; certificates, tokens and the ages in lists depend on it"
    return Check(name, "wrong", found, remedy, needed=False)


_CLOCK_SECONDS: Final = 5.0

"""When a worker's relay looks for something to do: when it is told, and by the clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from ...ledger import listen

log = structlog.get_logger("commitline")


async def look_when_told(
    database_url: str, look: Callable[[], Awaitable[Any]], *, poll_seconds: float = 5.0
) -> None:
    """Call ``look`` whenever there may be something to do, until cancelled.

    What it raises is logged, and it is called again by the clock: a relay outlives its database.

    Args:
        database_url: For announcements; see `commitline.ledger.listen`.
        look: Looks for what there is to do, and starts it. Safe to repeat.
        poll_seconds: Between two looks while announcements are heard; at most a second while
            they are not.
    """

    async def look_safely() -> None:
        try:
            await look()
        except Exception as err:
            log.warning("relay.scan_failed", error=type(err).__name__, reason=str(err)[:300])

    await listen(
        database_url,
        on_notice=look_safely,
        on_hearing=_say,
        poll_seconds=poll_seconds,
        poll_seconds_alone=min(poll_seconds, 1.0),
    )


def _say(hears: bool, why: str) -> None:
    if hears:
        log.info("relay.listening")
    else:
        log.warning("relay.polling", reason=why[:500])

"""An app whose tool writes whatever code can write to a log, and fails beside its work."""

import asyncio
import gc
import logging
import threading
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path

import structlog

from commitline import Agent, App, Effect, ScriptedModel, tool
from commitline.activities.model.scripted_model import call, say

_LIBRARY = logging.getLogger("a.library")


class _FailsAsItGoes:
    def __del__(self) -> None:
        raise ValueError("as it went")


def _fail() -> None:
    raise ValueError("in a thread, with api_key=sk-live-12345678901234567890")


async def _fail_beside() -> None:
    raise ValueError("in a task that nobody awaits")


@tool(effect=Effect.IDEMPOTENT, tries=2)
async def act() -> str:
    """Write to the log in every way, and raise."""
    _LIBRARY.warning("two\nlines of %s", "a library\x1b[31m")
    _LIBRARY.error("%d is no number", "this")
    try:
        _fail()
    except ValueError:
        _LIBRARY.exception("caught")
    warnings.warn("this is old", DeprecationWarning, stacklevel=1)
    warnings.warn("this is odd", UserWarning, stacklevel=1)
    thread = threading.Thread(target=_fail, name="beside")
    thread.start()
    thread.join()
    beside = asyncio.create_task(_fail_beside())
    await asyncio.sleep(0)
    del beside
    _FailsAsItGoes()
    gc.collect()
    structlog.get_logger().info(
        "typed", at=datetime.now(UTC), took=timedelta(seconds=1.5), where=Path("/x"), some={"a"}
    )
    raise ConnectionError("the provider is away")


app = App(
    [
        Agent(
            "support",
            model=ScriptedModel("noisy", [call(("act", {})), say("done")]),
            instructions="",
            tools=[act],
        )
    ]
)

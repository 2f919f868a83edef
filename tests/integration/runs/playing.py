"""What tests of runs are played with: a model that makes its answers up, and cues over threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from commitline.activities.contract.conversation import Completion, ToolResult
from commitline.activities.model.model import ModelRequest

T = TypeVar("T")

SOON: Final = 40.0
"""Seconds: far longer than anything takes here, far shorter than what hangs."""
HANGS: Final = 60.0


@dataclass
class Says:
    """A model that works its answer out from what it is shown, and keeps what that was."""

    answer: Callable[[ModelRequest], Completion]
    """May block: it is called in a thread."""
    name: str = "says"
    shown: list[ModelRequest] = field(default_factory=list)

    async def complete(self, request: ModelRequest) -> Completion:
        self.shown.append(request)
        return await asyncio.to_thread(self.answer, request)

    @property
    def calls(self) -> int:
        """How often it was asked."""
        return len(self.shown)

    @property
    def told(self) -> Sequence[ToolResult]:
        """Every tool result of the last request."""
        return [one for message in self.shown[-1].messages for one in message.results]


def turn_of(request: ModelRequest) -> int:
    """How many turns the model has taken before."""
    return sum(one.role == "assistant" for one in request.messages)


def asked(request: ModelRequest) -> list[str]:
    """What people said, in order."""
    return [one.text for one in request.messages if one.role == "user"]


class Signals:
    """What a test and its tools tell each other, over threads."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.release = threading.Event()
        self.paused = threading.Event()
        self.go_on = threading.Event()


async def seen(event: threading.Event) -> None:
    """Wait until a tool has said so."""
    assert await asyncio.to_thread(event.wait, SOON), "it never came to that"


async def within(work: Awaitable[T], seconds: float = SOON) -> T:
    """Wait for something that must come to an end."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({task}, timeout=seconds)
    assert done, f"no end within {seconds:g} s"
    return task.result()

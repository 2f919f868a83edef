"""What tests of runs share: apps of one agent, a model that is a function, signals over threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeVar

from commitline import Agent, App, RunHandle, Tool
from commitline.activities.contract.conversation import Completion, ToolResult
from commitline.activities.model.model import ModelRequest
from commitline.handles.any_run import AnyRun

from .bench import eventually

T = TypeVar("T")

SOON: Final = 40.0
"""Seconds: far longer than anything takes here, far shorter than what hangs."""
HANGS: Final = 60.0
LONG: Final = "x" * 900_000
"""What a model may say beside its calls. After five of these the run continues as new."""


@dataclass
class Says:
    """A model that computes its answer from the request, and keeps every request."""

    answer: Callable[[ModelRequest], Completion]
    """May block: it is called in a thread."""
    name: str = "says"
    shown: list[ModelRequest] = field(default_factory=list)

    async def complete(self, request: ModelRequest) -> Completion:
        self.shown.append(request)
        return await asyncio.to_thread(self.answer, request)

    @property
    def calls(self) -> int:
        """How many requests it got."""
        return len(self.shown)

    @property
    def told(self) -> Sequence[ToolResult]:
        """Every tool result of the last request."""
        return [one for message in self.shown[-1].messages for one in message.results]


def computed_app(
    answer: Callable[[ModelRequest], Completion], *tools: Tool, max_steps: int = 50
) -> tuple[App, Says]:
    """An app of one agent whose model computes its answers; and that model."""
    model = Says(answer)
    return App([Agent("agent", model, "Do it.", tools=tools, max_steps=max_steps)]), model


async def replies_of(run: RunHandle) -> list[tuple[str, str]]:
    """Status and content of every reply that the run's model has read."""
    messages = await (await run.thread()).messages()
    return [(one.status, one.content) for message in messages for one in message.results]


def turn_of(request: ModelRequest) -> int:
    """How many turns the model has taken before."""
    return sum(one.role == "assistant" for one in request.messages)


def asked(request: ModelRequest) -> list[str]:
    """What people said, in order."""
    return [one.text for one in request.messages if one.role == "user"]


class NoAnswerYet(ConnectionError):
    """A provider has what it was sent, its answer is lost, and another try is far away."""

    retry_after = timedelta(minutes=10)


async def failed_once(run: AnyRun) -> None:
    """Wait until a call of the run has failed, and Temporal waits to try it again."""

    async def failed() -> bool:
        described = (await run.describe()).raw_description
        return any(one.HasField("last_failure") for one in described.pending_activities)

    await eventually(failed)


class Signals:
    """Signals between a test and its tools, which work in threads."""

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

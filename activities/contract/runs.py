"""What passes between a run and the activities that open, stop and close it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ...identity import RunKey
from .deadlines import RunLimits
from .spec import AgentSpec

OPEN_RUN: Final = "commitline.open_run"


CLOSE_RUN: Final = "commitline.close_run"


STOP_RUN: Final = "commitline.stop_run"


@dataclass(frozen=True)
class OpenRun:
    """What registers a run."""

    run_key: RunKey
    agent: str
    input_digest: str
    limits: RunLimits = field(default_factory=RunLimits)
    thread_id: str | None = None
    """The conversation that it writes; None is one of its own."""
    spec: AgentSpec | None = None
    """What it has kept of its agent, where the ledger has lost that."""


@dataclass(frozen=True)
class Opened:
    """A run that is registered."""

    spec: AgentSpec
    """What it keeps of its agent, with what is left of its run_deadline."""
    version: int
    """Of its conversation."""


@dataclass(frozen=True)
class CloseRun:
    """What ends a run."""

    run_key: RunKey


@dataclass(frozen=True)
class StopRun:
    """What stops a run from within."""

    run_key: RunKey
    reason: str

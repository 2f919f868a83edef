"""Runs: what passes between a run and the activities that open, stop and close it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ...identity import RunKey
from .deadlines import RunLimits
from .spec import AgentSpec

OPEN_RUN: Final = "commitline.open_run"
CLOSE_RUN: Final = "commitline.close_run"
STOP_RUN: Final = "commitline.stop_run"

AGENT_RUN: Final = "AgentRun"
"""The workflow of an agent's run."""
PLAN_RUN: Final = "PlanRun"
"""The workflow of a plan's run."""
LOOK: Final = "look"
"""The signal that has a run look into the ledger now, whatever it waits for."""


@dataclass(frozen=True)
class OpenRun:
    """From a run to `OPEN_RUN`: register the run, and its conversation."""

    run_key: RunKey
    agent: str
    input_digest: str
    """Of the input that the run was started with."""
    limits: RunLimits = field(default_factory=RunLimits)
    """The deadlines that the run was started with."""
    thread_id: str | None = None
    """The conversation that it continues; None is one of its own."""
    spec: AgentSpec | None = None
    """What the run keeps of its agent, if the ledger has lost that."""
    again: bool = False
    """The task that opens the run may be made anew, after one that has opened it, and called."""


@dataclass(frozen=True)
class Opened:
    """From `OPEN_RUN` to the run: it is registered."""

    spec: AgentSpec
    """What the run keeps of its agent, with what is left of its ``run_deadline``."""
    version: int
    """The version of its conversation."""


@dataclass(frozen=True)
class CloseRun:
    """From a run to `CLOSE_RUN`: the run has ended."""

    run_key: RunKey


@dataclass(frozen=True)
class StopRun:
    """From a run to `STOP_RUN`: its own deadline has passed."""

    run_key: RunKey
    reason: str
    """For people."""

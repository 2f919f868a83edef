"""What a run is started with, what callers send it, and what it hands to its next execution."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from ..activities.contract.conversation import Message
    from ..activities.contract.deadlines import RunLimits
    from ..canonical import digest


AGENT_RUN: Final = "AgentRun"
"""The workflow type."""
TASK_TIMEOUT: Final = timedelta(seconds=5)
"""How long a run waits for a worker that died *inside* a workflow task; 10 s by default."""


@dataclass(frozen=True)
class Task:
    """What a run is answering."""

    request_id: str | None
    """The caller's request; None for the prompt that a run was started with."""
    step: int
    """The model turn at which the run took it up."""


@dataclass(frozen=True)
class Carried:
    """What a run hands to its next execution, between two turns."""

    step: int
    version: int
    epoch: int
    fresh: list[Message]
    """What the conversation does not have yet."""
    task: Task | None
    inbox: list[str]
    unusable: int
    input_digest: str
    """Of what the run was started with; its prompt is in the conversation by now."""


@dataclass(frozen=True)
class RunInput:
    """What a run is started with."""

    agent: str
    prompt: str = ""
    limits: RunLimits = field(default_factory=RunLimits)
    thread_id: str | None = None
    """The conversation that it goes on with; None is one of its own."""
    request_id: str | None = None
    """The request, in that conversation, that it is started for."""
    carried: Carried | None = None

    @property
    def digest(self) -> str:
        """By which a second start of the same id is known to be the same.

        Deadlines do not count: a deploy that changes them must not keep a lost reply from being
        answered by starting again. The run keeps those that it was first started with.
        """
        if self.carried is not None:
            return self.carried.input_digest
        given: dict[str, Any] = {"agent": self.agent, "prompt": self.prompt}
        if self.thread_id is not None:
            given |= {"thread": self.thread_id, "request": self.request_id}
        return digest(given)


@dataclass(frozen=True)
class Send:
    """A caller's request, which is in the ledger by now."""

    request_id: str
    agent: str | None = None
    """Who is to answer; None is whoever the run is."""


@dataclass(frozen=True)
class Sent:
    """What became of it."""

    answered: bool
    """Its reply is in the ledger. If not, the run ends first, or is another agent's: send it
    again."""

"""The input of an agent's run, the requests of callers, and what its next execution gets."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from ..activities.contract.conversation import Message
from ..activities.contract.deadlines import RunLimits
from ..activities.contract.turns import CallResult
from ..canonical import digest

TASK_TIMEOUT: Final = timedelta(seconds=5)
"""How long Temporal waits for a worker that died *inside* a workflow task; by default 10 s."""


@dataclass(frozen=True)
class OpenRequest:
    """The request that a run is answering."""

    request_id: str | None
    """The caller's request; None for the prompt in the run's input."""
    step: int
    """The model turn at which the run began to answer it."""


@dataclass(frozen=True)
class Carried:
    """What a run hands to its next execution when it continues as new, between two turns."""

    step: int
    version: int
    epoch: int
    new_messages: list[Message]
    new_results: list[CallResult]
    """What the conversation does not have yet: messages, or what became of the last one's calls."""
    request: OpenRequest | None
    inbox: list[str]
    unusable: int
    input_digest: str
    """The digest of the first execution's input, whose prompt is in the conversation by now."""


@dataclass(frozen=True)
class RunInput:
    """The input of an agent's run."""

    agent: str
    prompt: str = ""
    limits: RunLimits = field(default_factory=RunLimits)
    thread_id: str | None = None
    """The conversation that it continues; None is one of its own."""
    request_id: str | None = None
    """The request, in that conversation, for which the run is started."""
    carried: Carried | None = None

    @property
    def digest(self) -> str:
        """Tells whether a second start of the same id is the same start.

        Deadlines do not count: after a deploy that changes them, a caller that lost the reply
        must still be able to start the same run again. The run keeps its first deadlines.
        """
        if self.carried is not None:
            return self.carried.input_digest
        given: dict[str, Any] = {"agent": self.agent, "prompt": self.prompt}
        if self.thread_id is not None:
            given |= {"thread": self.thread_id, "request": self.request_id}
        return digest(given)


@dataclass(frozen=True)
class SendRequest:
    """A caller's request, which the ledger has by now."""

    request_id: str
    agent: str | None = None
    """The agent that must answer; None is the agent of the run."""


@dataclass(frozen=True)
class RequestEnd:
    """Whether a request was answered."""

    answered: bool
    """Its reply is in the ledger. If not, the run ends first, or is another agent's: send the
    request again."""

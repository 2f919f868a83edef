"""What an attempt at an activity of ours leaves for the next one, with its last heartbeat.

Temporal keeps the details of the last heartbeat over the attempts of an activity, and counts none
of it in the workflow's history. Its own number of the attempt does not serve: dead workers and
outages are in it, and `temporal activity reset` sets it back.

A local activity has no heartbeat, and one attempt. Its notes go with its failure, by way of the
workflow, to the activity of the server's that goes on with the call.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Final

from temporalio import activity

from ..contract.local_activity import Notes

_OURS: Final = "commitline"


@dataclass
class LocalNotes:
    """The notes that go by way of the workflow."""

    before: Notes = field(default_factory=dict)
    """Of the local attempt before the running one."""
    left: Notes = field(default_factory=dict)
    """Of the running one, if it is a local attempt."""


local_notes: ContextVar[LocalNotes] = ContextVar("commitline_local_notes")
"""Those of the running activity; the guard sets them."""


@dataclass(frozen=True)
class AttemptNotes:
    """The notes of all attempts so far."""

    failed: int = 0
    """How often what has no row has failed: a READ, or a request to a model."""
    unforeseen: int = 0
    """How often it raised what nobody foresaw."""
    unserved: int = 0
    """How many attempts were made by workers that lack the tool or the agent."""
    waits: int = 0
    """How often the call could not be started: the ledger was away, say."""
    uncalled: int = 0
    """The attempts up to this number called nothing."""
    clock_from: float | None = None
    """When the node's time began, in seconds by the engine's clock; None is when the workflow
    scheduled the call."""

    @property
    def ended(self) -> int:
        """How many attempts, at least, ended by themselves and not with their worker."""
        return self.failed + self.unforeseen + self.unserved + self.waits

    @classmethod
    def read(cls) -> AttemptNotes:
        """Return the notes of the attempts before the running one."""
        match activity.info().heartbeat_details:
            case (str(kind), dict(notes)) if kind == _OURS:
                return cls(**notes)
        # None, or of a tool that heartbeats itself.
        return cls(**local_notes.get(LocalNotes()).before)

    def leave(self) -> None:
        """Leave the notes for the next attempt: call it right before the running one fails."""
        if activity.info().is_local:
            local_notes.get().left = asdict(self)
            return
        activity.heartbeat(_OURS, asdict(self))

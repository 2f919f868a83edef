"""What the ledger holds of a run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ..identity import RunKey

RunState = Literal["running", "stopping", "undoing", "ended"]


@dataclass(frozen=True)
class Run:
    """A row of ``agent_runs``; times are by the database's clock unless they say otherwise."""

    run_key: RunKey
    """Its identity, the same over retries, resets and continue-as-new of its workflow."""
    workflow_id: str
    """Of its workflow; of the latest one, where it is a sub-agent's."""
    agent: str
    """The agent's name."""
    input_digest: str
    """Of its input; empty where no caller has named it."""
    state: RunState
    """``running``, ``stopping``, ``undoing`` or ``ended``."""
    epoch: int
    """How often it was forked."""
    opened_attempt_at: datetime
    """When the attempt that opened it began, by the engine's clock."""
    ended_attempt_at: datetime | None
    """When the attempt that ended it began, by the engine's clock: later ones open it again."""
    created_at: datetime
    """When its row was written."""
    stopped_at: datetime | None
    """When a stop was requested. Nothing opens the run again."""
    stop_reason: str | None
    """Why it was stopped, for people."""
    thread_id: str | None
    """The conversation that it writes; None where it writes none (another workflow's run)."""
    spec: str | None
    """JSON text of what it keeps of its agent; None where it has no agent."""
    fork_step: int | None
    """The model turn from which its newest epoch goes another way."""
    input_tokens: int
    """That its model requests took so far."""
    output_tokens: int
    """The same of the output."""
    parent_key: RunKey | None
    """The run that called it, where it is a sub-agent's."""
    owner: str | None
    """The workflow that may act for it, where it is a sub-agent's; ``""`` is none."""
    compensate: bool
    """It was stopped, and its actions are to be undone."""
    undo_began_at: datetime | None
    """When an undo of it began last."""
    undo_ended_at: datetime | None
    """When that undo ended, with everything undone or a list of what stands."""
    undo_owner: str | None
    """The workflow that carries out that undo; no other one goes on with it."""
    workflow_status: str | None
    """How its workflow ended, where the run could not record that: ``terminated``, …"""
    namespace: str | None
    """Temporal's; None where no caller has named it."""
    timeline: str | None
    """Of the ledger in which it began (``commitline_timeline``); ``lost``: its row was lost."""
    now: datetime
    """The database's clock when the row was read."""

    @property
    def undo_under_way(self) -> bool:
        """Whether an undo of it has begun, and has not ended."""
        return self.undo_began_at is not None and self.undo_ended_at is None

    @property
    def can_look_up(self) -> bool:
        """Whether a relay has its tools: not of a workflow that is not ours."""
        return self.spec is not None or self.parent_key is not None

    def is_owned_by(self, workflow_id: str | None) -> bool:
        """Whether this workflow may act for it."""
        return self.owner in (None, workflow_id)

"""Child workflows: their calls belong to their parent's run, below the place where they were begun.

A reset parent starts its child anew, as another execution, often under another id. Its calls have
the same run key and the same positions (``child.Clerk#0.charge#0``), and so the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from ..activities.contract.encoding import pack, unpack
from ..identity import Position, RunKey
from ..workflows.action_headers import this_run

PARENT_HEADER: Final = "commitline-parent"


@dataclass(frozen=True)
class ParentCall:
    """Where in which run a child workflow was begun."""

    run_key: RunKey
    position: Position

    def header(self) -> dict[str, Payload]:
        """Return what tells the child."""
        return {PARENT_HEADER: pack(self).payload}


def parent_call(headers: Mapping[str, Payload]) -> ParentCall | None:
    """Return where the running workflow was begun; None of one that a caller started."""
    if PARENT_HEADER not in headers:
        return None
    return unpack(ParentCall, RawValue(headers[PARENT_HEADER]))


def place_of(at: Position) -> tuple[RunKey, Position]:
    """Return the run key of the running workflow's calls, and the full position of one.

    Raises:
        ApplicationError: The workflow's id cannot be a run's; final.
    """
    parent = parent_call(workflow.info().headers)
    if parent is None:
        return this_run(), at
    return parent.run_key, Position(f"{parent.position}.{at}")

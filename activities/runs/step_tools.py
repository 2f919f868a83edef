"""`StepTool`: what an undo, and the relay, must know of a tool that they call.

An app's `Tool` is one. Another framework's activity is one, too (`integrations`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..app.tool import Relay, UndoUnknown
from ..contract.deadlines import Deadline


class StepTool(Protocol):
    """One tool. No run plans these calls, so what a run would say of them is here."""

    @property
    def name(self) -> str:
        """The activity's type."""
        ...

    @property
    def lookup(self) -> object | None:
        """Whether the downstream system can be asked what became of a call; None: it cannot."""
        ...

    @property
    def state(self) -> object | None:
        """Whether a call gets the state of its conversation; None: it does not."""
        ...

    @property
    def undo_unknown(self) -> UndoUnknown:
        """What becomes of an unknown call when its run is undone."""
        ...

    @property
    def relay(self) -> Relay:
        """What the relay does about a call whose run is gone."""
        ...

    @property
    def tool_timeout(self) -> Deadline:
        """The deadline of one attempt."""
        ...

    @property
    def node_timeout(self) -> Deadline:
        """The deadline of a call with its retries."""
        ...


class StepTools(Protocol):
    """The tools of one worker; an `App` is one."""

    @property
    def tools(self) -> Sequence[StepTool]:
        """All of them."""
        ...

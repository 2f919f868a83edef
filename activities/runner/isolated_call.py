"""What passes between a worker and the process of an isolated tool: a request and an answer.

The stored arguments go in as JSON text and the outcome comes back as JSON text, written in the
child by the same codec. So it makes no difference where a tool runs.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Final

from ...canonical import scrub
from ...ledger.action_records import Outcome
from ...redaction import redact
from ..app.state_copy import GivenState
from ..app.tool import Tool
from ..app.tool_context import ToolContext, UndoneAction
from ..app.tool_failure import FailureKind, ToolFailure

SIZE_BYTES: Final = 8
"""An answer begins with its size in so many bytes."""
_MAX_MESSAGE: Final = 4_000
"""Characters of the message of an exception that travel."""


@dataclass(frozen=True)
class IsolatedCall:
    """From the worker to the process: the call of a tool."""

    module: str
    """The module that defines the tool."""
    name: str
    """The tool's name in that module."""
    args: str
    """The stored arguments, JSON text."""
    context: dict[str, Any]
    """The fields of its `ToolContext`."""
    state: dict[str, Any] | None
    """The fields of its `GivenState`; None if the tool takes no state."""
    path: list[str]
    """The worker's ``sys.path``."""
    parent: int
    """The worker's process id."""

    @classmethod
    def of(
        cls, tool: Tool, args: str, context: ToolContext, state: GivenState | None
    ) -> IsolatedCall:
        """Describe a call of the running worker."""
        return cls(
            module=tool.fn.__module__,
            name=tool.fn.__qualname__,
            args=args,
            context=asdict(replace(context, questions=None)),
            state=None if state is None else asdict(state),
            path=[str(place) for place in sys.path],
            parent=os.getpid(),
        )

    @classmethod
    def read(cls, line: bytes) -> IsolatedCall:
        """Read what `line` wrote."""
        return cls(**json.loads(line))

    @property
    def line(self) -> bytes:
        """The call as one line of JSON."""
        return json.dumps(asdict(self)).encode("ascii") + b"\n"

    @property
    def given_state(self) -> GivenState | None:
        """The state for the call; None if the tool takes none."""
        return None if self.state is None else GivenState(**self.state)

    @property
    def tool_context(self) -> ToolContext:
        """The context of the call."""
        undoes = self.context["undoes"]
        return ToolContext(**{**self.context, "undoes": undoes and UndoneAction(**undoes)})

    def find_tool(self) -> Tool:
        """Import the tool.

        Raises:
            Exception: Its module cannot be imported, or has no such tool.
        """
        found: Any = importlib.import_module(self.module)
        for part in self.name.split("."):
            found = getattr(found, part)
        if not isinstance(found, Tool):
            raise TypeError(f"{self.module}:{self.name} is no tool")
        return found


def write_answer(ended: Outcome | ToolFailure) -> bytes:
    """Return the answer of the process: how the call ended, as JSON."""
    if isinstance(ended, Outcome):
        return json.dumps({"outcome": asdict(ended)}).encode("ascii")
    after = ended.retry_after
    failure = {
        "kind": ended.kind,
        "type": ended.type,
        "message": scrub(ended.message, limit=_MAX_MESSAGE),
        "retry_after": None if after is None else after.total_seconds(),
    }
    return json.dumps({"failure": failure}).encode("ascii")


def read_answer(answer: bytes) -> Outcome | ToolFailure | None:
    """Return how the call ended; None if the process gave no answer."""
    try:
        data = json.loads(answer)
    except ValueError:
        return None
    if "outcome" in data:
        return Outcome(**data["outcome"])
    failure = data["failure"]
    after = failure["retry_after"]
    return ToolFailure(
        kind=FailureKind(failure["kind"]),
        type=failure["type"],
        message=redact(failure["message"]),  # by this process's hook, too
        retry_after=None if after is None else timedelta(seconds=after),
    )

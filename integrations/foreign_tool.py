"""A tool of another framework, as approvals, undo and the relay see it.

That is, `activities.runs.approvals.Approvable` and `activities.runs.step_tools.StepTool`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from temporalio.converter import PayloadConverter

from ..activities.app.tool import Relay, UndoUnknown
from ..activities.contract.deadlines import UNSET, Deadline
from ..canonical import Json, digest, dumps, parse
from ..errors import ArgumentsChanged, InvalidArguments
from .activity_signature import ActivitySignature
from .effect_rule import EffectRule


class ForeignTool:
    """One tool. People read, and edit, its arguments by name.

    Args:
        name: Of the tool.
        rule: What repeating a call would do, and who approves one.
        function: The user's own activity; None of a tool that validates its arguments itself.
        converter: Of the payloads.
    """

    def __init__(
        self,
        name: str,
        rule: EffectRule,
        function: Callable[..., Any] | None,
        converter: PayloadConverter,
    ) -> None:
        self.name = name
        self._rule = rule
        self.lookup = None
        self.state = None
        self.undo_unknown: UndoUnknown = "resend"
        self.relay: Relay = "lookup"
        self.tool_timeout: Deadline = UNSET
        self.node_timeout: Deadline = UNSET
        self._signature = None if function is None else ActivitySignature(name, function, converter)

    @property
    def approval_expires(self) -> timedelta | None:
        """See `Approvable`."""
        return self._rule.approval_expires

    def needs_approval(self, effective: str) -> bool:
        """See `Approvable`: also where the rule's function raises, since nobody else can judge."""
        approve = self._rule.approve
        if isinstance(approve, bool):
            return approve
        try:
            return bool(approve(parse(effective)))
        except Exception:
            return True

    def effective(self, requested: Json) -> str:
        """See `Approvable`: of an activity a list, or by name."""
        if self._signature is not None:
            return dumps(self._signature.named(self._signature.stored(requested)))
        if not isinstance(requested, dict):
            raise InvalidArguments(f"{self.name} takes its arguments by name")
        return dumps(requested)

    def domain_key(self, effective: str) -> str | None:
        """See `Approvable`: it is made when the call is."""
        return None

    def check_stored(self, stored: str) -> None:
        """See `Approvable`."""
        try:
            today = self.effective(parse(stored))
        except InvalidArguments as err:
            raise ArgumentsChanged(err.message) from err
        if digest(parse(today)) != digest(parse(stored)):
            raise ArgumentsChanged(f"{self.name} would be called with other arguments today")

    def stored(self, named: str) -> Json:
        """Return arguments (JSON text) as a call of the tool keeps them on its row.

        Raises:
            InvalidArguments: It cannot be called with them any more.
        """
        given = parse(named)
        return given if self._signature is None else self._signature.stored(given)

    def named(self, stored: Json) -> Json:
        """Return stored arguments as a person reads them."""
        return stored if self._signature is None else self._signature.named(stored)

    def of_these(self, given: Mapping[str, Json]) -> dict[str, Json]:
        """Return those of some arguments that the tool has parameters for."""
        assert self._signature is not None, "an activity undoes"
        return {name: one for name, one in given.items() if name in self._signature.names}

    def effective_args(self, args: Sequence[Any]) -> Json:
        """Return the activity's arguments as they are stored."""
        assert self._signature is not None, "as above"
        return self._signature.effective(args)

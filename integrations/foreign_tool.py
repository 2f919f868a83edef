"""A tool of another framework, as approvals see it (`activities.runs.approvals.Approvable`)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from temporalio.converter import PayloadConverter

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

"""The parameters of an activity: its arguments in order, by name, and as they are stored.

Stored arguments are a list in the order of the parameters, defaults among them. People read them,
and edit them, by name.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from temporalio.converter import PayloadConverter

from ..canonical import Json
from ..errors import ArgumentsChanged, InvalidArguments
from ..ledger.result_codec import error_text
from .stored_payload import kept_value, payload_of, unordered


class ActivitySignature:
    """The parameters of one activity.

    Args:
        tool: Its type.
        function: The activity.
        converter: Of its payloads.
    """

    def __init__(
        self, tool: str, function: Callable[..., Any], converter: PayloadConverter
    ) -> None:
        self._tool = tool
        self._converter = converter
        self._signature = inspect.signature(function)
        hints = typing.get_type_hints(getattr(function, "__func__", function))
        self._types = [hints.get(name, Any) for name in self._signature.parameters]

    @property
    def names(self) -> Collection[str]:
        """The names of the parameters, in order."""
        return self._signature.parameters.keys()

    def effective(self, args: Sequence[Any]) -> list[Json]:
        """Return arguments as they are stored.

        Raises:
            InvalidArguments: The function cannot be called with them.
        """
        try:
            bound = self._signature.bind(*args)
            bound.apply_defaults()
            return [kept_value(one, self._converter) for one in bound.args]
        except Exception as err:
            # Whatever a converter raises, these arguments cannot be kept, and so not be called.
            raise InvalidArguments(f"{self._tool}: {error_text(err)[:500]}") from err

    def named(self, stored: Json) -> dict[str, Json]:
        """Return stored arguments by name."""
        return dict(zip(self._signature.parameters, stored, strict=True))

    def stored(self, given: Json) -> list[Json]:
        """Return arguments as they are stored, from a list, or by name, defaults filled in.

        Raises:
            InvalidArguments: The function cannot be called with them.
        """
        try:
            args = self._decoded(self._listed(given) if isinstance(given, dict) else given)
        except InvalidArguments:
            raise
        except Exception as err:
            raise InvalidArguments(f"{self._tool}: {error_text(err)[:500]}") from err
        return self.effective(args)

    def to_the_letter(self, stored: Json) -> Sequence[Any]:
        """Return the arguments of a call, which are exactly the stored ones.

        Raises:
            ArgumentsChanged: The function cannot be called with exactly those any more.
        """
        try:
            args = self._decoded(stored)
            today = self.effective(args)
        except Exception as err:  # newer types may refuse them
            raise ArgumentsChanged(f"{self._tool}: {error_text(err)[:500]}") from err
        if unordered(today) != unordered(stored):
            raise ArgumentsChanged(
                f"{self._tool} cannot be called with exactly the arguments that are stored"
            )
        return args

    def _decoded(self, stored: Json) -> list[Any]:
        payloads = [payload_of(one) for one in stored]
        return self._converter.from_payloads(payloads, self._types[: len(payloads)])

    def _listed(self, named: Mapping[str, Json]) -> list[Json]:
        """Return named arguments in order, up to where only defaults are left.

        Raises:
            InvalidArguments: One is missing, or is no parameter.
        """
        parameters = self._signature.parameters
        if unknown := sorted(set(named) - set(parameters)):
            raise InvalidArguments(f"{self._tool} has no parameter {unknown[0]!r}")
        listed: list[Json] = []
        for name, parameter in parameters.items():
            if name in named:
                listed.append(named[name])
            elif parameter.default is not parameter.empty:
                listed.append(kept_value(parameter.default, self._converter))
            else:
                raise InvalidArguments(f"{self._tool} needs its argument {name!r}")
        return listed

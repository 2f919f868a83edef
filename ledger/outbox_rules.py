"""Which calls an application may intend, and what the database's answer means.

Pure: the statement itself is in `outbox`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from ..canonical import Json, digest, dumps
from ..errors import (
    CommitlineError,
    IdempotencyKeyConflict,
    IntentRefused,
    InvalidArguments,
    InvalidIdempotencyKey,
)
from ..idempotency_key import MAX_IDEMPOTENCY_KEY, check_idempotency_key
from ..identity import ActionKey
from .action_records import Effect
from .result_codec import error_text


class IntendedTool(Protocol):
    """What of a tool it takes to intend a call: `commitline.Tool` has it."""

    @property
    def name(self) -> str:
        """Of the tool; a worker has to serve it."""
        ...

    @property
    def effect(self) -> Effect:
        """What repeating a call would do."""
        ...

    @property
    def gated(self) -> bool:
        """Whether a person may have to approve a call."""
        ...

    @property
    def state(self) -> object:
        """The type of the state that it takes; None is none."""
        ...

    def effective(self, requested: Json) -> str:
        """Return the arguments, validated, their defaults fixed, as JSON text."""
        ...

    def sameness(self, effective: str) -> str:
        """Return the digest of what makes two calls the same business fact."""
        ...

    def domain_key(self, effective: str) -> str | None:
        """Return the key from the domain, if the tool declares one."""
        ...

    def undoes_key(self, effective: str) -> str | None:
        """Return the domain key of the action that the call undoes, if it undoes one."""
        ...


MAX_ARGUMENTS: Final = 1_000_000
"""Characters of a call's arguments: they travel through Temporal, which takes 2 MiB."""


class Intent:
    """A call that is to be intended, checked; and the meaning of the database's answer."""

    def __init__(
        self,
        tool: IntendedTool,
        args: Mapping[str, Any],
        idempotency_key: str | None,
        order_key: str | None,
    ) -> None:
        check_tool(tool)
        self._tool = tool.name
        try:
            self._args = tool.effective(dict(args))
            given = None if idempotency_key is None else check_idempotency_key(idempotency_key)
            self._domain_key = given or tool.domain_key(self._args)
            undoes = tool.undoes_key(self._args)
            sameness = tool.sameness(self._args)
        except CommitlineError:
            raise
        except Exception as err:  # a validator of the application may raise anything
            raise InvalidArguments(f"{tool.name}: {error_text(err)[:500]}") from err
        if len(self._args) > MAX_ARGUMENTS:
            raise InvalidArguments(
                f"{tool.name}: {len(self._args)} characters of arguments are over {MAX_ARGUMENTS}"
            )
        self.text = dumps(
            {
                "tool": tool.name,
                "args": self._args,
                "requested_digest": digest(dict(args)),
                "effective_digest": sameness,
                "domain_key": self._domain_key,
                "undoes_domain_key": undoes,
                "order_key": None if order_key is None else _check_order_key(order_key),
            }
        )
        """JSON, as ``commitline_intend`` takes it."""

    def key_of(self, row: Any) -> ActionKey:
        """Return the key in the database's answer, or raise the refusal in it."""
        key, verdict = row
        if verdict == "missing":
            raise IdempotencyKeyConflict(
                f"{self._domain_key!r} is held by {key}, whose record is gone", existing=key
            )
        if verdict == "undoing":
            raise IntentRefused(
                f"{self._domain_key!r} is held by {key}, which is just being undone: intend it "
                "again in a moment"
            )
        if verdict == "perhaps undone":
            raise IntentRefused(
                f"{self._domain_key!r} is held by {key}, which was perhaps undone: an undo of it "
                "is unknown, and to be settled first"
            )
        if verdict == "undone":
            raise IntentRefused(
                f"{key} has undone already what {self._tool} undoes: nothing is left to undo"
            )
        if verdict == "conflict":
            raise IdempotencyKeyConflict(
                f"{self._domain_key!r} was used by {key} for another tool or other arguments, and "
                f"is now asked for {self._tool}",
                existing=key,
            )
        return ActionKey(key)


def check_tool(tool: IntendedTool) -> None:
    """Refuse a tool whose calls may not be intended.

    Raises:
        IntentRefused: It only reads, a person approves its calls, or it takes a state.
    """
    if tool.effect is Effect.READ:
        raise IntentRefused(f"the tool {tool.name!r} is a READ: there is nothing to intend")
    if tool.gated:
        raise IntentRefused(f"the tool {tool.name!r} is approved by a person, in a run")
    if tool.state is not None:
        raise IntentRefused(f"the tool {tool.name!r} takes a state, which only a run has")


def _check_order_key(order_key: str) -> str:
    if not order_key.strip() or len(order_key) > MAX_IDEMPOTENCY_KEY or not order_key.isprintable():
        raise InvalidIdempotencyKey(
            f"an order_key is 1 to {MAX_IDEMPOTENCY_KEY} printable characters: {order_key[:80]!a}"
        )
    return order_key

"""What the actors call: tools of each effect, with and without a key from the domain, and undos."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from commitline.canonical import Json, digest, dumps, parse
from commitline.identity import Position, RunKey
from commitline.ledger import ActionRequest, Effect


@dataclass(frozen=True)
class Tool:
    """A tool; `intend` takes it as it is."""

    name: str
    effect: Effect
    key: str | None = None
    """The key from the domain; ``{}`` is the order."""
    compensator: str | None = None
    undoes: str | None = None
    """The domain key of what it undoes where a model, or an application, calls it."""
    detached: bool = False
    resend: bool = False
    """The relay sends it again where its run is gone."""
    parks_unknown: bool = False
    """An undo of its run sends nothing to learn the truth."""
    gated: bool = False
    """A person decides before it is called, and may change its arguments."""
    agent: bool = False
    """A sub-agent carries it out, in a run of its own."""
    asks: bool = False
    """It puts a question to a person before it sends anything."""
    state: object = None
    key_ttl: timedelta | None = None
    """How long the provider remembers a key."""

    @property
    def undoes_something(self) -> bool:
        """Whether there must be something to undo."""
        return self.undoes is not None or self.name in _COMPENSATORS

    @property
    def can_look_up(self) -> bool:
        """Whether the provider can be asked what became of a call."""
        return self.effect is Effect.LOOKUP

    def effective(self, requested: Json) -> str:
        """Return the arguments."""
        return dumps(requested)

    def sameness(self, effective: str) -> str:
        """Return what makes two calls the same business fact."""
        return digest(parse(effective))

    def domain_key(self, effective: str) -> str | None:
        """Return the key from the domain."""
        return None if self.key is None else self.key.format(parse(effective)["order"])

    def undoes_key(self, effective: str) -> str | None:
        """Return the domain key of what it undoes."""
        return None if self.undoes is None else self.undoes.format(parse(effective)["order"])


_CHARGE: Final = "order-{}-charge"
_ALL: Final = (
    Tool("charge", Effect.IDEMPOTENT, _CHARGE, compensator="refund"),
    Tool("refund", Effect.IDEMPOTENT, "order-{}-refund", undoes=_CHARGE),
    Tool("payback", Effect.AT_MOST_ONCE, undoes=_CHARGE),
    Tool("voucher", Effect.LOOKUP, "order-{}-voucher", undoes=_CHARGE),
    Tool("ship", Effect.LOOKUP, "order-{}-ship", compensator="unship"),
    Tool("unship", Effect.IDEMPOTENT),
    Tool("courier", Effect.LOOKUP, compensator="recall", resend=True),
    Tool("recall", Effect.LOOKUP),
    Tool("donate", Effect.IDEMPOTENT, compensator="repay", parks_unknown=True),
    Tool("repay", Effect.AT_MOST_ONCE),
    Tool("clerk", Effect.IDEMPOTENT, agent=True),
    Tool("wire", Effect.AT_MOST_ONCE, "order-{}-wire", compensator="repay", gated=True),
    Tool("book", Effect.IDEMPOTENT, "order-{}-booking", compensator="unship", asks=True),
    Tool("choose", Effect.AT_MOST_ONCE, asks=True),
    Tool("mail", Effect.AT_MOST_ONCE),
    Tool("letter", Effect.AT_MOST_ONCE, "order-{}-letter"),
    Tool("renew", Effect.IDEMPOTENT, "order-{}-renewal", key_ttl=timedelta(days=1)),
    Tool("top_up", Effect.IDEMPOTENT, key_ttl=timedelta(days=1), resend=True),
    Tool("tell", Effect.IDEMPOTENT, detached=True),
    Tool("invoice", Effect.IDEMPOTENT, "order-{}-invoice", compensator="unship", detached=True),
)
TOOLS: Final = {tool.name: tool for tool in _ALL}
_COMPENSATORS: Final = {tool.compensator for tool in _ALL if tool.compensator is not None}


@dataclass(frozen=True)
class Theme:
    """What the actors of a round do: few things, so that they meet."""

    orders: int
    called: Sequence[str]
    """The tools that models call, as often as they do."""
    intended: Sequence[str]
    """The tools whose calls applications intend."""
    fails: float = 0.2
    """How many of the runs that come to their end fail, and are undone."""


_REFUNDS: Final = ("refund", "refund", "payback", "voucher")
_DELIVERIES: Final = (
    *("ship", "ship", "courier", "letter", "mail", "mail"),
    *("tell", "invoice", "renew", "top_up"),
)
_ASKING: Final = ("wire", "book", "choose")
THEMES: Final = (
    Theme(2, ("charge", "charge", "charge", *_REFUNDS), ("charge", "charge", *_REFUNDS)),
    Theme(2, _DELIVERIES, ("ship", "letter", "mail", "renew")),
    Theme(
        2,
        ("charge", "donate", "donate", "courier", "ship", "clerk", "clerk", *_ASKING),
        ("charge", "refund"),
        fails=0.6,
    ),
    Theme(1, ("clerk", "clerk", "courier", "top_up"), ("mail",), fails=0.1),
    Theme(
        3,
        (*["charge"] * 4, *_REFUNDS, *_DELIVERIES, "donate", "clerk", "clerk", *_ASKING),
        (*["charge"] * 3, *_REFUNDS, "ship", "letter", "mail"),
    ),
)
"""Charges and refunds; what cannot be sent twice; what is undone, or waits for people; what
sub-agents do, and is tried again; all."""


def request_of(
    tool: Tool, run: RunKey, at: Position, args: str, *, thread: str | None, **given: Any
) -> ActionRequest:
    """Return what a call of a run claims."""
    same = digest(parse(args))
    detached = tool.detached and given.get("purpose", "forward") == "forward"
    plain: dict[str, Any] = {
        "requested_digest": same,
        "effective_digest": same,
        "domain_key": tool.domain_key(args),
        "undoes_domain_key": tool.undoes_key(args),
        "compensator": tool.compensator,
        "key_ttl": tool.key_ttl,
        "detached": detached,
        "can_look_up": tool.can_look_up,
        "settles_after": timedelta(),
        "thread_id": thread,
        "owner": run,
    }
    return ActionRequest(run, at, tool.name, args, tool.effect, **{**plain, **given})

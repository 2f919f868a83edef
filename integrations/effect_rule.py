"""`effect`: what repeating a call would do, for activities and tools of other frameworks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, Final, TypeAlias, TypeVar

from temporalio import activity

from ..activities.app.tool_failure import Exceptions, exception_classes
from ..activities.contract.deadlines import LONGEST
from ..errors import DefinitionError
from ..idempotency_key import KeyTemplate
from ..ledger.action_records import Effect

F = TypeVar("F", bound=Callable[..., Any])
Approve: TypeAlias = bool | Callable[[dict[str, Any]], Any]
"""Whether a person has to approve a call, or a function of its arguments by name that says so."""

DECLARE_ONE: Final = (
    "declare READ (repeating it harms nobody), IDEMPOTENT (it takes the call's key) or "
    "AT_MOST_ONCE (neither), with `@effect(...)` or `LedgerPlugin(effects={...})`"
)
"""What to do about a tool that has none."""
_ATTRIBUTE: Final = "__commitline_effect__"
"""Of a function that `effect` decorates."""
_METADATA: Final = "commitline"
"""The key of a rule in the metadata of a pydantic-ai tool."""


@dataclass(frozen=True)
class EffectRule:
    """What repeating a call would do, and its business key. Made by `effect`."""

    effect: Effect
    idempotency_key: str | None = None
    key_ttl: timedelta | None = None
    refused_on: Exceptions = ()
    retry_on: Exceptions | None = None
    tries: int = 3
    approve: Approve = False
    approval_expires: timedelta | None = timedelta(hours=72)
    compensate: str | None = None

    def __call__(self, function: F) -> F:
        """Give the rule to a function, above or below ``@activity.defn``."""
        setattr(function, _ATTRIBUTE, self)
        return function

    @cached_property
    def template(self) -> KeyTemplate | None:
        """The business key, parsed."""
        return None if self.idempotency_key is None else KeyTemplate.parse(self.idempotency_key)

    @property
    def gated(self) -> bool:
        """Whether a person may have to approve a call."""
        return self.approve is not False

    @property
    def metadata(self) -> dict[str, Any]:
        """The rule as the ``metadata`` of a pydantic-ai tool, which travels with every call.

        Raises:
            DefinitionError: It names classes of exceptions or a function, which do not travel.
        """
        if self.refused_on or self.retry_on is not None:
            raise DefinitionError("refused_on and retry_on do not travel in a tool's metadata")
        if callable(self.approve):
            raise DefinitionError(
                "a function does not travel in a tool's metadata: give the tool its rule in "
                "LedgerPlugin(effects={...})"
            )
        return {
            _METADATA: {
                "effect": self.effect.value,
                "idempotency_key": self.idempotency_key,
                "key_ttl_seconds": _seconds(self.key_ttl),
                "tries": self.tries,
                "approve": self.approve,
                "approval_expires_seconds": _seconds(self.approval_expires),
                "compensate": self.compensate,
            }
        }


def effect(
    what: Effect,
    *,
    idempotency_key: str | None = None,
    key_ttl: timedelta | None = None,
    refused_on: Exceptions = (),
    retry_on: Exceptions | None = None,
    tries: int = 3,
    approve: Approve = False,
    approval_expires: timedelta | None = timedelta(hours=72),
    compensate: str | Callable[..., Any] | None = None,
) -> EffectRule:
    """Say what repeating a call would do.

    Use the rule as a decorator of your own activity, in ``LedgerPlugin(effects={...})`` for code
    that is not yours, and as ``metadata=effect(...).metadata`` for a tool of pydantic-ai.

    Args:
        what: A ``READ`` stays out of the ledger. ``LOOKUP`` needs a tool of Commitline's own.
        idempotency_key: A key from the domain, over the names of the parameters:
            ``"order-{order_id}-charge"``.
        key_ttl: How long the downstream system remembers a key; None is for ever. For
            ``IDEMPOTENT`` only.
        refused_on: Exceptions that mean that nothing happened, for good.
        retry_on: Exceptions that are worth another try with the same key; by default connection
            errors, the time-outs of clients, 408, 409, 429 and 5xx.
        tries: How often a call may fail by them, all attempts together.
        approve: Whether a person has to approve each call before it is made, or a function of its
            arguments by name that says so; one that raises, or hangs, means yes. The call waits
            in its workflow, and what is decided about is what is sent.
        approval_expires: How long a call waits for that; None is for ever.
        compensate: The activity that takes a call back, or its name. It has a rule of its own. Its
            parameters get the arguments of the same names, and ``result`` what the call returned.

    Raises:
        DefinitionError: It cannot work as declared.
    """
    rule = EffectRule(
        what,
        idempotency_key,
        key_ttl,
        exception_classes("effect", refused_on),
        None if retry_on is None else exception_classes("effect", retry_on),
        tries,
        approve,
        approval_expires,
        _compensator(compensate),
    )
    _check(rule)
    return rule


def rule_of(function: Callable[..., Any]) -> EffectRule | None:
    """Return the rule that `effect` gave to a function; None if it has none."""
    found = getattr(function, _ATTRIBUTE, None)
    return found if isinstance(found, EffectRule) else None


def rule_in(metadata: Mapping[str, Any] | None) -> EffectRule | None:
    """Return the rule in the metadata of a tool; None if it has none.

    Raises:
        DefinitionError: What stands there is no rule.
    """
    found = (metadata or {}).get(_METADATA)
    if found is None:
        return None
    try:
        return effect(
            Effect(found["effect"]),
            idempotency_key=found.get("idempotency_key"),
            key_ttl=_duration(found.get("key_ttl_seconds")),
            tries=found.get("tries", 3),
            approve=found.get("approve", False),
            approval_expires=_duration(found.get("approval_expires_seconds")),
            compensate=found.get("compensate"),
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as err:
        raise DefinitionError(f"the metadata {found!r} is no effect(...).metadata") from err


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()


def _duration(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _compensator(named: str | Callable[..., Any] | None) -> str | None:
    if named is None or isinstance(named, str):
        return named
    defined = activity._Definition.from_callable(named)
    if defined is None or defined.name is None:
        raise DefinitionError(f"{named!r}, which undoes, is no activity; use @activity.defn")
    return defined.name


def _check(rule: EffectRule) -> None:
    what = f"effect(Effect.{rule.effect.name})"
    if rule.effect == Effect.LOOKUP:
        raise DefinitionError(f"{what}: only a tool of Commitline's own can be looked up")
    if rule.effect == Effect.READ and (rule.idempotency_key or rule.key_ttl):
        raise DefinitionError(f"{what} has no key")
    if rule.effect == Effect.READ and rule.compensate is not None:
        raise DefinitionError(f"{what} has nothing to undo")
    if rule.key_ttl is not None:
        if rule.effect != Effect.IDEMPOTENT:
            raise DefinitionError(f"{what} has a key_ttl and is no IDEMPOTENT")
        if not timedelta() < rule.key_ttl <= LONGEST:
            raise DefinitionError(f"{what} has a key_ttl of {rule.key_ttl}: 0 to ten years")
    _check_approval(rule, what)
    if rule.tries < 1:
        raise DefinitionError(f"{what} has no tries; one is the least")
    rule.template  # noqa: B018 - parsed now, so that a wrong one is refused here


def _check_approval(rule: EffectRule, what: str) -> None:
    if not (isinstance(rule.approve, bool) or callable(rule.approve)):
        raise DefinitionError(f"{what} has approve={rule.approve!r}: True, or a function")
    if rule.gated and rule.effect == Effect.READ:
        raise DefinitionError(f"{what} has nothing to approve: only an effect is")
    expires = rule.approval_expires
    if expires is not None and not timedelta() < expires <= LONGEST:
        raise DefinitionError(f"{what} has an approval_expires of {expires}: 0 to ten years")

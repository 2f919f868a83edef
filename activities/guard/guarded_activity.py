"""Any activity under the guard: the plain ``@activity.defn`` functions of anybody's workflow.

Arguments and results are kept as the client's payload converter writes them: JSON as JSON,
everything else (bytes, protobuf, NaN) as its payload in base64. What is called is made from
the stored payloads, and what the workflow gets is made from the stored result, so a replay
gets the same payload that the first attempt got. An outcome other than a result reaches the
workflow as a failure whose ``type`` says which; none of them is retried.

A guarded function finds its idempotency key in `activities.app.tool_context.current_call`.
"""

from __future__ import annotations

import base64
import inspect
import typing
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, NoReturn

from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from ...canonical import Json, canonical, digest, dumps, parse, scrub
from ...errors import (
    ActionError,
    ArgumentsChanged,
    DefinitionError,
    IdempotencyKeyConflict,
    InvalidArguments,
    UnrepresentableValue,
)
from ...idempotency_key import KeyTemplate
from ...ledger import Action, ActionRequest, Effect, Outcome
from ...ledger.result_codec import error_text
from ..app.tool_failure import Exceptions, ToolFailure, exception_classes
from ..contract.action_header import ActionHeader
from ..contract.deadlines import LONGEST, CallLimits
from ..runner.clock import time_left

OUTCOME_UNKNOWN: Final = "OutcomeUnknown"
"""The failure's type when a call may have happened and a person has to settle it."""
ACTION_ACCEPTED: Final = "ActionAccepted"
"""The failure's type when the relay carries the action out."""

_JSON: Final = {"encoding": b"json/plain"}
_PAYLOAD: Final = "$payload"
"""The one key of the object that stands for a payload which is not plain JSON."""


class GuardedActivity:
    """An activity function as the guard sees it (`protocols.Guarded`).

    Args:
        function: Under ``@activity.defn``; a method is given bound to its object.
        effect: What repeating it would do. A ``READ`` stays out of the ledger, and what it
            raises is retried as the workflow's retry policy says.
        idempotency_key: A key from the domain, over the names of the function's parameters.
        key_ttl: How long the downstream system remembers a key; None is for ever.
        refused_on: Exceptions that mean what `ToolRefused` does: declined, nothing happened.
        retry_on: Exceptions that are worth another try; see `tool`.
        tries: How often a call may fail by them, as far as the workflow's policy allows.

    Deadlines are the workflow's own: Temporal's time-outs. There is no lookup, no shared state and
    no question to a person, and a workflow that is not ours records no outcome later.

    Raises:
        DefinitionError: It cannot work as declared.
    """

    lookup = None
    state = None
    questions = None
    hand_over = None
    runs_apart = False

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        effect: Effect,
        idempotency_key: str | None = None,
        key_ttl: timedelta | None = None,
        refused_on: Exceptions = (),
        retry_on: Exceptions | None = None,
        tries: int = 3,
    ) -> None:
        # The SDK's own reading: a name that only looked right would leave the activity unguarded.
        defined = activity._Definition.from_callable(function)
        if defined is None or defined.name is None:
            raise DefinitionError(f"{function!r} is no activity of one name; use @activity.defn")
        self.name = defined.name
        self.effect = effect
        self._template = None if idempotency_key is None else KeyTemplate.parse(idempotency_key)
        self._key_ttl = key_ttl
        what = f"the activity {self.name!r}"
        self._refused_on = exception_classes(what, refused_on)
        self._retry_on = None if retry_on is None else exception_classes(what, retry_on)
        # A READ is retried as the workflow's policy says, and by nothing else.
        self.tries = 1 if effect is Effect.READ else tries
        self.ends_when_cancelled = inspect.iscoroutinefunction(function)  # a thread goes on
        self.replies = _Replies(final=effect is not Effect.READ)
        self._signature = inspect.signature(function)
        hints = typing.get_type_hints(getattr(function, "__func__", function))
        self._types = [hints.get(name, Any) for name in self._signature.parameters]
        self._check()

    def limits(self, header: ActionHeader) -> CallLimits:
        """See `Guarded`: the workflow's own."""
        whole = activity.info().schedule_to_close_timeout
        return time_left(CallLimits(None, whole.total_seconds() if whole else None))

    def failure(self, error: BaseException) -> ToolFailure:
        """See `Guarded`."""
        return ToolFailure.of(error, refused_on=self._refused_on, retry_on=self._retry_on)

    def request(self, args: Sequence[Any], header: ActionHeader) -> ActionRequest:
        """See `Guarded`."""
        arguments = self._effective(args)
        named = dict(zip(self._signature.parameters, arguments, strict=True))
        return ActionRequest(
            run_key=header.run_key,
            position=header.position,
            tool=self.name,
            args=dumps(arguments),
            effect=self.effect,
            requested_digest=header.requested_digest,
            effective_digest=digest(arguments),
            domain_key=None if self._template is None else self._template.render(named),
            key_ttl=self._key_ttl,
            thread_id=header.thread_id or header.run_key,
        )

    def undo_args(self, undone: Action) -> str:
        """See `Guarded`: only tools undo."""
        raise DefinitionError(f"{self.name!r} undoes nothing, so not {undone.key}")

    def stored_args(self, request_args: str) -> Sequence[Any]:
        """See `Guarded`."""
        stored = parse(request_args)
        payloads = [_payload(kept) for kept in stored]
        try:
            types = self._types[: len(payloads)]
            args = activity.payload_converter().from_payloads(payloads, types)
            today = self._effective(args)
        except Exception as err:  # newer types may refuse them
            raise ArgumentsChanged(f"{self.name}: {error_text(err)[:500]}") from err
        if _unordered(today) != _unordered(stored):
            raise ArgumentsChanged(
                f"{self.name} cannot be called with exactly the arguments that are stored"
            )
        return args

    def encode(self, value: Any) -> Outcome:
        """See `Guarded`."""
        try:
            return Outcome.ok(dumps(_kept(activity.payload_converter().to_payload(value))))
        except Exception as err:
            return Outcome.error(
                kind="UnrepresentableResult",
                message=(
                    f"{self.name} ran, and its effect stands, but its result of type "
                    f"{type(value).__qualname__} could not be kept ({error_text(err)[:200]})"
                ),
                effect_possible=True,
            )

    def _effective(self, args: Sequence[Any]) -> list[Json]:
        """Return the arguments as they are kept, the function's defaults among them."""
        try:
            bound = self._signature.bind(*args)
            bound.apply_defaults()
            return [
                _kept(payload) for payload in activity.payload_converter().to_payloads(bound.args)
            ]
        except Exception as err:
            # Whatever a converter raises, these arguments cannot be kept, and so not be called.
            raise InvalidArguments(f"{self.name}: {error_text(err)[:500]}") from err

    def _check(self) -> None:
        kinds = {parameter.kind for parameter in self._signature.parameters.values()}
        if inspect.Parameter.VAR_POSITIONAL in kinds:
            raise DefinitionError(f"the activity {self.name!r} may not have *args")
        if self.effect is Effect.READ and (self._template or self._key_ttl):
            raise DefinitionError(f"the activity {self.name!r} is a READ: it has no key")
        if self.effect is Effect.LOOKUP:
            raise DefinitionError(f"the activity {self.name!r} cannot say how it is looked up")
        if self.effect is not Effect.IDEMPOTENT and self._key_ttl is not None:
            raise DefinitionError(f"the activity {self.name!r} has a key_ttl and is no IDEMPOTENT")
        if self._key_ttl is not None and self._key_ttl <= timedelta():
            raise DefinitionError(f"the activity {self.name!r} has a key_ttl that is not positive")
        if self._key_ttl is not None and self._key_ttl > LONGEST:
            raise DefinitionError(f"the activity {self.name!r} has a key_ttl over ten years")
        if self.tries < 1:
            raise DefinitionError(f"the activity {self.name!r} has no tries; one is the least")
        fields = self._template.fields if self._template else frozenset()
        if unknown := sorted(fields - set(self._signature.parameters)):
            raise DefinitionError(f"the activity {self.name!r} has no parameter {unknown[0]}")


class _Replies:
    """See `protocols.Replies`: the result's payload, or a failure whose ``type`` says which."""

    def __init__(self, *, final: bool) -> None:
        self._final = final

    def done(
        self, key: str, outcome: Outcome, duplicate_of: str | None, limit: int | None
    ) -> RawValue:
        """See `protocols.Replies`. A receipt is the result: the ledger says who called first."""
        if outcome.kind == "ok":
            return RawValue(_payload(outcome.value))
        error = outcome.value
        raise _failure(error["type"], error["message"], key, final=self._final)

    def raised(self, failure: ToolFailure, error: BaseException | None) -> NoReturn:
        """See `protocols.Replies`: a READ's own failure, retried as the workflow's policy says."""
        raise error or ApplicationError(failure.text, type=failure.type)

    def unknown(self, action: Action) -> NoReturn:
        """See `protocols.Replies`."""
        raise _failure(
            OUTCOME_UNKNOWN,
            f"{action.duplicate_of or action.key} may or may not have happened: "
            f"{action.parked_reason}; an operator settles it, and asking again will not repeat "
            "it while it is unknown",
            action.key,
        )

    def accepted(self, action: Action, *, own: bool) -> NoReturn:
        """See `protocols.Replies`."""
        raise _failure(
            ACTION_ACCEPTED,
            f"{action.key} is not done yet: the relay carries it out; it may still fail",
            action.key,
        )

    def refused(self, error: ActionError | IdempotencyKeyConflict, key: str) -> NoReturn:
        """See `protocols.Replies`."""
        raise _failure(type(error).__name__, str(error), key) from error


def _kept(payload: Payload) -> Json:
    """Return a payload as JSON data: plain JSON as itself, all else as metadata and base64."""
    metadata = dict(payload.metadata)
    if metadata == {"encoding": b"binary/null"}:
        return None
    if metadata == _JSON:
        try:
            value = parse(payload.data.decode("utf-8"))
            if value is not None and not (isinstance(value, dict) and _PAYLOAD in value):
                return value
        except (UnrepresentableValue, UnicodeDecodeError):
            pass  # JSON that is none in our sense, such as NaN
    named = {name: text.decode("latin-1") for name, text in sorted(metadata.items())}
    return {_PAYLOAD: {"metadata": named, "data": base64.b64encode(payload.data).decode("ascii")}}


def _unordered(kept: Json) -> Json:
    """Return what is kept for comparison: a converter may write a set in any order."""
    if isinstance(kept, dict):
        if _PAYLOAD in kept:
            return _PAYLOAD  # not JSON: equal values may have several forms
        return {name: _unordered(value) for name, value in kept.items()}
    if isinstance(kept, list):
        return sorted(map(_unordered, kept), key=canonical)
    return kept


def _payload(kept: Json) -> Payload:
    """Return the payload that `_kept` kept."""
    if kept is None:
        return Payload(metadata={"encoding": b"binary/null"})
    if isinstance(kept, dict) and _PAYLOAD in kept:
        inner = kept[_PAYLOAD]
        metadata = {name: text.encode("latin-1") for name, text in inner["metadata"].items()}
        return Payload(metadata=metadata, data=base64.b64decode(inner["data"]))
    return Payload(metadata=_JSON, data=dumps(kept).encode("ascii"))


def _failure(kind: str, message: str, key: str, *, final: bool = True) -> ApplicationError:
    # Final: the outcome is recorded, and asking again would only read it again.
    return ApplicationError(scrub(message, limit=1_000), key, type=kind, non_retryable=final)

"""What an exception of a tool means: can something have happened, and may another try help?

Two things decide: the class of the exception, and the status code that it carries in an attribute
(HTTP's as a number, Postgres's as ``sqlstate``). A number in the text of a message is no status
code. No client is imported for this; the well-known ones are recognised by the names of their
classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeAlias

from ...canonical import scrub
from ...errors import (
    ArgumentsChanged,
    DefinitionError,
    NotAttempted,
    StillInProgress,
    ToolRefused,
    ToolTimeout,
)
from ...ledger.action_records import Outcome
from ...ledger.result_codec import error_text
from ..contract.retry_rules import ERROR_STATUSES, RETRYABLE_STATUSES, requested_delay
from .contained_error import ContainedError

Exceptions: TypeAlias = tuple[type[BaseException], ...]
"""Classes of exceptions, as ``except`` takes them."""

# Connection errors and time-outs of the clients that people use, by package and class. Their
# bases are too wide (requests puts every error of its own under OSError).
_RETRYABLE_CLASSES: Final = frozenset(
    {
        ("httpx", "TransportError"),
        ("httpcore", "NetworkError"),
        ("httpcore", "TimeoutException"),
        ("httpcore", "ProtocolError"),
        ("requests", "ConnectionError"),
        ("requests", "Timeout"),
        ("requests", "ChunkedEncodingError"),
        ("urllib3", "TimeoutError"),
        ("urllib3", "ProtocolError"),
        ("urllib3", "MaxRetryError"),
        ("aiohttp", "ClientConnectionError"),
        ("aiohttp", "ClientPayloadError"),
        ("http", "IncompleteRead"),
        ("botocore", "ConnectionError"),
        ("botocore", "HTTPClientError"),
        ("anyio", "BrokenResourceError"),
        ("stripe", "APIConnectionError"),
        ("redis", "ConnectionError"),
        ("redis", "TimeoutError"),
        ("azure", "ServiceRequestError"),
        ("azure", "ServiceResponseError"),
        ("azure", "IncompleteReadError"),
        ("openai", "APIConnectionError"),
        ("anthropic", "APIConnectionError"),
        ("elastic_transport", "ConnectionError"),
        ("elastic_transport", "ConnectionTimeout"),
        ("pymongo", "ConnectionFailure"),
        ("psycopg", "OperationalError"),
        ("psycopg2", "OperationalError"),
        ("sqlalchemy", "TimeoutError"),
    }
)
# What Postgres answers and a later try may not get: no connection, rolled back (a deadlock, a
# serialization failure), no resources, a lock or a time-out, it shuts down.
_RETRYABLE_SQLSTATES: Final = ("08", "40", "53", "55P03", "57014", "57P")
_RETRYABLE_GRPC: Final = frozenset(
    {"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "INTERNAL", "UNKNOWN"}
)
"""Names of gRPC's status codes, which an exception of its clients returns from ``code()``. The last
two are what other clients' 500 is."""


class FailureKind(StrEnum):
    """What to do about an exception of a tool."""

    REFUSED = "refused"
    """Nothing happened, for good: an error without effect."""
    NOT_ATTEMPTED = "not_attempted"
    """Nothing happened this time: try again."""
    IN_PROGRESS = "in_progress"
    """The downstream system is still doing it: try again, with the same key."""
    TRANSIENT = "transient"
    """It may have happened; another try with the same key may succeed."""
    OTHER = "other"
    """It may have happened; another try is of no use."""


@dataclass(frozen=True)
class ToolFailure:
    """An exception of a tool, in the form in which it is recorded and shown."""

    kind: FailureKind
    """What to do about it."""
    type: str
    """The name of its class."""
    message: str
    """Its text."""
    retry_after: timedelta | None = None
    """How long the other side wants us to wait; None if it did not say."""
    interrupts: bool = False
    """The call was interrupted by its framework, which makes it again: nothing has failed."""

    @classmethod
    def of(
        cls, error: BaseException, *, refused_on: Exceptions, retry_on: Exceptions | None
    ) -> ToolFailure:
        """Read an exception; see `classify`."""
        if isinstance(error, ContainedError):
            error = error.original
        try:
            kind = classify(error, refused_on=refused_on, retry_on=retry_on)
            if not isinstance(error, refused_on if retry_on is None else (*refused_on, *retry_on)):
                error = _members(error)[0]
            after = retry_after(error)
        except Exception:
            # Its attributes are foreign code and may raise: then the exception says nothing.
            kind, after = FailureKind.OTHER, None
        return cls(kind, type(error).__name__, error_text(error), after)

    @property
    def counts(self) -> bool:
        """Whether it uses up one of the call's tries."""
        return self.kind is not FailureKind.IN_PROGRESS and not self.interrupts

    @property
    def text(self) -> str:
        """The class and the message in one line of at most 1,000 characters."""
        return scrub(f"{self.type}: {self.message}", limit=1_000)

    @property
    def without_effect(self) -> Outcome:
        """The outcome of a call that ended so and had no effect."""
        return Outcome.error(kind=self.type, message=self.message, effect_possible=False)


def exception_classes(whose: str, given: Any) -> Exceptions:
    """Return exception classes as a tuple, also where one alone is given.

    Raises:
        DefinitionError: Something among them is no exception class.
    """
    classes = tuple(given) if isinstance(given, list | tuple | set | frozenset) else (given,)
    for one in classes:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise DefinitionError(f"{whose} names {one!r}, which is no exception class")
    return classes


def classify(
    error: BaseException, *, refused_on: Exceptions = (), retry_on: Exceptions | None = None
) -> FailureKind:
    """Say what an exception of a tool means.

    Args:
        error: What the tool raised.
        refused_on: Exceptions that the tool declares to mean "declined, nothing happened".
        retry_on: Exceptions that it declares to be worth another try. By default connection
            errors, the clients' time-outs, our `ToolTimeout`, and 408, 409, 429, 5xx.
    """
    # Stored arguments that do not fit any more are found out before the tool is called.
    if isinstance(error, (ToolRefused, ArgumentsChanged, *refused_on)):
        return FailureKind.REFUSED
    if isinstance(error, NotAttempted):
        return FailureKind.NOT_ATTEMPTED
    if isinstance(error, StillInProgress):
        return FailureKind.IN_PROGRESS
    if retry_on is not None and isinstance(error, retry_on):
        return FailureKind.TRANSIENT
    if isinstance(error, BaseExceptionGroup):
        # Of a task group. Where its members disagree, it says nothing.
        members = _members(error)
        kinds = {classify(one, refused_on=refused_on, retry_on=retry_on) for one in members}
        return kinds.pop() if len(kinds) == 1 else FailureKind.OTHER
    transient = retry_on is None and _is_transient(error)
    return FailureKind.TRANSIENT if transient else FailureKind.OTHER


def retry_after(error: BaseException) -> timedelta | None:
    """Return how long the other side wants us to wait, a day at most, if the exception says so."""
    delay = requested_delay(getattr(error, "retry_after", None))
    if delay is not None:
        return delay
    for holder in _holders(error):
        get = getattr(getattr(holder, "headers", None), "get", None)
        delay = requested_delay(get("retry-after")) if callable(get) else None
        if delay is not None:
            return delay
    return None


def _members(error: BaseException) -> list[BaseException]:
    """Return the exceptions in a group, and in groups in it; of any other one, itself."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [one for member in error.exceptions for one in _members(member)]


def _is_transient(error: BaseException) -> bool:
    status = _status(error)
    if status is not None:
        return status in RETRYABLE_STATUSES
    sqlstate = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if isinstance(sqlstate, str):
        return sqlstate.startswith(_RETRYABLE_SQLSTATES)
    names = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
    if ("grpc", "RpcError") in names:
        code = getattr(error, "code", None)
        return callable(code) and getattr(code(), "name", None) in _RETRYABLE_GRPC
    if (
        isinstance(error, ConnectionError | TimeoutError | ToolTimeout)
        or names & _RETRYABLE_CLASSES
    ):
        return True
    # SQLAlchemy and urllib wrap what happened.
    wrapped = getattr(error, "orig" if ("sqlalchemy", "DBAPIError") in names else "reason", None)
    return isinstance(wrapped, Exception) and _is_transient(wrapped)


def _status(error: BaseException) -> int | None:
    """Return the HTTP status that an exception carries, if it is a plausible one."""
    if not isinstance(error, Exception):
        return None  # the code of a SystemExit is no status
    for holder in _holders(error):
        for attribute in ("status_code", "status", "code", "http_status", "HTTPStatusCode"):
            read = holder.get if isinstance(holder, dict) else partial(getattr, holder)
            value = read(attribute, None)
            if isinstance(value, int) and not isinstance(value, bool) and value in ERROR_STATUSES:
                return value
    return None


def _holders(error: BaseException) -> Iterator[Any]:
    yield error
    response = getattr(error, "response", None)
    if response is not None:
        # botocore's is a dict: a status stands in its metadata.
        yield response.get("ResponseMetadata") if isinstance(response, dict) else response

"""What an exception of a tool means: did something happen, and is another try of any use?

Only real signs decide: the class of the exception, and the status code that it carries as a
number in an attribute. A number in the text of a message is no status code. No HTTP library
is imported for this; the well-known ones are recognised by the names of their classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any, Final, TypeAlias

from ...canonical import scrub
from ...errors import NotAttempted, StillInProgress, ToolRefused, ToolTimeout
from ...ledger.codec import error_text
from ...ledger.records import Outcome

Exceptions: TypeAlias = tuple[type[BaseException], ...]

ERROR_STATUSES: Final = range(400, 600)
"""What an exception may carry as a status; anything else is none."""
RETRYABLE_STATUSES: Final = frozenset({408, 409, 429, *range(500, 600)})

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
    }
)
MAX_RETRY_AFTER: Final = timedelta(days=1)
"""What is asked for beyond this is taken as this; it need not fit a timedelta at all."""


class Contained(Exception):
    """Carries a tool's SystemExit and the like, which would end the loop that it passes."""

    def __init__(self, original: BaseException) -> None:
        super().__init__(error_text(original))
        self.original = original


class Kind(StrEnum):
    """What to do about an exception of a tool."""

    REFUSED = "refused"
    """Nothing happened, for good: an error without effect."""
    NOT_ATTEMPTED = "not_attempted"
    """Nothing happened this time: try again."""
    IN_PROGRESS = "in_progress"
    """The downstream system is at it: ask again, with the same key."""
    TRANSIENT = "transient"
    """It may have happened; another try with the same key may tell."""
    OTHER = "other"
    """It may have happened; another try is of no use."""


@dataclass(frozen=True)
class Failure:
    """An exception of a tool, as it is told and kept."""

    kind: Kind
    type: str
    """The exception's class."""
    message: str
    retry_after: timedelta | None = None
    """How long the other side asked us to wait, if it did."""

    @classmethod
    def of(
        cls, error: BaseException, *, refused_on: Exceptions, retry_on: Exceptions | None
    ) -> Failure:
        """Read an exception; see `classify`."""
        if isinstance(error, Contained):
            error = error.original
        try:
            kind = classify(error, refused_on=refused_on, retry_on=retry_on)
            after = retry_after(error)
        except Exception:
            # Its attributes are foreign code, and may raise: then it says nothing.
            kind, after = Kind.OTHER, None
        return cls(kind, type(error).__name__, error_text(error), after)

    @property
    def told(self) -> str:
        """Class and text in a line, capped."""
        return scrub(f"{self.type}: {self.message}", limit=1_000)

    @property
    def without_effect(self) -> Outcome:
        """The outcome of a call that this ended, where nothing has happened."""
        return Outcome.error(kind=self.type, message=self.message, effect_possible=False)


def classify(
    error: BaseException, *, refused_on: Exceptions = (), retry_on: Exceptions | None = None
) -> Kind:
    """Say what an exception of a tool means.

    Args:
        error: What the tool raised.
        refused_on: Exceptions that the tool declares to mean "declined, nothing happened".
        retry_on: Exceptions that it declares to be worth another try. By default connection
            errors, the clients' time-outs, our `ToolTimeout`, and 408, 409, 429, 5xx.
    """
    if isinstance(error, (ToolRefused, *refused_on)):
        return Kind.REFUSED
    if isinstance(error, NotAttempted):
        return Kind.NOT_ATTEMPTED
    if isinstance(error, StillInProgress):
        return Kind.IN_PROGRESS
    transient = _is_transient(error) if retry_on is None else isinstance(error, retry_on)
    return Kind.TRANSIENT if transient else Kind.OTHER


def retry_after(error: BaseException) -> timedelta | None:
    """Return how long the other side asked us to wait, a day at most, if the exception says so."""
    asked = _duration(getattr(error, "retry_after", None))
    if asked is not None:
        return asked
    for holder in _holders(error):
        get = getattr(getattr(holder, "headers", None), "get", None)
        asked = _duration(get("retry-after")) if callable(get) else None
        if asked is not None:
            return asked
    return None


def _duration(value: Any) -> timedelta | None:
    """Read a ``timedelta``, seconds, or the date of a ``Retry-After`` header."""
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str) and not value.replace(".", "", 1).strip().isdigit():
        try:
            seconds = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError):
            return None
    elif isinstance(value, int | float | str) and not isinstance(value, bool):
        seconds = float(value)
    else:
        return None
    if math.isnan(seconds) or seconds < 0:
        return None
    return timedelta(seconds=min(seconds, MAX_RETRY_AFTER.total_seconds()))


def _is_transient(error: BaseException) -> bool:
    status = _status(error)
    if status is not None:
        return status in RETRYABLE_STATUSES
    if isinstance(error, ConnectionError | TimeoutError | ToolTimeout):
        return True
    reason = getattr(error, "reason", None)
    if isinstance(reason, ConnectionError | TimeoutError):
        return True  # urllib wraps what happened
    names = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
    return bool(names & _RETRYABLE_CLASSES)


def _status(error: BaseException) -> int | None:
    """Return the HTTP status that an exception carries, if it is a plausible one."""
    if not isinstance(error, Exception):
        return None  # the code of a SystemExit is no status
    for holder in _holders(error):
        for attribute in ("status_code", "status", "code"):
            value = getattr(holder, attribute, None)
            if isinstance(value, int) and not isinstance(value, bool) and value in ERROR_STATUSES:
                return value
    return None


def _holders(error: BaseException) -> Iterator[Any]:
    yield error
    response = getattr(error, "response", None)
    if response is not None:
        yield response

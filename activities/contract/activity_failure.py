"""How an activity or a workflow of ours fails, and what Temporal does about it.

    as_failure    one of our errors; final or retried, as the error's class says
    again         Temporal starts another attempt after a while, by design
    not_started   nothing was dispatched, and the call has waited for as long as it may; final

Temporal carries an error as a text and a type. `ErrorFields` travel beside them, in the
failure's details, so that whoever shows the error later takes message, code and remedy from
there. The text has all three as well: Temporal's UI, and a workflow of another application that
catches the failure, show the text and nothing else.

`tool_failure` is about the other side: what an exception of a *tool* means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Final

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from ...canonical import scrub
from ...errors import (
    ActionError,
    AnswerRefused,
    ApprovalRefused,
    CommitlineError,
    LedgerUnavailable,
    RunNotRunning,
)
from ...redaction import redact

NOT_STARTED: Final = "NotStarted"
"""The type of the failure of a call that was not dispatched."""

_BENIGN: Final = ApplicationErrorCategory.BENIGN
"""For what happens by design: the SDK need not log a traceback of it."""
_REFUSALS: Final = (ActionError, ApprovalRefused, AnswerRefused)
"""Errors that a caller made and reads: a wrong argument, a decision that came too late."""


@dataclass(frozen=True)
class ErrorFields:
    """What a failure carries of the error that it is."""

    message: str
    """What happened, without code and remedy."""
    code: str
    """As `CommitlineError.code`."""
    remedy: str
    """What to do next."""
    stopping: bool = False
    """Whether the run is being stopped, and the cancellation of its workflow follows."""
    undoing: bool = False
    """Whether an undo of the run has begun, and has not ended."""

    @classmethod
    def of(cls, error: CommitlineError, *, limit: int) -> ErrorFields:
        """Return the fields of an error; ``limit`` caps the message."""
        told = scrub(redact(error.message), limit=limit)
        if isinstance(error, RunNotRunning):
            return cls(told, error.code, error.remedy, error.stopping, error.undoing)
        return cls(told, error.code, error.remedy)

    @classmethod
    def read(cls, failure: BaseException | None) -> ErrorFields | None:
        """Return the fields that a failure carries; None where it is no error of ours."""
        details: Sequence[Any] = failure.details if isinstance(failure, ApplicationError) else ()
        if not details or not isinstance(details[0], dict):
            return None
        try:
            return cls(**details[0])
        except TypeError:
            return None  # of an application's own failure

    @property
    def text(self) -> str:
        """The error as people read it."""
        return f"{self.message} [{self.code}] {self.remedy}"

    def as_failure(self, kind: str | None, **options: Any) -> ApplicationError:
        """Return a failure that carries the fields; ``options`` are `ApplicationError`'s."""
        return ApplicationError(self.text, asdict(self), type=kind, **options)


def as_failure(
    error: CommitlineError,
    *,
    final: bool | None = None,
    delay: timedelta | None = None,
    benign: bool | None = None,
    limit: int = 500,
) -> ApplicationError:
    """Return an error of ours as the failure that Temporal retries, or does not.

    Args:
        error: What happened.
        final: Whether Temporal makes no other attempt; by default as the error says of itself.
        delay: Before the next attempt; by default the retry policy's.
        benign: Whether the SDK logs no traceback; by default of a retry, and of a refusal.
        limit: Characters of the message.
    """
    final = not error.retryable if final is None else final
    if benign is None:
        benign = not final or isinstance(error, _REFUSALS)
    if delay is None and isinstance(error, LedgerUnavailable):
        delay = timedelta(seconds=1)
    return ErrorFields.of(error, limit=limit).as_failure(
        type(error).__name__,
        non_retryable=final,
        next_retry_delay=delay,
        category=_BENIGN if benign else ApplicationErrorCategory.UNSPECIFIED,
    )


def passed_on(failure: ApplicationError, *, final: bool) -> ApplicationError:
    """Return a failure as that of a workflow which ends by it: the same error, by its type."""
    fields = ErrorFields.read(failure)
    if fields is None:
        return ApplicationError(failure.message, type=failure.type, non_retryable=final)
    ended = replace(fields, stopping=False, undoing=False)
    return ended.as_failure(failure.type, non_retryable=final)


def again(kind: str, text: str, *, delay: timedelta) -> ApplicationError:
    """Return the failure after which Temporal starts another attempt, when ``delay`` is over."""
    return ApplicationError(text, type=kind, next_retry_delay=delay, category=_BENIGN)


def not_started(reason: str) -> ApplicationError:
    """Return the final failure of a call that nothing was dispatched of."""
    return ApplicationError(scrub(reason), type=NOT_STARTED, non_retryable=True, category=_BENIGN)

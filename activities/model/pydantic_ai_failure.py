"""An error of pydantic-ai as `ModelUnavailable` or `ModelRejected`: may another try help?"""

from __future__ import annotations

from datetime import timedelta

from ...canonical import scrub
from ...errors import ContextWindowExceeded, ModelError, ModelRejected, ModelUnavailable
from ...redaction import redact
from ..contract.retry_rules import ERROR_STATUSES, RETRYABLE_STATUSES, requested_delay


def model_error(err: Exception, name: str) -> ModelError:
    """Return the error that says whether another try may help. A status code alone decides it."""
    if isinstance(err, ExceptionGroup):  # a FallbackModel, all of whose models failed
        errors = [model_error(item, name) for item in err.exceptions if isinstance(item, Exception)]
        return next((item for item in errors if item.retryable), errors[0])

    told = scrub(redact(str(err)))
    message = f"{name}: {type(err).__name__}: {told}"
    status = _status(err)
    if status is None:
        unavailable = _is_passing(err)
    else:
        unavailable = status in RETRYABLE_STATUSES
        if status not in ERROR_STATUSES:
            message = f"{name}: {status} is no status code of an HTTP error: {told}"
    if unavailable:
        return ModelUnavailable(message, retry_after=_retry_after(err))
    return ContextWindowExceeded(message) if _is_too_long(err) else ModelRejected(message)


def _is_too_long(err: Exception) -> bool:
    """Whether a conversation was refused as too long; by name, as older releases lack the class."""
    return any(base.__name__ == "ModelContextWindowExceededError" for base in type(err).__mro__)


def _status(err: Exception) -> int | None:
    """Return the status code that came with the answer; a number in a message is none."""
    for source in (err, err.__cause__):
        status = getattr(source, "status_code", None)
        if isinstance(status, int):
            return status
    return None


def _is_passing(err: Exception) -> bool:
    """Whether an error without a status code may be gone on the next try."""
    from pydantic_ai import exceptions as ai

    if isinstance(
        err, ai.ModelRequestRejectedError | ai.ModelQuotaExceededError | ai.ContentFilterError
    ):
        return False
    # The rest of these are connection errors, time-outs, and answers that are not of the
    # provider's protocol: a gateway's error page under status 200, a body that was cut off, a
    # field that the model garbled. Another request gets another answer, and tries are limited.
    if isinstance(err, ai.ModelAPIError | ai.UnexpectedModelBehavior | OSError):
        return True
    # What an SDK let through of its HTTP library. Everything else is a request that cannot be
    # built (a UserError, an unsupported part) or a bug, and would end the same way again.
    return any(
        base.__name__ == "TransportError" and base.__module__.partition(".")[0].startswith("httpx")
        for base in type(err).__mro__
    )


def _retry_after(err: Exception) -> timedelta | None:
    seconds = getattr(err, "retry_after", None)
    if not isinstance(seconds, int | float):
        return None
    return requested_delay(max(seconds, 0))  # pydantic-ai makes a date in the past negative

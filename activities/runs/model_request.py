"""One model request: bounded in time, failures counted, the completion checked."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from temporalio.exceptions import ApplicationError

from ...canonical import parse
from ...errors import (
    CommitlineError,
    ConfigurationError,
    ModelRejected,
    ModelUnavailable,
    NodeTimeout,
    UnrepresentableValue,
)
from ...ledger.result_codec import error_text
from ...metrics import MODEL_DURATION, MODEL_ERRORS, MODEL_TIMEOUTS, MODEL_TOKENS, count, observe
from ...traces import (
    FINISH_REASONS,
    INPUT_MESSAGES,
    INPUT_TOKENS,
    OUTPUT_MESSAGES,
    OUTPUT_TOKENS,
    model_request,
    note,
    note_content,
    shows_content,
)
from ..app.contained_error import raise_contained
from ..app.output_type import OutputType
from ..contract.activity_failure import ErrorFields
from ..contract.conversation import Completion, Message
from ..contract.encoding import to_text
from ..contract.retry_rules import back_off
from ..contract.spec import AgentSpec
from ..model.model import Model, ModelRequest, examine
from ..model.traced_messages import input_messages, output_messages
from ..runner.attempt_notes import AttemptNotes
from ..runner.bounded_call import CallEnd, Raised, Returned, call_within, cancelled_if_told
from ..runner.clock import time_left

MAX_COMPLETION: Final = 1024 * 1024
"""Characters of a completion as JSON. Temporal refuses a payload over 2 MiB."""


@dataclass(frozen=True)
class RunModel:
    """The model of a run, as the run's spec names it."""

    model: Model
    spec: AgentSpec
    output: OutputType | None
    """Checks the completion of an agent with an ``output_type``; None for other agents."""

    async def complete(self, messages: list[Message]) -> Completion:
        """Send one model request, in a span of its own; see `_complete`."""
        with model_request(self.spec.model, agent=self.spec.name):
            if shows_content():
                note_content({INPUT_MESSAGES: input_messages(messages)})
            return await self._complete(messages)

    async def _complete(self, messages: list[Message]) -> Completion:
        """Send one model request; return the completion, with each call that must not run marked.

        Raises:
            ApplicationError: The model was unavailable. Temporal tries again, up to the agent's
                ``model_tries``.
            ModelRejected: The same request can never succeed.
            NodeTimeout: The time was up before this attempt began.
            asyncio.CancelledError: The caller was cancelled.
        """
        spec = self.spec
        limits = time_left(spec.model_limits)
        if limits.nearest is not None and limits.nearest <= 0:
            # Its attempts were lost until then; another request would be paid for in vain.
            raise NodeTimeout("no time is left for a model request; its attempts were lost")
        began = time.monotonic()
        end = await call_within(limits.nearest, cancelled_if_told(self._request(messages)))
        _measure(spec.model, end, time.monotonic() - began)
        if isinstance(end.how, Returned):
            return end.how.value  # type: ignore[no-any-return]
        if end.stopped_by == "caller":
            raise asyncio.CancelledError
        if end.stopped_by == "deadline":
            error: BaseException = ModelUnavailable(f"no answer within {limits.nearest:g} s")
        else:
            assert isinstance(end.how, Raised)
            error = end.how.error
        if isinstance(error, ModelUnavailable):
            raise model_failure(
                error,
                limit=spec.model_tries,
                node_seconds=limits.node_seconds,
                spent=time.monotonic() - began,
            ) from None  # causes go into history as they are
        if isinstance(error, ConfigurationError | ModelRejected) or not isinstance(
            error, Exception
        ):
            raise error
        # A fault in the model's code: each retry would pay for one more request.
        raise ModelRejected(
            f"{spec.model} raised {type(error).__name__}: {error_text(error)[:500]}"
        ) from None

    async def _request(self, messages: list[Message]) -> Completion:
        spec = self.spec
        given = ModelRequest(
            model=spec.model,
            instructions=spec.instructions,
            tools=spec.definitions,
            messages=messages,
        )
        try:
            completion = await self.model.complete(given)
            self._count_tokens(completion)
            return self._checked(completion)
        except BaseException as err:
            raise_contained(spec.model, err)

    def _count_tokens(self, completion: Completion) -> None:
        """Count what was paid for, also where the completion is of no use."""
        usage = examine(completion).usage
        count(MODEL_TOKENS, self.spec.model, "input", number=usage.input_tokens)
        count(MODEL_TOKENS, self.spec.model, "output", number=usage.output_tokens)
        note(
            {
                INPUT_TOKENS: usage.input_tokens,
                OUTPUT_TOKENS: usage.output_tokens,
                FINISH_REASONS: [completion.finish_reason],
            }
        )
        if shows_content():
            note_content({OUTPUT_MESSAGES: output_messages(completion)})

    def _checked(self, completion: Completion) -> Completion:
        examined = examine(completion)
        return examined if self.output is None else self.output.conclude(examined)


def _measure(model: str, end: CallEnd, seconds: float) -> None:
    """Record how a model request ended; one whose run was cancelled is no failure."""
    if end.stopped_by is None:
        outcome = "returned" if isinstance(end.how, Returned) else "raised"
    else:
        outcome = "timeout" if end.stopped_by == "deadline" else "cancelled"
    observe(MODEL_DURATION, seconds, model, outcome)
    if outcome == "timeout":
        count(MODEL_TIMEOUTS, model)
    if outcome in ("timeout", "raised"):
        count(MODEL_ERRORS, model)


def completion_text(completion: Completion) -> str:
    """Return a completion as JSON text that can be read again.

    A row that cannot be read would keep the run from going on, for ever.

    Raises:
        ModelRejected: It has no JSON form, or is too large to travel.
    """
    try:
        text = to_text(completion)
        parse(text)
    except (UnrepresentableValue, TypeError, ValueError, RecursionError) as err:
        raise ModelRejected(f"the completion has no JSON form: {error_text(err)[:500]}") from err
    if len(text) > MAX_COMPLETION:
        raise ModelRejected(f"the completion has {len(text)} characters, over {MAX_COMPLETION}")
    return text


def model_failure(
    error: ModelUnavailable, *, limit: int, node_seconds: float | None, spent: float
) -> ApplicationError:
    """Count a failed model request, for the next attempt; return the failure that Temporal retries.

    A dead worker, or a ledger that is away, is no failure of the model and uses up no try.
    """
    notes = AttemptNotes.read()
    tries = notes.failed + 1
    replace(notes, failed=tries).leave()
    delay = error.retry_after or back_off(
        tries, first=timedelta(seconds=1), longest=timedelta(seconds=30)
    )
    failed_by: CommitlineError = error
    final = tries >= limit
    if not final and node_seconds is not None and spent + delay.total_seconds() > node_seconds:
        final = True
        failed_by = NodeTimeout(f"no time for another try of the model; the last: {error.message}")
    fields = ErrorFields.of(failed_by, limit=450)
    counted = replace(fields, message=f"model request {tries} of {limit}: {fields.message}")
    return counted.as_failure(type(failed_by).__name__, non_retryable=final, next_retry_delay=delay)

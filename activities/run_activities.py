"""The run's own activities: open it, ask the model, close it.

Each is safe to repeat: the run key, and the model turn within it, make one row of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import structlog
from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from ..canonical import parse, scrub
from ..crash import crash_point
from ..errors import (
    ConfigurationError,
    LedgerError,
    ModelRejected,
    ModelUnavailable,
    UnrepresentableValue,
)
from ..identity import RunKey
from ..ledger import ActionLedger
from ..ledger.codec import error_text
from .agent import Agent, AgentSpec, App
from .conversation import Completion, Message
from .guard import as_failure, persist
from .heartbeat import beating
from .model import ModelRequest, examine
from .wire import from_plain, pack, to_text, unpack

log = structlog.get_logger("commitline")

OPEN_RUN: Final = "commitline.open_run"
CALL_MODEL: Final = "commitline.call_model"
CLOSE_RUN: Final = "commitline.close_run"

_AGENT_TRIES: Final = 5
"""How often, a second apart, a worker is looked for that serves the run's agent."""

MAX_COMPLETION: Final = 1024 * 1024
"""Characters of a completion as JSON. Temporal refuses a payload over 2 MiB."""


@dataclass(frozen=True)
class OpenRun:
    """What registers a run."""

    run_key: RunKey
    agent: str
    input_digest: str


@dataclass(frozen=True)
class CallModel:
    """One model turn of a run."""

    run_key: RunKey
    step: int
    spec: AgentSpec
    messages: list[Message]


@dataclass(frozen=True)
class CloseRun:
    """What ends a run."""

    run_key: RunKey


class RunActivities:
    """The activities of `AgentRun` besides the tools."""

    def __init__(self, app: App, ledger: ActionLedger, *, heartbeat_seconds: float) -> None:
        self._app = app
        self._ledger = ledger
        self._heartbeat_seconds = heartbeat_seconds

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers."""
        return (self.open_run, self.call_model, self.close_run)

    @activity.defn(name=OPEN_RUN)
    async def open_run(self, raw: RawValue) -> RawValue:
        """Register the run and return its agent's spec, which the run keeps. Safe to repeat."""
        request = unpack(OpenRun, raw)
        info = activity.info()
        try:
            agent = self._agent(request.agent)
            await persist(
                lambda: self._ledger.open_run(
                    run_key=request.run_key,
                    workflow_id=info.workflow_id or "",
                    agent=request.agent,
                    input_digest=request.input_digest,
                    attempt_at=info.started_time,
                )
            )
        except (ConfigurationError, LedgerError) as err:
            raise as_failure(err) from err
        return pack(agent.spec(heartbeat_seconds=self._heartbeat_seconds))

    @activity.defn(name=CALL_MODEL)
    async def call_model(self, raw: RawValue) -> RawValue:
        """Return this turn's completion: the recorded one, or a new one, recorded first.

        Safe to repeat: the first completion of a turn stands.
        """
        request = unpack(CallModel, raw)
        async with beating():
            try:
                return pack(await self._completion(request))
            except (ConfigurationError, LedgerError, ModelRejected) as err:
                raise as_failure(err) from err

    @activity.defn(name=CLOSE_RUN)
    async def close_run(self, raw: RawValue) -> None:
        """Mark the run as ended: no older attempt claims any more. Safe to repeat."""
        request = unpack(CloseRun, raw)
        started = activity.info().started_time
        try:
            await persist(lambda: self._ledger.end_run(request.run_key, attempt_at=started))
        except LedgerError as err:
            raise as_failure(err) from err

    def _agent(self, name: str) -> Agent:
        """Return an agent; if this worker has none of that name, let others try for a while.

        During a deploy, or with two apps on one task queue, another worker may have it.
        """
        try:
            return self._app.agent(name)
        except ConfigurationError as err:
            log.warning("run.agent_not_served", agent=name)
            raise ApplicationError(
                scrub(f"{err.message}; give each app a task queue of its own [{err.code}]"),
                type=type(err).__name__,
                non_retryable=activity.info().attempt >= _AGENT_TRIES,
                next_retry_delay=timedelta(seconds=1),
            ) from err

    async def _completion(self, request: CallModel) -> Completion:
        at = (request.run_key, request.step)
        recorded = None
        if not _asked_for_the_first_time(request.run_key):
            recorded = await persist(lambda: self._ledger.get_completion(*at))
        if recorded is not None:
            log.info("model.completion_replayed", run_key=request.run_key, step=request.step)
            return from_plain(Completion, recorded)
        completion = examine(await self._ask(request))
        crash_point("after_completion")
        text = _as_text(completion)
        if len(text) > MAX_COMPLETION:
            raise ModelRejected(f"the completion has {len(text)} characters, over {MAX_COMPLETION}")
        stands = await persist(lambda: self._ledger.record_completion(*at, text))
        crash_point("completion_recorded")
        log.info(
            "model.completion_recorded",
            run_key=request.run_key,
            step=request.step,
            calls=len(completion.calls),
            input_tokens=completion.usage.input_tokens,
            output_tokens=completion.usage.output_tokens,
        )
        return from_plain(Completion, stands)

    async def _ask(self, request: CallModel) -> Completion:
        spec = request.spec
        self._agent(spec.name)
        model = self._app.model(agent=spec.name, name=spec.model)
        try:
            return await model.complete(
                ModelRequest(
                    model=spec.model,
                    instructions=spec.instructions,
                    tools=[found.definition for found in spec.tools],
                    messages=request.messages,
                )
            )
        except ModelUnavailable as err:
            raise _model_failure(err, limit=spec.model_tries) from err
        except (ConfigurationError, ModelRejected):
            raise
        except Exception as err:
            # A fault of the model's own code, which Temporal would pay for again and again.
            raise ModelRejected(
                f"{spec.model} raised {type(err).__name__}: {error_text(err)[:500]}"
            ) from err


def _as_text(completion: Completion) -> str:
    """Write a completion, sure that it can be read again: a row that cannot wedges the run."""
    try:
        text = to_text(completion)
        parse(text)
    except (UnrepresentableValue, TypeError, ValueError, RecursionError) as err:
        raise ModelRejected(f"the completion has no JSON form: {error_text(err)[:500]}") from err
    return text


def _asked_for_the_first_time(run_key: RunKey) -> bool:
    """Whether nothing can be recorded for this turn yet, so that looking would be in vain.

    That is a first attempt in the run's first execution: a reset and a retry of the workflow
    run in another one. An attempt that an operator reset counts as first again; it asks the
    model once more, and the first completion stands all the same.
    """
    info = activity.info()
    return info.attempt == 1 and run_key.endswith(f"/{info.workflow_run_id}")


def _model_failure(error: ModelUnavailable, *, limit: int) -> ApplicationError:
    """Count the request that failed, on the heartbeat, which the next attempt reads.

    Temporal's own attempts are not counted: a dead worker or an outage of the ledger is not
    the model's failure and must not use up its tries.
    """
    details = activity.info().heartbeat_details
    tries = (int(details[0]) if details else 0) + 1
    activity.heartbeat(tries)
    final = tries >= limit
    return ApplicationError(
        scrub(f"model request {tries} of {limit}: {error}"),
        type=type(error).__name__,
        non_retryable=final,
        next_retry_delay=error.retry_after or timedelta(seconds=min(2.0 ** (tries - 1), 30.0)),
    )

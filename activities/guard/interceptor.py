"""The guard: one activity interceptor between Temporal and everything that has an effect.

    header -> request -> claim -> call -> outcome -> reply

This one is for the tools and the activities of our own worker; `integrations` has another for those
of other frameworks, around the same attempt. The order is the whole point: nothing is called before
its intent is committed, and nothing (no hook, no log line, no metric) comes between the call's
return and its record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
)

from ...errors import CommitlineError, ModelError, PlanDivergence
from ...ledger import ActionLedger
from ...logs import Log
from ...metrics import DIVERGENCES
from ..contract.action_header import ActionHeader
from ..contract.activity_failure import NOT_STARTED, again
from ..contract.local_activity import read_notes, read_schedule, with_notes
from ..contract.spec import RESERVED_PREFIX
from ..runner.attempt_notes import LocalNotes, local_notes
from ..runner.clock import scheduled_by_workflow
from .attempt import attempt
from .guarded_call import GuardedCall
from .heartbeat import Heartbeats, beating
from .lost_worker import offer_to_any_worker
from .protocols import Guarded
from .unforeseen import failure_to_report

log = Log()


class GuardInterceptor(Interceptor):
    """Puts the guard around the activities that it is given; leaves all others alone.

    An error of ours that such an activity raises, or one of the worker's own (`RESERVED_PREFIX`),
    becomes the failure that Temporal retries, or does not, as the error says of itself. What
    nobody foresaw has an end too (`unforeseen`).
    """

    def __init__(self, ledger: ActionLedger, guarded: Mapping[str, Guarded]) -> None:
        self._ledger = ledger
        self._guarded = guarded

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See base class."""
        return _Guard(next, self._ledger, self._guarded)


class _Guard(ActivityInboundInterceptor):
    def __init__(
        self,
        next: ActivityInboundInterceptor,
        ledger: ActionLedger,
        guarded: Mapping[str, Guarded],
    ) -> None:
        super().__init__(next)
        self._ledger = ledger
        self._guarded = guarded

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        self._heartbeats = Heartbeats(outbound)
        super().init(self._heartbeats)

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        name = activity.info().activity_type
        guarded = self._guarded.get(name)
        if guarded is None and not name.startswith(RESERVED_PREFIX):
            return await super().execute_activity(input)
        scheduled_by_workflow.set(read_schedule(input.headers))
        notes = LocalNotes(read_notes(input.headers))
        local_notes.set(notes)
        try:
            return await self._execute(guarded, input)
        except ApplicationError as err:
            if not notes.left:
                raise
            raise with_notes(err, notes.left) from err.__cause__

    async def _execute(self, guarded: Guarded | None, input: ExecuteActivityInput) -> Any:
        if activity.info().is_local and activity.is_worker_shutdown():
            # A workflow of local activities would not let its worker go.
            raise again(NOT_STARTED, "its worker shuts down", delay=timedelta())
        try:
            await offer_to_any_worker()
            if guarded is None:
                return await super().execute_activity(input)
            return await self._attempt(guarded, input)
        except CommitlineError as err:
            # A failure's causes go into history as they are: a provider's words among them.
            raise failure_to_report(err) from (None if isinstance(err, ModelError) else err)
        except Exception as err:
            reported = failure_to_report(err)
            if reported is err:
                raise
            raise reported from err

    async def _attempt(self, guarded: Guarded, input: ExecuteActivityInput) -> Any:
        async def invoke(args: Sequence[Any]) -> Any:
            return await super(_Guard, self).execute_activity(replace(input, args=args))

        header = ActionHeader.read(
            input.headers,
            activity=guarded.name,
            activity_id=activity.info().activity_id,
            args=input.args,
        )
        call = GuardedCall(guarded, header)
        try:
            async with beating(self._heartbeats.again):
                return await attempt(self._ledger, call, invoke, input.args)
        except PlanDivergence as err:
            call.count(DIVERGENCES)
            log.error("ledger.plan_diverged", tool=guarded.name, reason=err.message)
            raise

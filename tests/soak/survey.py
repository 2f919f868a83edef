"""A look at everything that a soak leaves: Temporal, the ledger, the provider, the application."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from temporalio.client import Client, WorkflowFailureError

from commitline.activities.contract.conversation import RunResult
from commitline.activities.contract.encoding import from_text
from commitline.client import AgentClient
from commitline.errors import RunNotFound, ThreadNotFound
from commitline.handles.any_run import AnyRun
from commitline.handles.plan import PlanHandle
from commitline.handles.thread import RunHandle
from commitline.identity import run_key, thread_workflow
from commitline.ledger import ActionLedger, Run, StoredMessage
from commitline.tests.soak.load import Load, failure_of, plan_id, run_id
from commitline.tests.soak.outbox import Outbox
from commitline.tests.soak.promises import RunUndo
from commitline.tests.soak.script import thread_of
from commitline.tests.soak.verdict import Aftermath, RunSeen, TalkSeen

_MOST_ROWS: Final = 1_000_000
_PAST_PIVOT: Final = "Nothing was undone by itself"
"""How a plan says that it failed past its pivot."""


class Survey:
    """Reads what is left of a load, when nothing is at work any more."""

    def __init__(
        self, load: Load, *, temporal: Client, client: AgentClient, ledger: ActionLedger
    ) -> None:
        self._load = load
        self._temporal = temporal
        self._client = client
        self._ledger = ledger

    async def aftermath(self, *, sent: Sequence[Mapping[str, Any]], outbox: Outbox) -> Aftermath:
        """Read everything.

        Args:
            sent: What reached the provider.
            outbox: The application that committed intents.
        """
        load, ledger = self._load, self._ledger
        runs = []
        for number, start in enumerate(load.runs):
            runs += await self._see(self._client.run(run_id(number)), start)
        for number, start in enumerate(load.plans):
            runs += await self._see(self._client.plan(plan_id(number)), start)
        talks = []
        for thread in load.threads:
            talks.append(await self._see_talk(thread))
            for run in await ledger.runs.list(workflow_id=thread_workflow(thread)):
                runs.append(await self._see_talking(run))
        return Aftermath(
            runs,
            await ledger.list(limit=_MOST_ROWS),
            sent,
            talks,
            undos=[await self._see_undo(run) for run in runs],
            approvals=await ledger.approvals.list(only_waiting=False, limit=_MOST_ROWS),
            intents=await outbox.intents(),
            queue=await ledger.relay.list(limit=_MOST_ROWS),
        )

    async def _see_undo(self, seen: RunSeen) -> RunUndo:
        run = await self._ledger.runs.get(seen.run_key)
        report = await self._ledger.undo.report(seen.run_key)
        # A stop that came as the run completed undoes nothing; its caller gets "completed".
        stopped_with_undo = run is not None and run.compensate and seen.state != "completed"
        failed = seen.state == "failed" and not seen.stopped and _PAST_PIVOT not in seen.failure
        return RunUndo(
            seen.run_key,
            report.state,
            wanted=stopped_with_undo or failed or seen.id in self._load.to_undo,
            gone=run is None
            or (run.workflow_status is not None and seen.id not in self._load.to_undo),
        )

    async def _see(
        self, handle: RunHandle | PlanHandle, start: asyncio.Future[AnyRun]
    ) -> list[RunSeen]:
        """Read a run; nothing where its start failed, which is a violation already."""
        try:
            described = await handle.describe()
        except RunNotFound:
            if start.cancelled() or start.exception() is not None:
                return []
            raise
        first = described.raw_description.workflow_execution_info.first_run_id
        key = run_key(handle.id, first or described.run_id)
        state = "unknown" if described.status is None else described.status.name.lower()
        found = await self._ledger.runs.get(key)
        seen = RunSeen(
            id=handle.id,
            run_key=key,
            state=state,
            failure=await failure_of(handle) if state == "failed" else "",
            ledger_state="none" if found is None else found.state,
            stopped=handle.id in self._load.stopped,
            stored=await _stored(self._ledger, key),
            may_fail=isinstance(handle, PlanHandle),
        )
        return [seen]

    async def _see_talking(self, run: Run) -> RunSeen:
        """Read a run of a conversation: one of several with the same workflow id."""
        execution = run.run_key.rpartition("/")[2]
        handle = self._temporal.get_workflow_handle(run.workflow_id, run_id=execution)
        described = await handle.describe()
        state = "unknown" if described.status is None else described.status.name.lower()
        failure = ""
        if state == "failed":
            try:
                await handle.result()
            except WorkflowFailureError as err:
                failure = str(err.cause)
        return RunSeen(
            id=run.run_key,
            run_key=run.run_key,
            state=state,
            failure=failure,
            ledger_state=run.state,
            stopped=run.workflow_id in self._load.stopped,
            stored=(),
        )

    async def _see_talk(self, thread: str) -> TalkSeen:
        found = await self._ledger.threads.get(thread)
        replies: dict[str, Sequence[RunResult | None]] = {}
        kept: dict[str, RunResult | None] = {}
        numbers = self._load.request_numbers()
        for number, sending in zip(numbers, self._load.requests, strict=True):
            if thread_of(number) != thread:
                continue
            replies[str(number)] = _replies_of(sending)
            request = await self._ledger.threads.request(thread, str(number))
            reply = None if request is None else request.reply
            kept[str(number)] = None if reply is None else from_text(RunResult, reply)
        return TalkSeen(
            id=f"thread {thread}",
            version=0 if found is None else found.version,
            stored=await _stored(self._ledger, thread),
            replies=replies,
            kept=kept,
        )


def _replies_of(sending: asyncio.Future[Sequence[RunResult | None]]) -> Sequence[RunResult | None]:
    lost = sending.cancelled() or sending.exception() is not None
    return [None] if lost else sending.result()


async def _stored(ledger: ActionLedger, thread: str) -> Sequence[StoredMessage]:
    """Return a conversation; an empty one if it never began."""
    try:
        return await ledger.threads.messages(thread)
    except ThreadNotFound:
        return ()

"""`AgentRun`: the loop of an agent as a Temporal workflow.

    open the run
    for each request: request the model; run the calls of its message side by side
                      until a message has no calls
    close the run

The workflow only decides: every effect is an activity, history records every activity, and every
call passes the guard. A replay goes the same way, because the completion of each turn is recorded
before the run acts on it; a retry and a reset read it back.

A run of a named conversation answers what callers send it (`message`), one request after the
other, and ends when there is none. History holds references: the conversation is in Postgres, and
a turn carries its version and what is new. A long run continues as new between two turns.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, FailureError

from ..activities.contract.conversation import RunResult
from ..activities.contract.encoding import pack, unpack
from ..activities.contract.runs import AGENT_RUN, OPEN_RUN, Opened, OpenRun
from ..activities.contract.search_attributes import Listing
from ..canonical import scrub
from ..errors import MaxStepsExceeded, OutputUnusable, RunFailed
from ..shown import markdown_line
from .action_headers import this_run
from .activity_calls import (
    cancelled,
    failure,
    history_is_full,
    may_be_made_anew,
    raise_if_cancelled,
    run_ledger_activity,
)
from .base_run import BaseRun, handlers_finished, read_input
from .list_state import list_state, show
from .local_room import LocalRoom, local_room
from .progress import Progress
from .run_input import Carried, OpenRequest, RequestEnd, RunInput, SendRequest
from .turn import AgentTurns

MESSAGE: Final = "message"

_FIRST_REQUEST: Final = timedelta(seconds=30)
"""How long a run that was started for a request waits for it. It is sent with the start."""


@workflow.defn(name=AGENT_RUN, sandboxed=False)
class AgentRun(BaseRun):
    """One run of one agent; see the module."""

    def __init__(self) -> None:
        super().__init__()
        self._turns: AgentTurns | None = None
        self._request: OpenRequest | None = None
        """The request that the run is answering."""
        self._inbox: list[str] = []
        self._agent: str | None = None
        self._answered: set[str] = set()
        self._failed: tuple[str | None, BaseException] | None = None
        """The request at which the run failed (None: all of them), and its error."""
        self._rolling = False
        """The run continues as new."""
        self._last: RunResult | None = None

    @workflow.run
    async def run(self, raw: RawValue) -> RawValue:
        """Run the agent; input `RunInput`, result `RunResult`, both as JSON."""
        given = read_input(RunInput, raw)
        local_room.set(LocalRoom())
        list_state.set(self._list)
        self._agent = given.agent
        self._progress = Progress(
            agent=given.agent, prompt=given.prompt or f"conversation {given.thread_id}"
        )
        self._show("starting")
        try:
            await self._run(given)
        except (Exception, asyncio.CancelledError) as err:
            error = await self._error_of(err)
            self._show_end(err)
            self._failed = (self._request.request_id if self._request else None, error)
            # Callers that wait for an answer get one before the run has ended.
            await handlers_finished()
            if error is err:
                raise
            raise error from err
        if self._rolling:
            self._continue_as_new(given)
        self._show("done")
        self._show_end()
        return pack(self._last or RunResult("", 0))

    @workflow.update(
        name=MESSAGE,
        description="A caller sends a request, and waits for its end",
    )
    async def message(self, raw: RawValue) -> RawValue:
        """Accept a request of the conversation (`SendRequest`); return its end (`RequestEnd`).

        Safe to repeat: the request's id is unique in Postgres, so it counts once.
        """
        said = unpack(SendRequest, raw)
        await workflow.wait_condition(lambda: self._agent is not None or self._ends())
        if said.agent not in (None, self._agent):
            # It is for the next run, which may begin when this one has nothing to do.
            await workflow.wait_condition(lambda: self._nothing_to_do() or self._ends())
            return pack(RequestEnd(answered=False))
        if not self._ends() and said.request_id not in self._known():
            self._inbox.append(said.request_id)
        await workflow.wait_condition(lambda: said.request_id in self._answered or self._ends())
        if said.request_id in self._answered:
            return pack(RequestEnd(answered=True))
        if self._failed is not None and self._failed[0] in (None, said.request_id):
            raise _error_for_caller(self._failed[1])
        return pack(RequestEnd(answered=False))

    @message.validator
    def _check_message(self, raw: RawValue) -> None:
        unpack(SendRequest, raw)

    def _known(self) -> set[str]:
        current = self._request.request_id if self._request else None
        return {*self._inbox, *self._answered, *([current] if current else [])}

    def _ends(self) -> bool:
        """Whether this execution answers no more requests."""
        return self._failed is not None or self._rolling

    async def _run(self, given: RunInput) -> None:
        """Open the run, answer its requests, and close it, however that ends."""
        try:
            turns = self._turns = await self._open(given)
        except (FailureError, asyncio.CancelledError) as err:
            await self._end_unopened(err)
            raise
        self._calls = turns.calls
        while True:
            try:
                await self._within_deadline(turns.ends_at, self._talk(turns, given))
                if self._rolling:
                    await _answer_handlers()
            except (Exception, asyncio.CancelledError) as err:
                await self._end(err, may_undo=turns.spec.may_undo)
            if self._rolling:
                return
            await self._close()
            if not self._inbox:  # a request may have come while it closed
                return

    async def _talk(self, turns: AgentTurns, given: RunInput) -> None:
        """Answer the requests, in order, until there is none, or history is full."""
        if given.thread_id is None and turns.step == 0:
            self._request = OpenRequest(None, 0)
        elif self._nothing_to_do():
            await self._first_request()
        while not self._nothing_to_do():
            if self._request is None:
                self._request = OpenRequest(self._inbox.pop(0), turns.step)
            result = await self._answer(turns, self._request)
            if result is None:
                self._rolling = True
                return
            self._last = result
            if self._request.request_id is not None:
                self._answered.add(self._request.request_id)
            self._request = None
            if self._nothing_to_do():
                await workflow.wait_condition(
                    lambda: bool(self._inbox) or workflow.all_handlers_finished()
                )

    def _nothing_to_do(self) -> bool:
        return self._request is None and not self._inbox

    async def _first_request(self) -> None:
        # If none comes, its sender is gone. The ledger keeps it until it is sent again.
        with suppress(TimeoutError):
            await workflow.wait_condition(lambda: bool(self._inbox), timeout=_FIRST_REQUEST)

    async def _answer(self, turns: AgentTurns, request: OpenRequest) -> RunResult | None:
        """Answer one request; return None if the run must continue as new first."""
        while turns.step - request.step < turns.spec.max_steps:
            raise_if_cancelled()
            if history_is_full():
                return None
            result = await turns.take(request)
            if result is not None:
                return result
            if turns.unusable >= turns.spec.unusable_tries:
                raise failure(
                    OutputUnusable(f"nothing usable in {turns.unusable} turns: {turns.problem}")
                )
        raise failure(MaxStepsExceeded(f"no answer within {turns.spec.max_steps} model turns"))

    async def _open(self, given: RunInput) -> AgentTurns:
        request = OpenRun(
            this_run(),
            given.agent,
            given.digest,
            given.limits,
            given.thread_id,
            again=may_be_made_anew(),
        )
        summary = markdown_line(f"Open the run for {given.agent}")
        opened = await run_ledger_activity(Opened, OPEN_RUN, request, summary)
        if opened.spec.listed:
            self._list.begin(Listing(given.agent, given.thread_id or ""))
            show(self._progress)
        turns = AgentTurns.opened(opened, given, self._progress)
        if given.carried is not None:
            self._restore(given.carried)
        elif given.request_id is not None and given.request_id not in self._inbox:
            self._inbox.insert(0, given.request_id)
        return turns

    def _restore(self, carried: Carried) -> None:
        """Continue with the requests of the last execution, then with those that came since.

        A caller that waited there has sent its request again, perhaps before this run was open.
        """
        came = self._inbox
        self._request, self._inbox = carried.request, list(carried.inbox)
        known = self._known()
        self._inbox += [one for one in came if one not in known]

    def _continue_as_new(self, given: RunInput) -> None:
        turns = self._turns
        assert turns is not None, "opened before"
        carried = Carried(
            turns.step,
            turns.version,
            turns.epoch,
            turns.new_messages,
            turns.new_results,
            self._request,
            self._inbox,
            turns.unusable,
            given.digest,
        )
        # Only as much of the prompt as is shown: the conversation has it, and it may be large.
        prompt = scrub(given.prompt, limit=200)
        again = RunInput(
            given.agent, prompt, given.limits, given.thread_id, given.request_id, carried
        )
        workflow.continue_as_new(pack(again))


async def _answer_handlers() -> None:
    """Wait until callers have their answers; then the run may continue as new.

    Raises:
        CancelledError: The run was cancelled, which Temporal does not hand to the next execution.
    """
    await handlers_finished()
    if cancelled():
        raise asyncio.CancelledError


def _error_for_caller(error: BaseException) -> BaseException:
    """Return the error for the caller at whose request the run failed."""
    if isinstance(error, ApplicationError):
        return error
    return failure(RunFailed("the run was canceled before it had answered"))

"""`AgentRun`: the loop of an agent as a Temporal workflow.

    open the run
    for each request: ask the model; run the calls of its message side by side
                      until a message has no calls
    close the run

It decides and does nothing else: every effect is an activity, every activity is recorded in
history, and every call passes the guard. A replay takes the same way because the completion
of each turn is recorded before it is acted on, and read back by a retry and a reset.

A run of a named conversation answers what callers send it (`message`), one request after the
other, and ends when it has none. History holds references: the conversation lies in Postgres,
and a turn carries its version and what is new. A long run continues as new between two turns.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, FailureError

with workflow.unsafe.imports_passed_through():
    from ..activities.contract.conversation import RunResult
    from ..activities.contract.runs import OPEN_RUN, Opened, OpenRun
    from ..activities.contract.wire import pack, unpack
    from ..canonical import scrub
    from ..errors import MaxStepsExceeded, OutputUnusable, RunFailed
    from .action_headers import this_run
    from .activity_calls import call_ledger, cancelled, failure, stop_here_if_cancelled
    from .base_run import RunFrame, handlers_finished, read_input
    from .progress import Progress
    from .run_input import AGENT_RUN, Carried, RunInput, Send, Sent, Task
    from .turn import Turns

MESSAGE: Final = "message"

_FIRST_REQUEST: Final = timedelta(seconds=30)
"""How long a run that was started for a request waits for it; it comes with the start."""


@workflow.defn(name=AGENT_RUN)
class AgentRun(RunFrame):
    """One run of one agent; see the module."""

    def __init__(self) -> None:
        super().__init__()
        self._turns: Turns | None = None
        self._task: Task | None = None
        self._inbox: list[str] = []
        self._agent: str | None = None
        self._answered: set[str] = set()
        self._failed: tuple[str | None, BaseException] | None = None
        """The request that the run failed at, None being all of them, and how."""
        self._rolling = False
        """The run goes on in its next execution."""
        self._last: RunResult | None = None

    @workflow.run
    async def run(self, raw: RawValue) -> RawValue:
        """Run the agent; input `RunInput`, result `RunResult`, both as JSON."""
        given = read_input(RunInput, raw)
        self._agent = given.agent
        self._progress = Progress(
            agent=given.agent, prompt=given.prompt or f"conversation {given.thread_id}"
        )
        self._show("starting")
        try:
            await self._run(given)
        except (Exception, asyncio.CancelledError) as err:
            told = await self._told(err)
            self._failed = (self._task.request_id if self._task else None, told)
            # Who waits for an answer gets it before the run is gone.
            await handlers_finished()
            if told is err:
                raise
            raise told from err
        if self._rolling:
            self._continue_as_new(given)
        self._show("done")
        return pack(self._last or RunResult("", 0))

    @workflow.update(name=MESSAGE)
    async def message(self, raw: RawValue) -> RawValue:
        """Take up a request of the conversation (`Send`) and wait for its reply (`Sent`).

        Safe to repeat: the request's id, unique in Postgres, makes it count once.
        """
        said = unpack(Send, raw)
        await workflow.wait_condition(lambda: self._agent is not None or self._ends())
        if said.agent not in (None, self._agent):
            # Not this run's: the next one's, which may begin when this one has nothing to do.
            await workflow.wait_condition(lambda: self._nothing_to_do() or self._ends())
            return pack(Sent(answered=False))
        if not self._ends() and said.request_id not in self._known():
            self._inbox.append(said.request_id)
        await workflow.wait_condition(lambda: said.request_id in self._answered or self._ends())
        if said.request_id in self._answered:
            return pack(Sent(answered=True))
        if self._failed is not None and self._failed[0] in (None, said.request_id):
            raise _for_the_caller(self._failed[1])
        return pack(Sent(answered=False))

    @message.validator
    def _check_message(self, raw: RawValue) -> None:
        unpack(Send, raw)

    def _known(self) -> set[str]:
        working_on = {self._task.request_id} if self._task and self._task.request_id else set()
        return {*self._inbox, *self._answered, *working_on}

    def _ends(self) -> bool:
        """Whether this execution answers nothing more."""
        return self._failed is not None or self._rolling

    async def _run(self, given: RunInput) -> None:
        """Open the run, answer what there is, and close it, however that ends."""
        try:
            turns = self._turns = await self._open(given)
        except (FailureError, asyncio.CancelledError) as err:
            if _has_gone_on():
                # A retry, or the next execution of a long run: earlier ones did something.
                await self._unwind(err)
                if self._undone is None and cancelled():
                    await self._close()
            raise
        self._calls = turns.calls
        while True:
            try:
                await self._within_deadline(turns.ends_at, self._talk(turns, given))
                if self._rolling:
                    await _let_go()
            except (Exception, asyncio.CancelledError) as err:
                await self._end(err, may_undo=turns.spec.may_undo)
                raise
            if self._rolling:
                return
            await self._close()
            if not self._inbox:  # a request may have come while it closed
                return

    async def _talk(self, turns: Turns, given: RunInput) -> None:
        """Answer what was asked, in order, until there is nothing more, or history is full."""
        if given.thread_id is None and turns.step == 0:
            self._task = Task(None, 0)
        elif self._nothing_to_do():
            await self._first_request()
        while not self._nothing_to_do():
            if self._task is None:
                self._task = Task(self._inbox.pop(0), turns.step)
            result = await self._answer(turns, self._task)
            if result is None:
                self._rolling = True
                return
            self._last = result
            if self._task.request_id is not None:
                self._answered.add(self._task.request_id)
            self._task = None
            if self._nothing_to_do():
                await workflow.wait_condition(
                    lambda: bool(self._inbox) or workflow.all_handlers_finished()
                )

    def _nothing_to_do(self) -> bool:
        return self._task is None and not self._inbox

    async def _first_request(self) -> None:
        # Where none comes, its sender is gone; it is in the ledger until it is sent again.
        with suppress(TimeoutError):
            await workflow.wait_condition(lambda: bool(self._inbox), timeout=_FIRST_REQUEST)

    async def _answer(self, turns: Turns, task: Task) -> RunResult | None:
        """Answer one request; None where the run has to go on in a new execution first."""
        while turns.step - task.step < turns.spec.max_steps:
            stop_here_if_cancelled()
            if workflow.info().is_continue_as_new_suggested():
                return None
            result = await turns.take(task)
            if result is not None:
                return result
            if turns.unusable >= turns.spec.unusable_tries:
                raise failure(
                    OutputUnusable(f"nothing usable in {turns.unusable} turns: {turns.problem}")
                )
        raise failure(MaxStepsExceeded(f"no answer within {turns.spec.max_steps} model turns"))

    async def _open(self, given: RunInput) -> Turns:
        request = OpenRun(this_run(), given.agent, given.digest, given.limits, given.thread_id)
        summary = scrub(f"Open the run for {given.agent}", limit=150)
        opened = unpack(Opened, await call_ledger(OPEN_RUN, request, summary))
        turns = Turns.opened(opened, given, self._progress)
        if given.carried is not None:
            self._take_up(given.carried)
        elif given.request_id is not None and given.request_id not in self._inbox:
            self._inbox.insert(0, given.request_id)
        return turns

    def _take_up(self, carried: Carried) -> None:
        """Go on with the requests that the last execution had, and then those that came since.

        Whoever waited there for an answer has said it again here, perhaps before this was opened.
        """
        came = self._inbox
        self._task, self._inbox = carried.task, list(carried.inbox)
        known = self._known()
        self._inbox += [one for one in came if one not in known]

    def _continue_as_new(self, given: RunInput) -> None:
        turns = self._turns
        assert turns is not None, "opened before"
        carried = Carried(
            turns.step,
            turns.version,
            turns.epoch,
            turns.fresh,
            self._task,
            self._inbox,
            turns.unusable,
            given.digest,
        )
        # Of the prompt what is shown: the whole is in the conversation, and may be large.
        prompt = scrub(given.prompt, limit=200)
        again = RunInput(
            given.agent, prompt, given.limits, given.thread_id, given.request_id, carried
        )
        workflow.continue_as_new(pack(again))


async def _let_go() -> None:
    """Let who waits have an answer; then a run may go on as new, if it was not cancelled.

    Temporal does not hand a cancellation on to the next execution.
    """
    await handlers_finished()
    if cancelled():
        raise asyncio.CancelledError


def _has_gone_on() -> bool:
    """Whether another execution of this run was before this one."""
    return workflow.info().run_id != workflow.info().first_execution_run_id


def _for_the_caller(error: BaseException) -> BaseException:
    """Return what a caller gets whose request the run failed at."""
    if isinstance(error, ApplicationError):
        return error
    return failure(RunFailed("the run was canceled before it had answered"))

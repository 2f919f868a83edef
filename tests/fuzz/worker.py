"""`Worker`: carries out runs: each model turn is committed, then its calls are made side by side.

A run ends well, fails and is undone, is stopped, or loses its workflow in the middle of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from commitline.errors import CommitlineError, IdempotencyKeyConflict, SubAgentClosed
from commitline.identity import Position
from commitline.ledger import NewMessage, Turn
from commitline.tests.fuzz.actor import Actor, NoEnd
from commitline.tests.fuzz.asking import approved
from commitline.tests.fuzz.faults import Cancelled
from commitline.tests.fuzz.scene import AgentRun, PlannedCall
from commitline.tests.fuzz.tools import request_of
from commitline.tests.fuzz.undoing import Undoing
from commitline.tests.fuzz.witness import left_by_end, now

_LOST = 0.03
_SLOW = 30
"""Ledger calls, of all, that a workflow may take to begin, or a former one to do its next step."""
_NOTICES = 0.02
"""Seconds after which a run that waits for a sub-agent notices that it was reset."""


class _Gone(Exception):
    """The execution does nothing more: it was terminated, or a reset took its place."""


class _LeftAlone(_Gone):
    """The same, and the workflow of a sub-agent lives on."""


class Worker(Actor):
    """Carries out one run after the other."""

    async def act(self) -> None:
        """Carry a new run out, or one that was reset."""
        waiting = self.scene.to_carry_out
        run = waiting.pop(0) if waiting else self.scene.new_run(self.chance)
        if run.under_way:
            waiting.append(run)  # the execution before has not noticed yet that it is over
            return
        if run.gone_at is not None:
            return  # terminated before it began
        run.under_way = True
        try:
            await self._execute(run, run.execution)
        finally:
            run.under_way = False
            self._leave_conversation(run)

    def _leave_conversation(self, run: AgentRun) -> None:
        """Let another run go on with the conversation, if this one has ended."""
        talk = self.scene.conversation(run)
        if talk is not None and talk.writer is run and run.gone_at is not None:
            talk.writer = None

    async def _execute(self, run: AgentRun, execution: int) -> None:
        try:
            why = await self._play(run, execution)
        except _Gone:
            return
        except Cancelled:
            why = "stopped"
        except NoEnd:
            why = "lost"
        except CommitlineError as err:
            self.refused(err)
            why = "failed"
        if run.execution != execution or run.gone_at is not None:
            return
        if why == "lost" or not await self._end(run, why):
            self.scene.counts["runs lost"] += 1
        run.gone_at = run.gone_at or self.scene.engine.now()

    async def _end(self, run: AgentRun, why: str) -> bool:
        """End the run; return whether that was recorded."""
        try:
            if why != "completed":
                undoing = Undoing(self, run.key)
                if await undoing.begin(failed=why == "failed", attempt_at=self.scene.engine.now()):
                    return await undoing.go_on()
            at = self.scene.engine.now()
            await self.do("end", run.key, self.ledger.runs.end(run.key, attempt_at=at))
            await left_by_end(self.scene, self.pool, run.key, at)
        except CommitlineError as err:
            self.refused(err)
            return False
        self.scene.counts[f"runs {why}"] += 1
        return True

    async def _play(self, run: AgentRun, execution: int) -> str:
        await self._open(run)
        for turn in range(run.from_turn, len(run.turns)):
            if run.execution != execution:
                await self.scene.pace.rest(self.chance.random() * _SLOW)
            self._check_alive(run, execution)
            # Read at once: a fork may change the plan while this execution goes on.
            calls, epoch = run.turns[turn], run.epochs[turn]
            places = [run.position(turn, at) for at in range(len(calls))]
            await self._commit(run, turn, epoch, places)
            made = [
                self._call(run, execution, at, one) for at, one in zip(places, calls, strict=True)
            ]
            done = await asyncio.gather(*made, return_exceptions=True)
            for error in done:
                if isinstance(error, BaseException):
                    raise error
        self._check_alive(run, execution)
        talk = self.scene.conversation(run)
        if talk is not None and talk.writer is run:
            talk.left = None
        fails = self.chance.random() < self.scene.theme.fails
        return "failed" if fails else "completed"

    def _check_alive(self, run: AgentRun, execution: int) -> None:
        if self.chance.random() < _LOST * bool(self.faults.death):
            raise NoEnd
        self._check_going(run, execution)
        if run.cancelled and not self._lives_on(run):
            raise Cancelled

    def _check_going(self, run: AgentRun, execution: int) -> None:
        """Nothing of an execution that is over is started any more."""
        if run.is_over or self.scene.over:
            raise _Gone
        if run.execution != execution and not self._lives_on(run):
            raise _Gone

    def _lives_on(self, run: AgentRun) -> bool:
        """Whether a sub-agent's workflow has not noticed yet that it was stopped, or replaced."""
        return run.parent is not None and self.chance.random() < self.faults.lives_on

    async def _open(self, run: AgentRun) -> None:
        at = self.scene.engine.now()
        opened = self.ledger.runs.open(
            run_key=run.key,
            workflow_id=run.workflow,
            agent="fuzz",
            input_digest="input",
            attempt_at=at,
            thread_id=run.thread,
            spec="{}",
        )
        await self.do("open", run.key, opened)
        await self.ledger.threads.open(run.thread, agent="fuzz")

    async def _commit(
        self, run: AgentRun, turn: int, epoch: int, positions: Sequence[Position]
    ) -> None:
        """Commit a model turn; close the one that another run has left without an answer."""
        threads = self.ledger.threads
        thread = await threads.get(run.thread)
        assert thread is not None, "it was opened, and is never lost"
        talk = self.scene.conversation(run)
        if talk is not None and talk.left is not None and talk.left[0] != run.key:
            left, at = talk.left
            closing = threads.close_turn(
                left, at, by=run.key, thread_id=run.thread, version=thread.version
            )
            await self.do("close_turn", left, closing)
        notices = await threads.pending_notices(run.thread)
        committed = threads.commit(
            Turn(
                run.thread,
                thread.version,
                run.key,
                turn,
                epoch,
                [NewMessage("assistant", "{}")],
                notified=[one.key for one in notices],
            )
        )
        await self.do("commit", run.key, committed)
        if talk is not None and talk.writer is run:
            talk.left = (run.key, positions)

    async def _call(
        self, run: AgentRun, execution: int, at: Position, planned: PlannedCall
    ) -> None:
        if planned.tool.agent:
            await self._delegate(run, execution, at)
            return
        before = partial(self._check_going, run, execution)
        request = request_of(
            planned.tool,
            run.key,
            at,
            planned.args,
            thread=run.thread,
            owner=run.workflow_of(execution),
        )
        if planned.tool.gated:
            decided = await approved(self, request, run, before)
            if decided is None:
                return
            request = decided
        try:
            said = await self.carry_out(request, run=run, before=before)
        except IdempotencyKeyConflict as err:
            self.tell_conflict(request, err)
            return
        self.tell(request, said)

    # --- sub-agents ---------------------------------------------------------------------------

    async def _delegate(self, run: AgentRun, execution: int, at: Position) -> None:
        """Have a sub-agent carry a call out; a reset takes its run from the workflow before."""
        sub = self.scene.sub_run(run, at)
        sub.begin_again(0)  # whoever carries it out by now does nothing more
        mine, lives_on = sub.execution, False
        try:
            former = await self._assign(run, sub)
            if former is not None:
                await self._assign(run, sub, ended=former)
            if sub.execution == mine:
                sub.assigned = (sub.workflow, now())
            if former is not None:  # which may do something yet
                await self.scene.pace.rest(self.chance.random() * _SLOW)
            why = await self._wait_for_sub(run, execution, sub, mine)
            self._check_going(run, execution)
            if why == "completed":
                end = self.ledger.runs.end(
                    sub.key, attempt_at=self.scene.engine.now(), owner=sub.workflow
                )
                await self.do("end", sub.key, end)
            else:
                await self._close(sub, "it gave no answer")
        except SubAgentClosed:
            pass
        except _LeftAlone:
            lives_on = True
            raise
        except NoEnd:  # its workflow was terminated
            self._check_going(run, execution)
            await self._close(sub, "it was lost")
        finally:
            if sub.execution == mine and not lives_on:
                sub.gone_at = self.scene.engine.now()

    async def _wait_for_sub(self, run: AgentRun, execution: int, sub: AgentRun, mine: int) -> str:
        """Wait for the run of a sub-agent; it lives on where the run that called it was reset."""
        played = asyncio.ensure_future(self._play(sub, mine))

        def ended_alone(played: asyncio.Future[str]) -> None:
            self.scene.background.discard(played)
            if sub.execution == mine:
                sub.gone_at = self.scene.engine.now()
            error = played.exception()
            if error and not isinstance(error, CommitlineError | Cancelled | NoEnd | _Gone):
                self.scene.violation(self.name, f"raised {type(error).__name__}: {error}")

        while not (await asyncio.wait([played], timeout=_NOTICES))[0]:
            if run.execution != execution:
                self.scene.background.add(played)
                played.add_done_callback(ended_alone)
                raise _LeftAlone
        return played.result()

    async def _assign(self, run: AgentRun, sub: AgentRun, ended: str | None = None) -> str | None:
        assign = self.ledger.sub_runs.assign(
            sub.key,
            workflow_id=sub.workflow,
            by=run.workflow,
            agent="fuzz",
            input_digest="input",
            attempt_at=self.scene.engine.now(),
            ended=ended,
        )
        return await self.do("assign", sub.key, assign)

    async def _close(self, sub: AgentRun, reason: str) -> None:
        at = self.scene.engine.now()
        close = self.ledger.sub_runs.close(sub.key, reason=reason, attempt_at=at)
        await self.do("close sub-run", sub.key, close)

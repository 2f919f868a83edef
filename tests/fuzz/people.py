"""Those who decide: `Person` decides about calls, answers, and settles what is unknown; `Operator`
ends, resets and undoes runs.
"""

from __future__ import annotations

from commitline.ledger import Action, Outcome
from commitline.tests.builders import DID_NOT_HAPPEN
from commitline.tests.fuzz.actor import Actor
from commitline.tests.fuzz.asking import answer_one, decide_one
from commitline.tests.fuzz.scene import AgentRun
from commitline.tests.fuzz.undoing import Undoing
from commitline.tests.fuzz.witness import now

LOOKED = Outcome.ok('"ada looked"')


class Person(Actor):
    """Asks the provider what became of an action, and settles it; or has it tried again."""

    every = 20

    async def act(self) -> None:
        """Decide about a call, answer one, or take one that is left to a person."""
        if self.chance.random() < 0.5 and (await decide_one(self) or await answer_one(self)):
            return
        found = await self.ledger.list(only_parked=True, limit=20)
        parked = [one for one in found if not one.duplicate_of]
        if not parked:
            return
        one = self.chance.choice(parked)
        if self.chance.random() < 0.4:
            await self.do("reopen", one.key, self.ledger.relay.reopen(one.key))
        else:
            await self.settle(one)

    async def settle(self, one: Action) -> None:
        """Settle an action truthfully."""
        with self.scene.provider.asked_by_a_person(one.idempotency_key) as happened:
            word = LOOKED if happened else DID_NOT_HAPPEN
            settle = self.ledger.settle(one.key, word, by=self.name)
            await self.do(f"settle as {word.kind}", one.key, settle)


class Operator(Actor):
    """Does to runs what the commands of an operator do."""

    every = 80

    async def act(self) -> None:
        """Do one thing to a run."""
        started = [run for run in self.scene.runs.values() if run.parent is None]
        newest = started[-12:]
        claiming = [run for run in newest if run.claiming]
        if not newest:
            return
        does = self.chance.choice(
            [
                *[self.stop] * 3,
                self.terminate,
                *[self.reset] * 2,
                self.undo,
                self.fork,
                self.delete,
            ]
        )
        if does == self.stop:  # a stop and a claim must not pass each other by
            newest = claiming or newest
        if does == self.reset:  # nor the former workflow of a sub-agent and the next one
            newest = [run for run in newest if self.scene.delegates(run)] or newest
        await does(self.chance.choice(newest))

    async def stop(self, run: AgentRun) -> None:
        """Commit the stop, then cancel the workflow."""
        stop = self.ledger.runs.stop(
            run.key,
            workflow_id=run.key.partition("/")[0],
            agent="fuzz",
            reason=f"{self.name} stopped it",
            attempt_at=run.began,
            compensate=self.chance.random() < 0.5,
        )
        await self.do("stop", run.key, stop)
        run.stopped = True
        self.scene.stopped.setdefault(run.key, now())

    async def terminate(self, run: AgentRun) -> None:
        """Terminate the workflow, which records nothing."""
        if run.gone_at is None:
            run.gone_at = self.scene.engine.now()
            self.scene.trace.note(run.key, f"{self.name}: terminates its workflow")

    async def reset(self, run: AgentRun) -> None:
        """Have the workflow begin again, from one of its turns; the one before is terminated."""
        state = await self.ledger.runs.get(run.key)
        if state is None or state.stopped_at is not None or not self.scene.may_write(run):
            return
        self._begin_again(run, self.chance.randrange(len(run.turns)))

    def _begin_again(self, run: AgentRun, turn: int) -> None:
        if not self.scene.may_write(run):
            return  # another one has gone on with the conversation meanwhile
        talk = self.scene.conversation(run)
        if talk is not None:
            talk.writer = run
        run.begin_again(turn)
        self.scene.trace.note(run.key, f"{self.name}: resets it to turn {turn}")
        if run not in self.scene.to_carry_out:
            self.scene.to_carry_out.append(run)

    async def undo(self, run: AgentRun) -> None:
        """Undo a run that has ended, again or for the first time."""
        if run.gone_at is None or run.undone_now:
            return
        run.undone_now, run.seen_ended = True, False
        undoing = Undoing(self, run.key)
        try:
            if await undoing.begin(failed=False, attempt_at=self.scene.engine.now(), again=True):
                await undoing.go_on()
        finally:
            run.undone_now = False

    async def fork(self, run: AgentRun) -> None:
        """Have the run go another way from one of its turns."""
        if not self.scene.may_write(run):
            return
        turn = self.chance.randrange(len(run.turns))
        epoch = await self.do("fork", run.key, self.ledger.threads.fork(run.key, turn))
        run.turns[turn:] = [self.scene.turn(run.key, epoch, turn)]
        run.epochs[turn:] = [epoch]
        self._begin_again(run, turn)

    async def delete(self, run: AgentRun) -> None:
        """Delete the conversation of a run."""
        if self.chance.random() < 0.3:
            await self.do("delete", run.key, self.ledger.threads.delete(run.thread))

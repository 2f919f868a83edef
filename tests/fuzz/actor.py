"""`Actor`: what each of the twenty has: a name, a chance of its own, a ledger of its own."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from random import Random
from typing import ClassVar, Final, TypeVar

from commitline.errors import (
    CommitlineError,
    Fenced,
    IdempotencyKeyConflict,
    LedgerUnavailable,
    PlanDivergence,
    StatementRefused,
    Unstorable,
)
from commitline.ledger import (
    Accepted,
    ActionLedger,
    ActionRequest,
    AlreadyDone,
    Claim,
    Outcome,
    Parked,
    Question,
)
from commitline.ledger.pool import Pool
from commitline.tests.fuzz.attempt import AttemptAtCall
from commitline.tests.fuzz.faults import Again, Cancelled, Died, Faults, Waits
from commitline.tests.fuzz.scene import AgentRun, Scene
from commitline.tests.fuzz.witness import tell_unknown

T = TypeVar("T")

_STATEMENT_SECONDS: Final = 20.0
_MOST_ATTEMPTS: Final = 40
_NEVER: Final = (LedgerUnavailable, PlanDivergence, StatementRefused, Unstorable)
"""What no actor gives a reason for. A deadlock is the first of them: no server resolves it here."""


class NoEnd(Exception):
    """A call was tried often enough: its workflow is terminated."""


class Actor(ABC):
    """One of those who work on the ledger.

    Args:
        name: For the trace.
        scene: What all share.
        pool: Connections of its own.
        url: Of the database.
        faults: What may go wrong with its calls.
    """

    def __init__(self, name: str, scene: Scene, pool: Pool, *, url: str, faults: Faults) -> None:
        self.name = name
        self.scene = scene
        self.pool = pool
        self.url = url
        self.ledger = ActionLedger(pool, statement_seconds=_STATEMENT_SECONDS)
        self.faults = faults
        self.chance = Random(f"{scene.seed}:{name}")

    every: ClassVar[int] = 0
    """How many ledger calls all of them make, on average, between two things that it does. Not
    seconds: a busy machine would see another mixture."""

    async def live(self) -> None:
        """Act, one thing after the other, until everybody stops."""
        while not self.scene.over:
            await self.rest()
            try:
                await self.act()
            except CommitlineError as err:
                self.refused(err)
            except (Again, Cancelled, Died, NoEnd, Waits):
                pass

    async def rest(self) -> None:
        """Wait while the others go on."""
        await self.scene.pace.rest(self.chance.random() * 2 * self.every)

    @abstractmethod
    async def act(self) -> None:
        """Do one thing."""

    def refused(self, error: CommitlineError) -> None:
        """Count what the ledger refuses; no actor may get some of that."""
        self.scene.counts[f"refused: {type(error).__name__}"] += 1
        if isinstance(error, _NEVER):
            self.scene.violation(self.name, f"{type(error).__name__}: {error}")

    def is_lost(self) -> bool:
        """Whether a fault comes now, where something may be lost on its way."""
        return self.chance.random() < self.faults.death

    async def do(self, what: str, about: str, answer: Awaitable[T]) -> T:
        """Make a ledger call, and keep it in the trace."""
        self.scene.counts[what] += 1
        self.scene.pace.call()
        return await self.scene.trace.call(self.name, what, about, answer)

    # --- calls --------------------------------------------------------------------------------

    async def carry_out(
        self,
        request: ActionRequest,
        *,
        run: AgentRun | None = None,
        most: int = _MOST_ATTEMPTS,
        before: Callable[[], None] = lambda: None,
    ) -> Claim | Outcome | None:
        """Make attempts at a call until one of them is told how it ended, as Temporal does.

        Args:
            request: The call.
            run: The run whose workflow makes it.
            most: How many attempts.
            before: Called before each: it raises where the workflow is gone.

        Raises:
            NoEnd: After so many attempts.
            Cancelled: The run was stopped.
            CommitlineError: The ledger refuses it.
        """
        for number in range(most):
            before()
            attempt = AttemptAtCall(
                self.name,
                self.scene,
                self.ledger,
                self.chance,
                request,
                pool=self.pool,
                faults=self.faults,
                run=run,
                # `temporal activity reset` counts from one again.
                repeats=number > 0 and self.chance.random() < 0.8,
            )
            try:
                return await self._wait_for(attempt)
            except (Again, Died, Fenced):
                await self.scene.pace.rest(self.chance.random() * 10)
            except Waits as err:
                await self._wait_for_answer(err.question, run, before)
        raise NoEnd

    async def _wait_for(self, attempt: AttemptAtCall) -> Claim | Outcome | None:
        """Wait for an attempt; sometimes take it for dead while it goes on."""
        task = asyncio.create_task(attempt.make())
        if self.chance.random() < self.faults.taken_for_dead:
            await asyncio.wait([task], timeout=self.chance.random() * 0.03)
            if not task.done():
                self.scene.counts["taken for dead"] += 1
                self._leave_behind(task)
                raise Died
        return await task

    async def _wait_for_answer(
        self, question: Question, run: AgentRun | None, before: Callable[[], None]
    ) -> None:
        """Look from time to time whether a person has answered, or nobody will any more."""
        for _ in range(_MOST_ATTEMPTS):
            before()
            if run is not None and run.cancelled:
                raise Cancelled
            await self.scene.pace.rest(self.chance.random() * 30)
            found, _ = await self.ledger.questions.look(question.key, question.number)
            if found is None or found.state != "waiting":
                return

    def _leave_behind(self, task: asyncio.Task[Claim | Outcome | None]) -> None:
        async def go_on() -> None:
            try:
                await task
            except CommitlineError as err:
                self.refused(err)
            except (Again, Cancelled, Died, Waits):
                pass

        left = asyncio.create_task(go_on())
        self.scene.background.add(left)
        left.add_done_callback(self.scene.background.discard)

    def tell(self, request: ActionRequest, said: Claim | Outcome | None) -> None:
        """Keep what the model reads; what it read before must stand."""
        key, told = request.key, self.scene.told[request.key]
        before = (told.outcome, told.unknown, told.accepted, told.conflict)
        outcome = said.action.recorded if isinstance(said, AlreadyDone) else None
        outcome = said if isinstance(said, Outcome) else outcome
        if told.conflict or (told.accepted and not isinstance(said, Accepted)):
            self.scene.violation(key, f"it read {before}, and now {said}")
        if told.outcome is not None and told.outcome != outcome:
            self.scene.violation(key, f"it read {told.outcome}, and now {said}")
        told.outcome = outcome
        if said is None or isinstance(said, Parked):
            told.unknown = True
            tell_unknown(self.scene, request)
        # Of another action's row it reads that somebody else carries that out; nothing is kept.
        told.accepted = isinstance(said, Accepted) and said.action.key == key

    def tell_conflict(self, request: ActionRequest, error: IdempotencyKeyConflict) -> None:
        """The same of a refusal."""
        told = self.scene.told[request.key]
        if told.outcome is not None or told.unknown or told.accepted:
            self.scene.violation(request.key, f"it read {told}, and now {error}")
        told.conflict = True

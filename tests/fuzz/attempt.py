"""One attempt at one call: what the guard does, with every fault that an attempt may meet.

It follows `commitline.activities.guard.attempt` and the table of `guard.outcome`, over the ledger
alone. Between any two steps it may pause, die, or find that its time is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import Final, TypeVar
from uuid import uuid4

from commitline.canonical import parse
from commitline.errors import Fenced
from commitline.identity import ActionKey
from commitline.ledger import (
    Accepted,
    ActionLedger,
    ActionRequest,
    AlreadyDone,
    Attempt,
    Busy,
    Claim,
    Dispatched,
    Effect,
    LookUp,
    Outcome,
    Parked,
    QuestionRequest,
)
from commitline.ledger.pool import Pool
from commitline.tests.fuzz.faults import Again, Cancelled, Died, Faults, Waits
from commitline.tests.fuzz.provider import Answer
from commitline.tests.fuzz.scene import AgentRun, Call, Scene
from commitline.tests.fuzz.tools import TOOLS
from commitline.tests.fuzz.witness import known_unknown, now, relied_on, sent_again

T = TypeVar("T")

LEASE: Final = timedelta(hours=1)
"""No lease runs out by itself: `clock.pass_time` lets the time of an attempt pass."""
TRIES: Final = 3
BY_ATTEMPT: Final = "says attempt "
_LONG: Final = 80
"""Ledger calls, of all, for which what is late is late, at most."""


class AttemptAtCall:
    """One attempt.

    Args:
        who: The actor that makes it.
        scene: What all share.
        ledger: The actor's own.
        chance: The actor's own.
        request: What it claims.
        pool: The actor's own.
        faults: What may go wrong.
        run: The run whose workflow makes the call; None for the relay and for undos.
        repeats: Whether another attempt came before it.
    """

    def __init__(
        self,
        who: str,
        scene: Scene,
        ledger: ActionLedger,
        chance: Random,
        request: ActionRequest,
        *,
        pool: Pool,
        faults: Faults,
        run: AgentRun | None = None,
        repeats: bool = False,
    ) -> None:
        self._who = who
        self._scene = scene
        self._ledger = ledger
        self._pool = pool
        self._chance = chance
        self._request = request
        self._faults = faults
        self._run = run
        self._unordered = run is not None and chance.random() < faults.unordered
        self._repeats = repeats or self._unordered
        self._began = scene.engine.now()
        self._call = Call(uuid4(), str(parse(request.args)["order"]))

    async def make(self) -> Claim | Outcome | None:
        """Carry the call out, or find out what became of it; return what is told of it.

        An outcome, a claim that says what stands, or None where the action is left unknown.

        Raises:
            Again: Another attempt is to follow. So it is after `Died`.
            Cancelled: Its run was stopped.
            CommitlineError: The ledger refuses the call.
        """
        # Before the claim: its time may pass while the answer to that is on its way.
        self._scene.calls[self._call.token] = self._call
        self._call.at_work += 1
        try:
            while True:
                told, of_another = await self._once()
                if not of_another:
                    return told
        finally:
            self._call.at_work -= 1

    async def _once(self) -> tuple[Claim | Outcome | None, bool]:
        """Claim once; return what is told, and whether it is told of another action's row."""
        with nullcontext() if self._run is None else self._run.about_to_claim():
            await self._point("before the claim")
            known, since = known_unknown(self._scene, self._request), now()
            claim = await self._do(
                "claim", self._request.key, self._ledger.claim(self._request, self._attempt())
            )
        self._scene.counts[f"claim: {type(claim).__name__}"] += 1
        await self._witness(claim, known, since)
        await self._point("after the claim")
        match claim:
            case Busy():
                raise await self._later()
            case Dispatched():
                return await self._make(claim), claim.settles_for is not None
            case LookUp():
                return await self._look_up(claim), claim.call.settles_for is not None
            case AlreadyDone() | Parked() | Accepted():
                return claim, False

    async def _witness(self, claim: Claim, known: Sequence[ActionKey], since: datetime) -> None:
        """Look whether the claim gave what it must not give."""
        scene, request = self._scene, self._request
        match claim:
            case Dispatched():
                scene.undo_sent[claim.key] = now()
                given = None if self._run is None else self._run.assigned
                if given is not None and given[0] != request.owner and given[1] < since:
                    scene.violation(request.key, f"is claimed by {request.owner}, not {given[0]}")
                if not claim.taken_over:
                    await sent_again(scene, self._ledger, request, known)
            case Accepted(action) if action.key == request.key and action.created_at > since:
                await sent_again(scene, self._ledger, request, known)
            case AlreadyDone(action) if action.duplicate_of and action.created_at > since:
                first = action.duplicate_of
                await relied_on(scene, self._ledger, self._pool, first, since=since)
            case _:
                pass

    def _attempt(self) -> Attempt:
        return Attempt(
            self._began,
            self._call.token,
            LEASE,
            scheduled_at=self._began if self._run is None else None,
            repeats=self._repeats,
            unordered=self._unordered,
        )

    # --- the call ----------------------------------------------------------------------------

    async def _make(self, claim: Dispatched, *, called_before: bool = False) -> Outcome | None:
        taken_over = claim.taken_over or called_before
        if taken_over:
            self._scene.counts["taken over"] += 1
        target = await self._target(claim.key)
        await self._point("before the call")
        if self._cancelled():
            await self._do("hand_back", claim.key, self._hand_back(claim, claim.failures))
            raise Cancelled
        if self._call.late:
            raise Died
        if TOOLS[claim.tool].asks and all(one.answer is None for one in claim.questions):
            return await self._ask(claim, taken_over)
        if self._chance.random() < self._faults.no_connection:
            return await self._not_attempted(claim, taken_over)
        if self._chance.random() < self._faults.lost_answer:
            return await self._no_answer(claim, taken_over, target)
        answer = self._provider_does(claim, target)
        await self._point("after the call")
        return await self._follow(claim, answer, taken_over)

    async def _ask(self, claim: Dispatched, taken_over: bool) -> Outcome | None:
        """Stop, to put a question to a person."""
        run_key, at = claim.place
        own = run_key == self._request.run_key
        asked = QuestionRequest(
            run_key=run_key,
            position=at,
            thread_id=(self._request.thread_id if own else None) or run_key,
            tool=claim.tool,
            index=0,
            message="how?",
            payload=claim.args,
            expires_after=LEASE,
        )
        put = self._ledger.questions.raise_question(
            asked, claim, attempt_at=self._began, over=not taken_over
        )
        question, row = await self._do("ask", claim.key, put)
        await self._point("after the question")
        if row is not None:
            return row.recorded
        raise Waits(question)

    async def _follow(self, claim: Dispatched, answer: Answer, taken_over: bool) -> Outcome | None:
        """Do what follows from an answer."""
        match answer:
            case "ok":
                return await self._record(claim, _ok(claim))
            case "declined" if not taken_over:
                return await self._record(claim, without_effect(claim))
            case "declined":
                reason = "an earlier attempt may have happened; now declined"
                return await self._park(claim, reason, failures=claim.failures + 1)
            case "refused":
                return await self._not_attempted(claim, taken_over)
            case "at work":
                fail = self._ledger.fail_try(claim, in_progress=True)
                await self._do("fail_try: in progress", claim.key, fail)
                raise Again

    def _provider_does(self, claim: Dispatched, target: str | None) -> Answer:
        """Send the request: the only line of the fuzz by which something happens."""
        if self._call.late:
            raise Died
        answer = self._scene.provider.request(
            TOOLS[claim.tool], claim.idempotency_key, target=target
        )
        self._scene.trace.note(
            claim.key, f"{self._who}: THE PROVIDER says {answer} to {claim.idempotency_key}"
        )
        self._scene.counts[f"provider: {answer}"] += 1
        return answer

    async def _not_attempted(self, claim: Dispatched, taken_over: bool) -> Outcome | None:
        """Nothing of this attempt was sent."""
        failures = claim.failures + 1
        if failures < TRIES:
            if await self._do("hand_back", claim.key, self._hand_back(claim, failures)):
                raise Again
            if claim.effect is not Effect.AT_MOST_ONCE:
                fail = self._ledger.fail_try(claim)
                await self._do("fail_try", claim.key, fail)
                raise Again
        if self._request.purpose == "relay":
            if await self._do("hand_back", claim.key, self._hand_back(claim, failures)):
                unsent = self._ledger.park_unsent(claim.key, "not sent: no connection")
                await self._do("park_unsent", claim.key, unsent)
                return None
            return await self._park(claim, "not sent", failures=failures)
        if taken_over:
            return await self._park(claim, "an earlier attempt may have happened; no connection")
        return await self._record(claim, without_effect(claim))

    async def _no_answer(
        self, claim: Dispatched, taken_over: bool, target: str | None
    ) -> Outcome | None:
        """The request may have happened. Perhaps the tool goes on, in a thread, and ends late."""
        goes_on = self._chance.random() < self._faults.goes_on
        if goes_on:
            self._call.at_work += 1
            late = asyncio.create_task(self._end_late(claim, taken_over, target))
            self._scene.background.add(late)
            late.add_done_callback(self._scene.background.discard)
        elif self._chance.random() < 0.5:
            self._provider_does(claim, target)
        await self._point("after a call without an answer")
        failures = claim.failures + 1
        if self._cancelled():
            await self._park(claim, "cancelled while the tool was at work", over=not goes_on)
            raise Cancelled
        again = failures < TRIES or (claim.effect is Effect.LOOKUP and not goes_on)
        if claim.effect is not Effect.AT_MOST_ONCE and again:
            fail = self._ledger.fail_try(claim, over=not goes_on)
            await self._do("fail_try", claim.key, fail)
            raise Again
        return await self._park(claim, "no answer", over=not goes_on, failures=failures)

    async def _end_late(self, claim: Dispatched, taken_over: bool, target: str | None) -> None:
        try:
            await self._scene.pace.rest(self._chance.random() * _LONG)
            answer = self._provider_does(claim, target)
            await self._scene.pace.rest(self._chance.random() * _LONG)
            if answer == "ok":
                await self._do("record late", claim.key, self._ledger.record(claim, _ok(claim)))
            elif answer == "declined" and not taken_over:
                await self._do(
                    "record late", claim.key, self._ledger.record(claim, without_effect(claim))
                )
        except (Died, Fenced):
            pass
        except Exception as err:
            self._scene.violation(claim.key, f"a late record raises {err!r}")
        finally:
            self._call.at_work -= 1

    # --- the lookup --------------------------------------------------------------------------

    async def _look_up(self, claim: LookUp) -> Outcome | None:
        call = claim.call
        self._scene.counts["looked up"] += 1
        if self._chance.random() < self._faults.lost_answer:
            if self._chance.random() < 0.5:
                return await self._park(call, "could not be looked up", over=False)
            raise Again
        found = self._scene.provider.happened(call.idempotency_key)
        self._scene.trace.note(call.key, f"{self._who}: looked up: {found}")
        await self._point("after the lookup")
        if found:
            return await self._record(call, _ok(call))
        if claim.settles_in > timedelta():
            raise await self._later()
        if self._request.lookup_only or call.failures >= TRIES:
            return await self._record(call, without_effect(call))
        await self._do(
            "send_after_lookup", call.key, self._ledger.send_after_lookup(self._request, call)
        )
        return await self._make(replace(call, taken_over=False), called_before=True)

    # --- the row -----------------------------------------------------------------------------

    async def _record(self, claim: Dispatched, outcome: Outcome) -> Outcome:
        # By the attempt, or by the workflow, to which the outcome was handed over.
        held = claim if self._chance.random() < 0.9 else claim.held
        stands = await self._do("record", claim.key, self._ledger.record(held, outcome))
        await self._point("after the record")
        return stands

    async def _park(
        self, claim: Dispatched, reason: str, *, over: bool = True, failures: int | None = None
    ) -> Outcome | None:
        park = self._ledger.park(claim, reason, over=over, failures=failures)
        row = await self._do("park", claim.key, park)
        await self._point("after the park")
        return row.recorded

    async def _hand_back(self, claim: Dispatched, failures: int) -> bool:
        return await self._ledger.hand_back(claim, claim.attempt, failures=failures)

    async def _target(self, key: ActionKey) -> str | None:
        """Return the key of what the call undoes, as its row says."""
        row = await self._ledger.get(key)
        if row is None or row.undoes is None:
            return None
        undone = await self._ledger.get(row.undoes)
        return None if undone is None else undone.idempotency_key

    # --- what may go wrong -------------------------------------------------------------------

    async def _do(self, what: str, about: str, answer: Awaitable[T]) -> T:
        self._scene.pace.call()
        return await self._scene.trace.call(self._who, what, about, answer)

    async def _point(self, where: str) -> None:
        """Pause here, perhaps, and perhaps die."""
        drawn = self._chance.random()
        if drawn < self._faults.pause:
            long = drawn < self._faults.pause / 10
            await self._scene.pace.rest(self._chance.random() * (_LONG if long else 4))
        if self._chance.random() < self._faults.death:
            self._scene.trace.note(self._request.key, f"{self._who}: dies {where}")
            self._scene.counts[f"dead {where}"] += 1
            raise Died

    async def _later(self) -> Again:
        """Wait for a while, as whoever waits for another one's lease."""
        await self._scene.pace.rest(self._chance.random() * self._faults.wait)
        return Again()

    def _cancelled(self) -> bool:
        return self._run is not None and self._run.cancelled and self._chance.random() < 0.7


def without_effect(claim: Dispatched) -> Outcome:
    """Return how a call ends of which an attempt knows that nothing happened; it names itself."""
    told = f"nothing happened, {BY_ATTEMPT}{claim.token}"
    return Outcome.error(kind="ToolRefused", message=told, effect_possible=False)


def _ok(claim: Dispatched) -> Outcome:
    return Outcome.ok(f'{{"done":"{claim.idempotency_key}"}}')

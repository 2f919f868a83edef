"""What seldom happens to a full ledger, as a story for bench/scale.py: a failover, a lost undo.

The stories of runs that go well, or nearly so, are in `scale_calls`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from commitline import Effect
from commitline.bench.scale_calls import OVER, Ledger, Story, attempt
from commitline.identity import Position
from commitline.ledger import Dispatched, QuestionRequest


async def a_lost_attempt(on: Ledger, number: int) -> None:
    """A retry that finds no row; what others rely on, and what is given up; a turn after."""
    run, ledger = await on.opened(number, "rare"), on.ledger
    fact = f"scale-rare-{on.stamp}-{number}"
    retry = on.request(run, "0.0", domain_key=fact)
    claim = await ledger.claim(retry, replace(attempt(), repeats=True))
    assert isinstance(claim, Dispatched), claim
    other = await on.opened(number, "relies")
    await ledger.claim(on.request(other, "0.0", domain_key=fact, detached=True), attempt())
    unsent = on.request(run, "1.0", args='{"a":1}', detached=True)
    await ledger.claim(unsent, attempt())
    await ledger.relay.give_up(unsent.key, "its run was stopped")
    await ledger.threads.open(run, agent="support")
    await ledger.threads.read(run, run, calls=[retry.key])


async def another_question(on: Ledger, number: int) -> None:
    """A call that is taken over, and raises another question in the place of its first one."""
    run, ledger = await on.opened(number, "asks"), on.ledger
    plain: dict[str, Any] = {"run_key": run, "thread_id": run, "tool": "ship", "payload": "{}"}
    now = datetime.now(UTC)
    request = on.request(run, "0.0")
    by = attempt(OVER)
    for message in ("Which one?", "Really?"):
        claim = await ledger.claim(request, by)
        assert isinstance(claim, Dispatched), claim
        if by.lease == OVER and message == "Which one?":
            by = attempt(seconds=9)
            claim = await ledger.claim(request, by)
            assert isinstance(claim, Dispatched), claim
        question = QuestionRequest(
            position=Position("0.0"), message=message, index=0, expires_after=None, **plain
        )
        await ledger.questions.raise_question(question, claim, attempt_at=now)
        by = attempt(seconds=19)
    await ledger.questions.get(request.key, 2)


async def what_nobody_brings_to_its_end(on: Ledger, number: int) -> None:
    """An undo that another workflow takes over; what its run has left gets an exit."""
    run, ledger = await on.opened(number, "left"), on.ledger
    await on.dispatched(run, "0.0", compensator="refund", effect=Effect.IDEMPOTENT)
    now = datetime.now(UTC)
    await ledger.undo.begin(run, why="it failed", failed=True, attempt_at=now, by="one")
    await ledger.undo.take_over(run, by="two", after="one")
    found = await ledger.runs.get(run)
    assert found is not None
    await ledger.relay.give_exits(found, can_look_up=True)


RARE: tuple[Story, ...] = (a_lost_attempt, another_question, what_nobody_brings_to_its_end)

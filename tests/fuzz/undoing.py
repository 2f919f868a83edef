"""The undo of a run, as its workflow takes the steps that the ledger plans."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from commitline.canonical import digest, parse
from commitline.errors import CommitlineError, IdempotencyKeyConflict
from commitline.idempotency_key import undo_key
from commitline.identity import ActionKey, RunKey
from commitline.ledger import Action, ActionRequest, DueUndo, Effect
from commitline.ledger.action_records import Purpose
from commitline.tests.fuzz.actor import Actor, NoEnd
from commitline.tests.fuzz.faults import Cancelled
from commitline.tests.fuzz.tools import TOOLS, request_of
from commitline.tests.fuzz.witness import now

_MOST_ATTEMPTS = 15
_MOST_ROUNDS = 60


class Undoing:
    """Undoes one run.

    Args:
        actor: Who does it.
        run_key: The run.
    """

    def __init__(self, actor: Actor, run_key: RunKey) -> None:
        self._actor = actor
        self._run_key = run_key
        self._passed: set[ActionKey] = set()

    async def begin(self, *, failed: bool, attempt_at: datetime, again: bool = False) -> bool:
        """Begin, if the run is to be undone; return whether it is."""
        undo = self._actor.ledger.undo
        begin = undo.begin(
            self._run_key, why="it failed", failed=failed, attempt_at=attempt_at, again=again
        )
        begun = await self._actor.do("begin undo", self._run_key, begin)
        if begun:
            self._actor.scene.undo_began[self._run_key] = now()
            for run in self._actor.scene.tree(self._run_key):
                run.seen_ended = False
        return begun

    async def go_on(self) -> bool:
        """Take the steps that are due until the undo is over; False where it is lost on its way."""
        actor, undo = self._actor, self._actor.ledger.undo
        for _ in range(_MOST_ROUNDS):
            plan = undo.plan(self._run_key, passed=frozenset(self._passed))
            steps = await actor.do("plan undo", self._run_key, plan)
            for step in steps:
                if actor.faults.death and (actor.scene.over or actor.is_lost()):
                    return False  # its workflow was terminated, or a reset dropped it
                await self._take(step)
            if steps:
                continue
            finish = undo.finish(
                self._run_key,
                attempt_at=actor.scene.engine.now(),
                passed=frozenset(self._passed),
            )
            if await actor.do("finish undo", self._run_key, finish):
                return True
        actor.scene.violation(self._run_key, "its undo does not end")
        return False

    async def _take(self, step: DueUndo) -> None:
        """Take a step; pass it by where that is not possible."""
        try:
            request = await self._request(await in_full(self._actor, step))
            if request is not None:
                await self._actor.carry_out(request, most=_MOST_ATTEMPTS)
                return
        except IdempotencyKeyConflict:
            return  # a row of its own says so
        except (CommitlineError, Cancelled) as err:
            if isinstance(err, CommitlineError):
                self._actor.refused(err)
        except NoEnd:
            pass
        self._passed.add(step.passes)
        if step.at is not None:
            self._actor.scene.passed.add(step.action.key)

    async def _request(self, step: DueUndo) -> ActionRequest | None:
        tool = TOOLS[step.action.tool]
        lookup_only = tool.parks_unknown or step.action.effect is Effect.LOOKUP
        if step.at is None and step.parked and lookup_only and not tool.can_look_up:
            return None
        if step.parked:
            reopen = self._actor.ledger.undo.reopen(step.reopens)
            if not await self._actor.do("reopen for undo", step.reopens, reopen):
                return None
        if step.at is None:
            return settlement_of(step.action, "settle", lookup_only=lookup_only)
        return undo_of(step)


async def in_full(actor: Actor, due: DueUndo) -> DueUndo:
    """Return a step with the arguments of its actions, which a plan does not carry."""
    action = await actor.ledger.get(due.action.key)
    begun = None if due.begun is None else await actor.ledger.get(due.begun.key)
    assert action is not None, "no row is ever lost here"
    return replace(due, action=action, begun=begun)


def settlement_of(found: Action, purpose: Purpose, *, lookup_only: bool) -> ActionRequest:
    """Return what a call claims that no run planned."""
    return request_of(
        TOOLS[found.tool],
        found.run_key,
        found.position,
        found.args,
        thread=found.thread_id,
        requested_digest=found.requested_digest,
        effective_digest=found.effective_digest,
        purpose=purpose,
        lookup_only=lookup_only,
    )


def undo_of(due: DueUndo) -> ActionRequest:
    """Return what the undo of an action claims."""
    found, begun = due.action, due.begun
    assert due.at is not None
    tool = TOOLS[found.compensator or ""]
    args = found.args if begun is None else begun.args
    own = tool.domain_key(args)
    return request_of(
        tool,
        found.run_key,
        due.at,
        args,
        thread=found.thread_id,
        requested_digest=digest(parse(args)) if begun is None else begun.requested_digest,
        domain_key=None if own is None else undo_key(own, found.generation),
        undoes=found.key,
        undoes_domain_key=None,
        purpose="undo",
    )

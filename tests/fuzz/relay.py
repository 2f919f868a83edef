"""`Relay`: ends runs whose workflows are gone, and settles what is due, by the relay's own rules.

The rules are those of `activities.runs.settlement` and `gone_runs`, without Temporal.
"""

from __future__ import annotations

from typing import LiteralString

from commitline.errors import CommitlineError, IdempotencyKeyConflict
from commitline.identity import is_of_outbox, split_action_key
from commitline.ledger import Action, RelayEntry, Run
from commitline.tests.fuzz.actor import Actor, NoEnd
from commitline.tests.fuzz.faults import Cancelled
from commitline.tests.fuzz.tools import TOOLS
from commitline.tests.fuzz.undoing import in_full, settlement_of, undo_of
from commitline.tests.integration.database import sql

_MOST_ATTEMPTS = 6
_GIVEN_UP_AFTER = 4
_LOST_UNDOS = 0.5
"""How often the queue loses what is to be undone; at the end, too."""


class Relay(Actor):
    """One of the relays."""

    every = 15

    @property
    def _most(self) -> int:
        """How often a call is tried: at the end no other attempt can come between."""
        return _MOST_ATTEMPTS if self.faults.death else 2

    async def act(self) -> None:
        """Look through the runs, or take what is due."""
        if self.chance.random() < 0.2:
            await self.end_lost()
        else:
            await self.settle_due(limit=self.chance.choice([1, 3]))

    async def end_lost(self) -> int:
        """End the runs whose workflows are gone; return how many."""
        ended = 0
        for gone in [one for one in self.scene.runs.values() if one.is_gone]:
            run, at = await self.ledger.runs.get(gone.key), gone.gone_at
            if at is None or not gone.is_gone:
                continue  # it was reset meanwhile
            if run is None or run.state == "ended":
                gone.seen_ended = True
                continue
            end = self.ledger.relay.end_lost(run, workflow_status="terminated", ended_at=at)
            ended += await self.do("end_lost", run.run_key, end)
        return ended + await self.give_exits()

    async def give_exits(self) -> int:
        """See to what ended runs have left; return how much that was."""
        relay = self.ledger.relay
        given = len(await relay.adopt())
        if await relay.settle_repeats():
            self.scene.violation("", "a repeat was not settled with what it repeats")
        _, left_over = await relay.clear_runs(limit=1_000, before=await relay.now())
        for key in left_over:
            run = await self.ledger.runs.get(key)
            if run is not None and (is_of_outbox(key) or self.scene.gone(key) is not None):
                exits = relay.give_exits(run, can_look_up=True)
                given += await self.do("give_exits", key, exits)
        return given

    async def settle_due(self, *, limit: int) -> int:
        """Take due entries and settle them; return how many."""
        due = await self.ledger.relay.take_due(list(TOOLS), limit=limit)
        for entry in due:
            if self.is_lost() or self._is_late_with(entry):
                continue  # a relay that dies; the entry is due again later
            if entry.why == "undo" and self.chance.random() < _LOST_UNDOS:
                await self._lose(entry)
                continue
            await self.ledger.relay.count_start(entry)
            failed = await self._settle(entry)
            found = await self.ledger.relay.entry(entry.key)
            if failed and found is not None and found[0].starts >= _GIVEN_UP_AFTER:
                leave = self.ledger.relay.leave_to_person(entry.key, f"given up: {failed}")
                await self.do("leave_to_person", entry.key, leave)
            await self.ledger.relay.dequeue_if_settled(entry.key)
        return len(due)

    def _is_late_with(self, entry: RelayEntry) -> bool:
        """Whether a fault comes now that leaves what a person has reopened as it is for long."""
        reopened = entry.why == "send" and not is_of_outbox(split_action_key(entry.key)[0])
        return reopened and self.chance.random() < 20 * self.faults.death

    async def _lose(self, entry: RelayEntry) -> None:
        """Have the queue lose an entry. Nothing of ours does; the sweep finds it all the same."""
        statement: LiteralString = "delete from agent_relay where key = %(key)s"
        await self.do("lose an undo", entry.key, sql(self.pool, statement, key=entry.key))

    async def _settle(self, entry: RelayEntry) -> str | None:
        """Settle an entry; return why that failed, if it did."""
        try:
            await self._try(entry)
        except IdempotencyKeyConflict:
            return None
        except (CommitlineError, Cancelled) as err:
            if isinstance(err, CommitlineError):
                self.refused(err)
            return str(err)
        except NoEnd:
            return "tried often enough"
        return None

    async def _try(self, entry: RelayEntry) -> None:
        queued = await self.ledger.relay.entry(entry.key)
        found = await self.ledger.get(entry.key)
        run = None if found is None else await self.ledger.runs.get(found.run_key)
        if queued is None or found is None or run is None:
            return
        now, first = queued
        self.scene.trace.note(entry.key, f"{self.name}: settles it: {now.why}")
        if now.why == "undo":
            await self._undo(found, run)
        elif first and await self._may_begin(found, run, now):
            current = await self.ledger.get(found.key)
            goes_on = run.stopped_at is None or (current is not None and current.adopted)
            sends = goes_on and (now.why != "lookup" or TOOLS[found.tool].resend)
            await self.carry_out(
                settlement_of(found, "relay", lookup_only=not sends), most=self._most
            )

    async def _may_begin(self, found: Action, run: Run, entry: RelayEntry) -> bool:
        """Whether the action is to be sent, or looked up, now; check it, or call it off."""
        if found.status == "done" or found.parked:
            return False
        if entry.why == "lookup" and self.scene.gone(run.run_key) is None:
            return False
        if found.dispatched_at is None and run.stopped_at is not None and not found.adopted:
            given_up = self.ledger.relay.give_up(found.key, "its run was stopped")
            if not (await self.do("give_up", found.key, given_up)).adopted:
                return False
        await self._define(found)
        return not found.leased

    async def _undo(self, found: Action, run: Run) -> None:
        due = None if run.state == "undoing" else await self.ledger.undo.plan_one(found)
        if due is not None:
            await self.carry_out(undo_of(await in_full(self, due)), most=self._most)

    async def _define(self, found: Action) -> None:
        if found.dispatched_at is not None or not is_of_outbox(found.run_key):
            return
        tool = TOOLS[found.tool]
        defined = self.ledger.relay.define(
            found.key, effect=tool.effect, key_ttl=tool.key_ttl, compensator=tool.compensator
        )
        await self.do("define", found.key, defined)

"""Any order of claims, calls, crashes and records keeps the promises, on a real Postgres.

Attempts of ten actions in two runs share domain keys. A worker may die at any moment, an
attempt that everybody takes for dead may live on until its deadline, an answer of Postgres may
be lost, a run may be stopped, and a person may settle what is unknown. Outside stands a
provider. It answers a key of a charge that it knows as it did the first time. Of anything else
every call counts, except of a mail that it is still at work on; whether something was shipped
it can be asked. At the end every row takes the exit that it has.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random
from typing import Any, Final, LiteralString, TypeAlias
from uuid import UUID

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from commitline.canonical import Json, canonical, digest, dumps, parse
from commitline.errors import Fenced, IdempotencyKeyConflict, RunNotRunning, SettlementRefused
from commitline.identity import ActionKey, Position, RunKey
from commitline.ledger import (
    ActionLedger,
    ActionRequest,
    AlreadyDone,
    Attempt,
    Busy,
    Dispatched,
    Effect,
    LookUp,
    NewMessage,
    Outcome,
    Parked,
    Turn,
)
from commitline.ledger.pool import Pool
from commitline.tests.builders import DID_NOT_HAPPEN, NOON, attempt
from commitline.tests.integration.properties import RunTheLoop, examples

EXAMPLES: Final = count()
RECORDS: Final = count()
HOUR: Final = timedelta(hours=1)

PLAN: Final[tuple[tuple[str, str, str, str, Effect, str | None, timedelta | None], ...]] = (
    ("a", "0.0", "charge", '{"cents":4900}', Effect.IDEMPOTENT, "charge", None),
    ("a", "0.1", "charge", '{"cents":4900}', Effect.IDEMPOTENT, "charge", None),
    ("b", "0.0", "charge", '{"cents":4900}', Effect.IDEMPOTENT, "charge", None),
    ("b", "0.1", "charge", '{"cents":5900}', Effect.IDEMPOTENT, "charge", None),
    ("a", "1.0", "mail", '{"to":"a@x"}', Effect.AT_MOST_ONCE, "mail", None),
    ("b", "1.0", "mail", '{"to":"a@x"}', Effect.AT_MOST_ONCE, "mail", None),
    ("b", "2.0", "mail", '{"to":"a@x"}', Effect.AT_MOST_ONCE, None, None),
    ("a", "3.0", "ship", '{"order":1}', Effect.LOOKUP, "ship", None),
    ("b", "3.0", "ship", '{"order":1}', Effect.LOOKUP, "ship", None),
    ("b", "4.0", "ship", '{"order":1}', Effect.LOOKUP, None, None),
)
"""Run, position, tool, arguments, effect, fact, key life."""

ACTIONS: Final = [(0, 1, 2, 3), *[(4, 5, 6), (7, 8, 9)] * 2, tuple(range(len(PLAN)))]
"""Those that one example plays with: of one tool, so that they meet, or all."""

OPERATIONS: Final = [
    *["claim"] * 10,
    *["claim, and be lost"] * 3,
    *["go on", "record"] * 5,
    "go on, declined",
    *["go on, in progress"] * 2,
    "record an odd result",
    *["record, not answered"] * 2,
    "crash",
    "fail",
    "fail, but go on",
    *["park"] * 2,
    "hand back",
    *["claim again"] * 2,
    "claim, by an old attempt",
    "expire the lease",
    *["pass the deadline"] * 2,
    "end the run",
    *["open the run again"] * 2,
    "stop the run",
    "stop the run, which ends",
    "settle",
    *["tell the run"] * 2,
]
Plan: TypeAlias = list[tuple[str, int]]


def plan(seed: int) -> Plan:
    """Operations, and the actions that they are done to."""
    chance = Random(seed)
    actions = chance.choice(ACTIONS)
    number = chance.randint(15, 45)
    return [(chance.choice(OPERATIONS), chance.choice(actions)) for _ in range(number)]


# By a seed, as lists that hypothesis draws item by item keep to a few of the operations.
plans = st.integers(0, 2**32).map(plan)


@dataclass(eq=False)
class Call:
    """A claim that some worker holds, and how far it has come."""

    claim: Dispatched
    request: ActionRequest
    ask: LookUp | None = None
    """It has to ask before it may send."""
    answer: str | None = None
    late: bool = False
    """Its own deadline has passed: it sends nothing any more."""
    failed: bool = False
    """Its attempt was told that it failed, and it goes on (in a thread)."""


@dataclass
class World:
    """Workers, the provider, and what is remembered of earlier steps to judge later ones."""

    ledger: ActionLedger
    pool: Pool
    name: str
    now: int = 0
    held: list[Call] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    effects: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    dispatches: dict[ActionKey, set[UUID]] = field(default_factory=dict)
    """By which claims each action was given out to be sent, unasked."""
    at_work: set[str] = field(default_factory=set)
    """What the provider has not finished: the same request is no second one."""
    reported: Counter[ActionKey] = field(default_factory=Counter)
    """How often the ledger was told so."""
    rows: dict[ActionKey, Mapping[str, Any]] = field(default_factory=dict)
    states: dict[RunKey, str] = field(default_factory=dict)
    stopped: set[RunKey] = field(default_factory=set)
    turns: Counter[RunKey] = field(default_factory=Counter)
    refused: set[ActionKey] = field(default_factory=set)

    async def open(self) -> None:
        for run in ("a", "b"):
            await self.open_run(self.run(run), NOON)
        await self.check()

    async def open_run(self, run: RunKey, attempt_at: datetime) -> None:
        opened = await self.ledger.runs.open(
            run_key=run,
            workflow_id=self.name,
            agent="support",
            input_digest="input",
            attempt_at=attempt_at,
        )
        assert (opened.state == "running") == (run not in self.stopped)

    def run(self, name: str) -> RunKey:
        return RunKey(f"{self.name}/{name}")

    def request(self, index: int) -> ActionRequest:
        run, position, tool, args, effect, fact, key_ttl = PLAN[index]
        return ActionRequest(
            run_key=self.run(run),
            position=Position(position),
            tool=tool,
            args=args,
            effect=effect,
            requested_digest=digest(parse(args)),
            effective_digest=digest(parse(args)),
            domain_key=None if fact is None else f"{self.name}-{fact}",
            key_ttl=key_ttl,
            can_look_up=effect is Effect.LOOKUP,
            settles_after=timedelta(),
        )

    def later(self) -> datetime:
        self.now += 1
        # Farther than the clock of the database goes meanwhile, also on a busy machine.
        return NOON + timedelta(minutes=self.now)

    async def step(self, operation: str, index: int) -> bool:
        """Do it to the action of this index, or with a claim that is held; say if it could be."""
        request = self.request(index)
        done = await self.by_somebody_new(operation, request) or await self.to_the_run(
            operation, request.run_key
        )
        if not done and self.held:
            asking = [call for call in self.held if call.ask is not None]
            held = asking if operation == "go on" and asking else self.held
            done = await self.go_on(operation, held[index % len(held)])
        if done:
            event(operation)
        return done

    async def by_somebody_new(self, operation: str, request: ActionRequest) -> bool:
        match operation:
            case "claim":
                await self.claim(request, attempt(since=self.later(), lease=HOUR))
            case "claim, and be lost":
                held = len(self.held)
                await self.claim(request, attempt(since=self.later(), lease=HOUR))
                await self.check()
                del self.held[held:]
                await self.pass_the_deadline([request.key])
            case "claim, by an old attempt":
                await self.claim(request, attempt(lease=HOUR), old=True)
            case "pass the deadline":
                await self.pass_the_deadline(list(self.rows))
            case "expire the lease":
                await self.sql(
                    "update agent_actions set lease_until = clock_timestamp() "
                    "where key = %(key)s and status = 'pending' and dispatched_at is not null",
                    key=request.key,
                )
            case "settle":
                await self.settle(request.key)
            case _:
                return False
        return True

    async def to_the_run(self, operation: str, run: RunKey) -> bool:
        match operation:
            case "end the run":
                await self.ledger.runs.end(run, attempt_at=self.later())
            case "open the run again":
                await self.open_run(run, self.later())
            case "stop the run" | "stop the run, which ends" if self.now > 5:
                await self.stop(run)
                if "ends" in operation:
                    await self.ledger.runs.end(run, attempt_at=self.later())
            case "tell the run":
                await self.tell(run, again=self.now % 3 == 0)
            case _:
                return False
        return True

    async def go_on(self, operation: str, call: Call) -> bool:
        """Do it with a claim, if it has come so far."""
        match operation:
            case "claim again" if call.answer is None:
                await self.claim(call.request, call.claim.attempt, lost_answer=call)
            case "go on" | "go on, declined" | "go on, in progress" if call.answer is None:
                await self.send(call, operation)
            case "record, not answered" if call.answer:
                await self.record(call, odd=False)
            case "record" | "record an odd result" if call.answer:
                self.held.remove(call)
                await self.record(call, odd="odd" in operation)
            case "park" if call.answer == "ok":
                await self.park(call)
            case "hand back" if call.answer is None and not call.failed:
                self.held.remove(call)
                await self.hand_back(call)
            case "fail" | "fail, but go on" if call.ask is None:
                await self.fail(call, over="," not in operation)
            case "crash":
                self.held.remove(call)
            case _:
                return False
        return True

    async def claim(
        self,
        request: ActionRequest,
        attempt: Attempt,
        *,
        lost_answer: Call | None = None,
        old: bool = False,
    ) -> None:
        before = self.rows.get(request.key)
        try:
            claim = await self.ledger.claim(request, attempt)
        except IdempotencyKeyConflict:
            assert request.tool == "charge", "only the two amounts conflict"
            self.refused.add(request.key)
            event("claim: conflict")
            return
        except (Fenced, RunNotRunning) as err:
            stopped = request.run_key in self.stopped
            assert old or lost_answer or stopped, "no attempt and no end is later than a new claim"
            event(f"claim: {type(err).__name__}")
            return
        event(f"claim: {type(claim).__name__}")
        assert request.key not in self.refused, "what was refused stays refused"
        match claim:
            case Dispatched():
                assert lost_answer is None or lost_answer.ask is None, "who asks has to ask"
                self.check_dispatched(claim, attempt, before)
                if lost_answer is None:
                    self.held.append(Call(claim, request))
            case LookUp(call):
                self.check_asked(claim, attempt)
                if lost_answer is None:
                    self.held.append(Call(call, request, claim))
            case AlreadyDone(action):
                assert action.key == request.key
                assert before is None or action.result == before["result"]
            case Parked(action):
                assert action.key == request.key
                assert before is None or before["status"] == "pending"
            case Busy(holder):
                assert holder != request.key

    def check_dispatched(
        self, claim: Dispatched, attempt: Attempt, before: Mapping[str, Any] | None
    ) -> None:
        assert self.may_start(claim.settles_for or claim.key), "a stopped run starts nothing"
        row = before if claim.settles_for is None else self.rows[claim.key]
        if row is None or row["claim_token"] != attempt.token:
            self.dispatches.setdefault(claim.key, set()).add(claim.token)
        if row is None:
            return
        assert row["status"] == "pending", "what is done is not sent"
        assert row["parked_at"] is None, "what is parked is not sent"
        if row["dispatched_at"] is None or row["claim_token"] == attempt.token:
            assert not row["looking_up"], "who asks does not send"
            return
        again = row["effect"] == "idempotent" or row["in_progress"]
        assert again, "nothing else is sent again"
        self.check_taken_over(claim, attempt, row)

    def check_asked(self, ask: LookUp, attempt: Attempt) -> None:
        claim = ask.call
        row = self.rows[claim.key]
        assert self.may_start(claim.settles_for or claim.key), "a stopped run asks nothing"
        assert (row["status"], row["parked_at"], row["effect"]) == ("pending", None, "lookup")
        assert row["dispatched_at"] is not None, "nobody is asked about what was never sent"
        assert (ask.settles_in <= timedelta()) == (row["sent_until"] <= datetime.now(UTC))
        if row["claim_token"] == attempt.token:
            assert row["looking_up"], "who was given it to send goes on"
        else:
            self.check_taken_over(claim, attempt, row)

    def check_taken_over(self, claim: Dispatched, attempt: Attempt, row: Mapping[str, Any]) -> None:
        if row["claimed_by"] == (claim.settles_for or claim.key):
            assert row["attempt_at"] < attempt.started_at, "only a later attempt takes over"
        else:
            assert row["lease_until"] <= datetime.now(UTC), "nobody takes over from the living"

    def may_start(self, claimant: ActionKey) -> bool:
        """Whether the run of the claimant is not stopped."""
        return RunKey(claimant.rsplit(":", 1)[0]) not in self.stopped

    async def hand_back(self, call: Call) -> None:
        row = self.rows[call.claim.key]
        its_own = call.claim.settles_for is None and row["claim_token"] == call.claim.attempt.token

        handed_back = await self.ledger.hand_back(call.request, call.claim.attempt)

        open_ = row["status"] == "pending" and row["parked_at"] is None
        first = row["tries"] == 1 and not row["looking_up"]
        assert handed_back == (its_own and open_ and first), "only who knows that nothing was sent"
        if handed_back:
            self.dispatches[call.claim.key].remove(call.claim.token)

    async def send(self, call: Call, operation: str) -> None:
        """Send it, if it may be sent; or ask first."""
        if call.ask is not None:
            await self.ask(call, call.ask)
        elif call.late:
            self.held.remove(call)
        elif "in progress" in operation and call.claim.tool == "mail":
            self.call(call, "in progress")
            self.held.remove(call)
            await self.report(call)
        else:
            self.call(call, "declined" if "declined" in operation else "ok")

    async def ask(self, call: Call, ask: LookUp) -> None:
        key = call.claim.idempotency_key
        if self.effects[key]:
            call.ask, call.answer = None, "ok"
            event("asked: found")
            return
        if ask.settles_in > timedelta():
            self.held.remove(call)
            event("asked: not found yet")
            return
        row = self.rows[call.claim.key]
        try:
            await self.ledger.send_after_lookup(call.request, call.claim)
        except (Fenced, RunNotRunning) as err:
            self.held.remove(call)
            running = self.states[call.request.run_key] == "running"
            assert type(err) is (Fenced if running else RunNotRunning)  # noqa: PT017
            event(f"asked: {type(err).__name__}")
            return
        assert self.states[call.request.run_key] == "running"
        assert row["claim_token"] == call.claim.token
        assert (row["status"], row["parked_at"]) == ("pending", None)
        assert row["sent_until"] <= datetime.now(UTC), "not found did not count yet"
        call.ask = None
        event("asked: never happened")

    def call(self, call: Call, wanted: str) -> None:
        """Reach the provider: a charge's key that it knows is answered as the first time."""
        key = call.claim.idempotency_key
        self.calls[key] += 1
        if key in self.at_work:
            if wanted != "in progress":
                self.at_work.remove(key)
                wanted = "ok"
        elif call.claim.tool == "charge":
            wanted = self.answers.setdefault(key, wanted)
            self.effects[key] = int(wanted == "ok")
        else:
            self.effects[key] += int(wanted != "declined")
            self.at_work |= {key} if wanted == "in progress" else set()
        call.answer = wanted

    async def report(self, call: Call) -> None:
        """Tell the ledger that the provider is still at work."""
        row = self.rows[call.claim.key]
        try:
            failures = await self.ledger.fail_try(call.claim, in_progress=True)
        except Fenced:
            assert row["status"] == "done" or row["claim_token"] != call.claim.token
            return
        assert failures == call.claim.failures
        self.reported[call.claim.key] += 1
        event("reported: in progress")

    async def fail(self, call: Call, *, over: bool) -> None:
        """End the attempt, whether its call was sent or not; its tool may go on."""
        row = self.rows[call.claim.key]
        call.failed = True
        if over:
            self.held.remove(call)
        try:
            failures = await self.ledger.fail_try(call.claim, over=over)
        except Fenced:
            assert row["status"] == "done" or row["claim_token"] != call.claim.token
            return
        assert row["failures"] <= failures == call.claim.failures + 1

    async def pass_the_deadline(self, keys: list[ActionKey]) -> None:
        """Let the time be over in which anybody who has these may send them."""
        await self.sql(
            "update agent_actions set lease_until = clock_timestamp(), "
            "sent_until = least(sent_until, clock_timestamp()) "
            "where key = any(%(keys)s) and status = 'pending' and dispatched_at is not null",
            keys=keys,
        )
        for call in self.held:
            call.late = call.late or (call.claim.key in keys and call.ask is None)

    async def stop(self, run: RunKey) -> None:
        stopped = await self.ledger.runs.stop(
            run, workflow_id=self.name, agent="support", reason="ada", attempt_at=NOON
        )
        self.stopped.add(run)
        assert stopped.state == ("ended" if self.states[run] == "ended" else "stopping")
        for request in map(self.request, range(len(PLAN))):
            if request.run_key == run and request.key in self.rows:
                await self.claim(request, attempt(since=self.later(), lease=HOUR))
                await self.check()

    async def settle(self, key: ActionKey) -> None:
        """Have a person look what became of it, once nobody can be at work on it."""
        await self.pass_the_deadline([key])
        row = self.rows.get(key)
        happened = row is not None and bool(self.effects[row["idempotency_key"]])
        outcome = Outcome.ok('"ada looked"') if happened else DID_NOT_HAPPEN
        try:
            settled = await self.ledger.settle(key, outcome, by="ada")
        except SettlementRefused:
            return
        assert row is not None
        told_before = row["decided_by"] is not None
        assert told_before or (row["status"], row["dispatched_at"] is None) == ("pending", False)
        assert {one.recorded for one in settled} == {outcome}
        event("settled")

    async def tell(self, run: RunKey, *, again: bool) -> None:
        """Commit the run's next turn with its notices; or its last turn once more."""
        threads = self.ledger.threads
        await threads.open(run, agent="support")
        found = [one.key for one in await threads.pending_notices(run)]
        expected = {
            key
            for key, row in self.rows.items()
            if row["run_key"] == run and row["settled_at"] and row["notified_version"] is None
        }
        assert set(found) == expected, "each once, by one commit"
        again = again and self.turns[run] > 0
        step = self.turns[run] - again
        turn = Turn(run, step, run, step, 0, [NewMessage("assistant", "{}")], notified=found)

        committed = await threads.commit(turn)

        assert (committed.earlier is not None) == again
        self.turns[run] += not again
        event(f"told of: {min(len(found), 2) * (not again)}")

    async def record(self, call: Call, *, odd: bool) -> None:
        row = self.rows[call.claim.key]
        if call.answer == "declined":
            outcome = Outcome.error(kind="ToolRefused", message="no", effect_possible=False)
        elif odd:
            outcome = Outcome.error(kind="UnrepresentableResult", message="", effect_possible=True)
        else:
            outcome = Outcome.ok(dumps({"record": next(RECORDS)}))
        try:
            stands = await self.ledger.record(call.claim, outcome)
        except Fenced:
            assert row["claim_token"] != call.claim.attempt.token
            assert row["status"] == "pending"
            event("record: Fenced")
            return
        if row["status"] == "done":
            assert stands.result == row["result"], "the first record stands"
        else:
            owner = row["claim_token"] == call.claim.attempt.token
            nobodys = row["parked_at"] is not None or row["lease_until"] <= datetime.now(UTC)
            known = nobodys and outcome.kind == "ok"
            assert owner or known, "the owner records, or who knows that it happened"

    async def park(self, call: Call) -> None:
        """Give up; its tool may yet come back with an answer."""
        try:
            await self.ledger.park(call.claim, "no answer yet", over=False)
        except Fenced:
            return

    async def sql(self, statement: LiteralString, **parameters: Any) -> list[dict[str, Any]]:
        async with self.pool.connection() as connection:
            cursor = await connection.execute(statement, parameters)
            return [] if cursor.description is None else await cursor.fetchall()

    async def check(self) -> None:
        rows = await self.sql(
            "select * from agent_actions where run_key = any(%(runs)s)",
            runs=[self.run("a"), self.run("b")],
        )
        others = await self.sql(
            "select 'run' as what, run_key as key, state as value from agent_runs "
            "where workflow_id = %(name)s union all "
            "select 'fact', domain_key, held_by from agent_domain_keys "
            "where domain_key = any(%(keys)s)",
            name=self.name,
            keys=[f"{self.name}-{fact}" for fact in ("charge", "mail", "ship")],
        )
        self.states = {one["key"]: one["value"] for one in others if one["what"] == "run"}
        self.check_the_world()
        self.check_rows(rows)
        holders = {one["key"]: one["value"] for one in others if one["what"] == "fact"}
        self.check_holders(rows, holders)

    async def take_every_exit(self) -> None:
        """Both runs end. After a sweep of the relay each row has an exit, and takes it."""
        for name in ("a", "b"):
            await self.ledger.runs.end(self.run(name), attempt_at=self.later())
        await self.check()
        await self.pass_the_deadline(list(self.rows))
        relay = self.ledger.relay
        _, left_over = await relay.clear_runs(limit=100, before=await relay.now())
        for run_key in left_over:
            event("left over")
            run = await self.ledger.runs.get(run_key)
            assert run is not None
            await relay.give_exits(run, can_look_up=False)
        await self.check()
        assert await relay.without_exit() == []
        for key, row in list(self.rows.items()):
            if row["parked_at"] is not None and row["duplicate_of"] is None:
                await self.settle(key)
        await self.check()
        pending = [row for row in self.rows.values() if row["status"] == "pending"]
        assert [row["key"] for row in pending if row["dispatched_at"] or row["parked_at"]] == []

    def check_the_world(self) -> None:
        for fact in ("charge", "mail", "ship"):
            total = sum(
                number
                for key, number in self.effects.items()
                if key.split("~")[0] == f"{self.name}-{fact}"
            )
            assert total <= 1, f"the business fact {fact} happened {total} times"
        for key, number in self.effects.items():
            assert number <= 1, f"{key} happened {number} times"
        for key, claims in self.dispatches.items():
            row = self.rows.get(key)
            if row is not None and row["effect"] != "idempotent":
                assert len(claims) <= 1 + self.reported[key], f"{key} must not be sent twice"
                assert row["effect"] == "lookup" or (
                    self.calls[row["idempotency_key"]] <= 1 + self.reported[key]
                )

    def check_rows(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            done = row["status"] == "done"
            complete = [row[name] is not None for name in ("outcome", "result", "done_at")]
            assert complete == [done] * 3, "done, or pending, and never half of each"
            assert not (done and row["parked_at"] is not None)
            before = self.rows.get(row["key"])
            if before is not None and before["status"] == "done":
                assert row | {"notified_version": before["notified_version"]} == before, (
                    "done is final"
                )
                assert before["notified_version"] in (None, row["notified_version"]), "told once"
            if before is not None and before["parked_at"] is not None:
                assert done or row["parked_at"] == before["parked_at"], "unknown, until it is known"
                assert done == (row["settled_at"] is not None), "known, and to be told"
            if row["duplicate_of"] is not None and row["parked_at"] is not None:
                original = next(one for one in rows if one["key"] == row["duplicate_of"])
                assert original["parked_at"] is not None, "known with what it repeats"
            if done and row["effect_possible"] and row["duplicate_of"] is None:
                assert self.effects[row["idempotency_key"]] == 1
        keys = [row["idempotency_key"] for row in rows if row["idempotency_key"] is not None]
        assert len(keys) == len(set(keys)), "no two actions are sent under one key"
        assert set(self.calls) <= set(keys), "what was sent is in the ledger"
        assert set(self.rows) <= {row["key"] for row in rows}, "no row disappears"
        self.rows = {row["key"]: row for row in rows}

    def check_holders(
        self, rows: list[dict[str, Any]], holders: dict[str, ActionKey | None]
    ) -> None:
        for domain_key, holder in holders.items():
            unreleased = {
                row["key"]
                for row in rows
                if row["domain_key"] == domain_key
                and row["idempotency_key"] is not None
                and row["effect_possible"] is not False
            }
            assert unreleased == ({holder} if holder else set())


@examples(50)
@given(plan=plans)
def test_in_any_order_of_claims_crashes_and_records_the_promises_hold(
    open_pool: Pool, run_the_loop: RunTheLoop, plan: Plan
) -> None:
    async def play() -> None:
        world = World(ActionLedger(open_pool), open_pool, f"run-{next(EXAMPLES)}")
        await world.open()
        for operation, index in plan:
            if await world.step(operation, index):
                await world.check()
        await world.take_every_exit()

    run_the_loop(play())


texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=8)
trees = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.sampled_from(["\ud83d", "\x00", 2.561422288066971e16, -0.0, 5e-324, 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)


@examples(60)
@given(args=trees, result=trees)
def test_arguments_and_results_come_back_exactly(
    open_pool: Pool, run_the_loop: RunTheLoop, args: Json, result: Json
) -> None:
    async def play() -> None:
        ledger = ActionLedger(open_pool)
        world = World(ledger, open_pool, f"run-{next(EXAMPLES)}")
        await world.open()
        request = ActionRequest(
            run_key=world.run("a"),
            position=Position("0.0"),
            tool="echo",
            args=dumps({"value": args}),
            effect=Effect.IDEMPOTENT,
            requested_digest=digest(args),
            effective_digest=digest(args),
        )
        await ledger.claim(request, attempt(lease=HOUR))

        taken = await ledger.claim(request, attempt(1, lease=HOUR))
        assert isinstance(taken, Dispatched)
        recorded = await ledger.record(taken, Outcome.ok(dumps(result)))
        stored = await ledger.get(request.key)

        assert taken.args == request.args
        assert repr(parse(taken.args)) == repr({"value": args})
        assert stored is not None
        assert stored.recorded == recorded == Outcome.ok(dumps(result))
        assert repr(parse(recorded.result)) == repr(result)
        assert canonical(recorded.value) == canonical(result)

    run_the_loop(play())


@pytest.mark.parametrize(
    "text",
    ['{"b" : 1,\n "a":2.50e1}', '{"a":1,"a":2}', '"\\u0000\\ud83d"', json.dumps("9" * 100_000)],
    ids=["white space", "key twice", "nul and surrogate", "long"],
)
async def test_json_text_is_kept_to_the_byte(ledger: ActionLedger, text: str) -> None:
    await ledger.runs.open(
        run_key=RunKey("r/1"), workflow_id="r", agent="a", input_digest="i", attempt_at=NOON
    )
    request = ActionRequest(
        run_key=RunKey("r/1"),
        position=Position("0.0"),
        tool="echo",
        args=text,
        effect=Effect.IDEMPOTENT,
        requested_digest="d",
        effective_digest="d",
    )
    claim = await ledger.claim(request, attempt(lease=HOUR))
    assert isinstance(claim, Dispatched)

    await ledger.record(claim, Outcome.ok(text))

    stored = await ledger.get(request.key)
    assert stored is not None
    assert (stored.args, stored.result) == (text, text)

"""Any order of claims, calls, crashes and records keeps the promises, on a real Postgres.

Attempts of seven actions in two runs share domain keys. A worker may die at any moment, an
attempt that everybody takes for dead may live on, and an answer of Postgres may be lost.
Outside stands a provider that answers a key that it knows as it did the first time, except
for tools that are at most once: there every call counts.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final, LiteralString, TypeAlias
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from commitline.canonical import Json, canonical, digest, dumps, parse
from commitline.errors import Fenced, IdempotencyKeyConflict, RunNotRunning
from commitline.identity import ActionKey, Position, RunKey
from commitline.ledger import (
    ActionLedger,
    ActionRequest,
    AlreadyDone,
    Attempt,
    Busy,
    Dispatched,
    Effect,
    Outcome,
    Parked,
    ledger_pool,
)
from commitline.ledger.pool import Pool

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
EXAMPLES: Final = count()
RECORDS: Final = count()
RUN_THE_LOOP: TypeAlias = Callable[[Awaitable[None]], None]

PLAN: Final[tuple[tuple[str, str, str, str, Effect, str | None, timedelta | None], ...]] = (
    ("a", "0.0", "charge", '{"cents":4900}', Effect.IDEMPOTENT, "charge", None),
    ("a", "0.1", "charge", '{"cents":4900}', Effect.IDEMPOTENT, "charge", None),
    ("b", "0.0", "charge", '{"cents":4900}', Effect.IDEMPOTENT, "charge", None),
    ("b", "0.1", "charge", '{"cents":5900}', Effect.IDEMPOTENT, "charge", None),
    ("a", "1.0", "mail", '{"to":"a@x"}', Effect.AT_MOST_ONCE, "mail", None),
    ("b", "1.0", "mail", '{"to":"a@x"}', Effect.AT_MOST_ONCE, "mail", None),
    ("b", "2.0", "mail", '{"to":"a@x"}', Effect.AT_MOST_ONCE, None, None),
)
"""Run, position, tool, arguments, effect, fact, key life."""

operations = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *["claim"] * 4,
                *["call", "record"] * 3,
                "call, declined",
                "record an odd result",
                *["record, not answered"] * 2,
                "crash",
                "park",
                "hand back",
                "claim again",
                "claim, by an old attempt",
                "expire the lease",
                "end the run",
            ]
        ),
        st.integers(0, len(PLAN) - 1),
    ),
    min_size=10,
    max_size=40,
)


@dataclass
class Call:
    """A claim that some worker holds, and how far it has come."""

    claim: Dispatched
    request: ActionRequest
    answer: str | None = None


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
    rows: dict[ActionKey, Mapping[str, Any]] = field(default_factory=dict)
    refused: set[ActionKey] = field(default_factory=set)

    async def open(self) -> None:
        for run in ("a", "b"):
            await self.ledger.open_run(
                run_key=self.run(run),
                workflow_id=self.name,
                agent="support",
                input_digest="input",
                attempt_at=NOON,
            )

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
        )

    def later(self) -> datetime:
        self.now += 1
        return NOON + timedelta(seconds=self.now)

    async def step(self, operation: str, index: int) -> None:
        """Do it to the action of this index, or with one of the claims that are held."""
        request = self.request(index)
        match operation:
            case "claim":
                attempt = Attempt(self.later(), uuid4(), timedelta(hours=1))
                await self.claim(request, attempt)
            case "claim, by an old attempt":
                await self.claim(request, Attempt(NOON, uuid4(), timedelta(hours=1)), old=True)
            case "expire the lease":
                await self.sql(
                    "update agent_actions set lease_until = clock_timestamp() "
                    "where key = %(key)s and status = 'pending' and dispatched_at is not null",
                    key=request.key,
                )
            case "end the run":
                await self.ledger.end_run(request.run_key, attempt_at=self.later())
            case _ if self.held:
                await self.go_on(operation, self.held[index % len(self.held)])
            case _:
                return
        event(operation)

    async def go_on(self, operation: str, call: Call) -> None:
        """Do it with a claim, if it has come so far."""
        match operation:
            case "claim again" if call.answer is None:
                await self.claim(call.request, call.claim.attempt, lost_answer=call)
            case "call" | "call, declined" if call.answer is None:
                self.call(call, "declined" if "," in operation else "ok")
            case "record, not answered" if call.answer:
                await self.record(call, odd=False)
            case "record" | "record an odd result" if call.answer:
                self.held.remove(call)
                await self.record(call, odd="odd" in operation)
            case "park" if call.answer == "ok":
                await self.park(call)
            case "hand back" if call.answer is None:
                self.held.remove(call)
                await self.hand_back(call)
            case "crash":
                self.held.remove(call)

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
            assert old or lost_answer, "no attempt and no end is later than a new claim"
            event(f"claim: {type(err).__name__}")
            return
        event(f"claim: {type(claim).__name__}")
        assert request.key not in self.refused, "what was refused stays refused"
        match claim:
            case Dispatched():
                self.check_dispatched(claim, attempt, before)
                if lost_answer is None:
                    self.held.append(Call(claim, request))
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
        row = before if claim.settles_for is None else self.rows[claim.key]
        if row is None:
            return
        assert row["status"] == "pending", "what is done is not sent"
        assert row["parked_at"] is None, "what is parked is not sent"
        if row["dispatched_at"] is None or row["claim_token"] == attempt.token:
            return
        assert row["effect"] == "idempotent", "nothing else is sent again"
        if row["claimed_by"] == (claim.settles_for or claim.key):
            assert row["attempt_at"] < attempt.started_at, "only a later attempt takes over"
        else:
            assert row["lease_until"] <= datetime.now(UTC), "nobody takes over from the living"

    async def hand_back(self, call: Call) -> None:
        row = self.rows[call.claim.key]
        its_own = call.claim.settles_for is None and row["claim_token"] == call.claim.attempt.token

        handed_back = await self.ledger.hand_back(call.request, call.claim.attempt)

        first = row["status"] == "pending" and row["tries"] == 1
        assert handed_back == (its_own and first), "only who knows that nothing was sent"

    def call(self, call: Call, wanted: str) -> None:
        """Send it: a key that the provider knows is answered as the first time."""
        key = call.claim.idempotency_key
        self.calls[key] += 1
        if call.claim.tool == "charge":
            call.answer = self.answers.setdefault(key, wanted)
            self.effects[key] = int(call.answer == "ok")
        else:
            call.answer = self.answers[key] = wanted
            self.effects[key] += int(wanted == "ok")

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
            event("record: Fenced")
            return
        if row["status"] == "done":
            assert stands.result == row["result"], "the first record stands"
        else:
            assert row["claim_token"] == call.claim.attempt.token, "only the owner records"

    async def park(self, call: Call) -> None:
        self.held.remove(call)
        try:
            await self.ledger.park(call.claim, "the answer was lost")
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
        holders = await self.sql(
            "select domain_key, held_by from agent_domain_keys where domain_key = any(%(keys)s)",
            keys=[f"{self.name}-charge", f"{self.name}-mail"],
        )
        self.check_the_world()
        self.check_rows(rows)
        self.check_holders(rows, {held["domain_key"]: held["held_by"] for held in holders})

    def check_the_world(self) -> None:
        for fact in ("charge", "mail"):
            total = sum(
                number
                for key, number in self.effects.items()
                if key.split("~")[0] == f"{self.name}-{fact}"
            )
            assert total <= 1, f"the business fact {fact} happened {total} times"
        for key, number in self.calls.items():
            if not key.startswith(f"{self.name}-charge"):
                assert number == 1, f"{key} must not be sent twice"

    def check_rows(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            done = row["status"] == "done"
            complete = [row[name] is not None for name in ("outcome", "result", "done_at")]
            assert complete == [done] * 3, "done, or pending, and never half of each"
            assert not (done and row["parked_at"] is not None)
            before = self.rows.get(row["key"])
            if before is not None and before["status"] == "done":
                assert row == before, "a done row never changes"
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


@pytest.fixture
def run_the_loop() -> Iterator[RUN_THE_LOOP]:
    """Run coroutines on one event loop, from example to example."""
    with asyncio.Runner() as runner:

        async def wait(work: Awaitable[None]) -> None:
            await work

        yield lambda work: runner.run(wait(work))


@pytest.fixture
def open_pool(run_the_loop: RUN_THE_LOOP, ledger_database_url: str) -> Iterator[Pool]:
    """An open pool on that loop."""
    pool: list[Pool] = []

    async def enter() -> None:
        pool.append(ledger_pool(ledger_database_url, size=3))
        await pool[0].open()

    run_the_loop(enter())
    yield pool[0]
    run_the_loop(pool[0].close())


def examples(number: int) -> settings:
    """The same examples every time: a red build stays red until it is mended."""
    return settings(
        max_examples=number,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],  # shrinking takes minutes on a real database
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


@examples(100)
@given(plan=operations)
def test_in_any_order_of_claims_crashes_and_records_the_promises_hold(
    open_pool: Pool, run_the_loop: RUN_THE_LOOP, plan: list[tuple[str, int]]
) -> None:
    async def play() -> None:
        world = World(ActionLedger(open_pool), open_pool, f"run-{next(EXAMPLES)}")
        await world.open()
        for operation, index in plan:
            await world.step(operation, index)
            await world.check()

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


@examples(100)
@given(args=trees, result=trees)
def test_arguments_and_results_come_back_exactly(
    open_pool: Pool, run_the_loop: RUN_THE_LOOP, args: Json, result: Json
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
        await ledger.claim(request, Attempt(NOON, uuid4(), timedelta(hours=1)))

        taken = await ledger.claim(
            request, Attempt(NOON + timedelta(seconds=1), uuid4(), timedelta(hours=1))
        )
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
    await ledger.open_run(
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
    claim = await ledger.claim(request, Attempt(NOON, uuid4(), timedelta(hours=1)))
    assert isinstance(claim, Dispatched)

    await ledger.record(claim, Outcome.ok(text))

    stored = await ledger.get(request.key)
    assert stored is not None
    assert (stored.args, stored.result) == (text, text)

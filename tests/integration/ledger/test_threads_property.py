"""Any order of what three runs do to a conversation keeps its promises, on a real Postgres.

First one step after the other, against a model that says what each must answer. Then many at
once, on a database that resolves no deadlock (see conftest): what waits in a circle does not
come back, and fails.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count
from random import Random
from typing import Any, Final, LiteralString

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from commitline.canonical import digest, dumps, parse
from commitline.errors import (
    LedgerError,
    LedgerUnavailable,
    RequestConflict,
    ResetRefused,
    StaleThread,
    ThreadDeleted,
)
from commitline.identity import ActionKey, Position, RunKey, position
from commitline.ledger import (
    ActionLedger,
    ActionRequest,
    Dispatched,
    Effect,
    LookUp,
    NewMessage,
    Outcome,
    ThreadLedger,
    Turn,
)
from commitline.ledger.pool import Pool
from commitline.tests.builders import NOON, attempt
from commitline.tests.integration.properties import RunTheLoop, examples

HOUR: Final = timedelta(hours=1)
EXAMPLES: Final = count()
TEXTS: Final = count()
NAMES: Final = ("a", "b", "c")

OPERATIONS: Final = [
    *["read"] * 6,
    *["commit"] * 10,
    *["commit, and answer"] * 6,
    *["commit, unread"] * 2,
    *["commit again"] * 3,
    *["receive"] * 5,
    *["receive again"] * 3,
    "receive another text",
    *["fork"] * 4,
    *["fork again"] * 2,
    "fork nothing",
    "give up",
    "open",
]


def plan(seed: int) -> list[tuple[str, int, int]]:
    """Operations, who does them, and to what; one conversation in four is deleted."""
    chance = Random(seed)
    found = [
        (chance.choice(OPERATIONS), chance.randrange(3), chance.randrange(8))
        for _ in range(chance.randint(15, 45))
    ]
    if chance.random() < 0.25:
        found.insert(chance.randrange(len(found)), ("delete", 0, 0))
    return found


plans = st.integers(0, 2**32).map(plan)


@dataclass
class Said:
    """A message as the model has it."""

    version: int
    role: str
    text: str
    run: str
    step: int
    epoch: int
    request_id: str | None = None


@dataclass
class Writer:
    """A run: what it has read, and how often it was forked."""

    seen: int = 0
    epoch: int = 0
    fork_step: int | None = None
    stopped: bool = False
    turns: list[Turn] = field(default_factory=list)
    """All that it has tried to commit."""


@dataclass
class World:
    """The conversation as it must be."""

    ledger: ActionLedger
    threads: ThreadLedger
    pool: Pool
    name: str
    version: int = 0
    written_by: str | None = None
    deleted: bool = False
    messages: list[Said] = field(default_factory=list)
    requests: dict[str, tuple[str, str | None, int]] = field(default_factory=dict)
    """Text, reply, and the version that it came with."""
    writers: dict[str, Writer] = field(default_factory=lambda: {name: Writer() for name in NAMES})

    def run(self, name: str) -> RunKey:
        return RunKey(f"{self.name}/{name}")

    async def open(self) -> None:
        await self.threads.open(self.name, agent="support")
        for name in NAMES:
            await self.ledger.runs.open(
                run_key=self.run(name),
                workflow_id=self.name,
                agent="support",
                input_digest="input",
                attempt_at=NOON,
                thread_id=self.name,
            )

    async def step(self, operation: str, who: int, what: int) -> None:
        name = NAMES[who]
        writer = self.writers[name]
        event(operation)
        match operation:
            case "open":
                await self.expect(
                    self.threads.open(self.name, agent="other"),
                    ThreadDeleted if self.deleted else None,
                )
            case "read":
                await self.read(name, writer)
            case "commit" | "commit, and answer" | "commit, unread":
                writer.seen = writer.seen if "unread" in operation else self.version
                answers = f"r{what % 3}" if "answer" in operation else None
                await self.commit(name, writer, answers)
            case "commit again" if writer.turns:
                earlier = writer.turns[what % len(writer.turns)]
                if earlier.version != self.version:
                    await self.commit_turn(name, replace(earlier, messages=self.said(None)))
            case "receive" | "receive again" | "receive another text":
                await self.receive(f"r{what % 3}", other="another" in operation)
            case "fork" | "fork again" | "fork nothing":
                await self.fork(name, writer, operation, what)
            case "give up":
                other = NAMES[(who + 1) % 3]
                giving_up = self.threads.close_turn(
                    self.run(other),
                    [],
                    by=self.run(name),
                    thread_id=self.name,
                    version=self.version,
                )
                await self.expect(giving_up, ThreadDeleted if self.deleted else None)
                self.writers[other].stopped = self.writers[other].stopped or not self.deleted
            case "delete":
                await self.threads.delete(self.name)
                self.deleted = True
                self.messages, self.requests = [], {}

    async def expect(self, work: Awaitable[Any], error: type[Exception] | None) -> Any:
        """Return what it answers, or None where it must be, and was, refused."""
        if error is None:
            return await work
        with pytest.raises(error):
            await work
        event(f"refused: {error.__name__}")
        return None

    async def read(self, name: str, writer: Writer) -> None:
        found = await self.expect(
            self.threads.read(self.run(name), self.name), ThreadDeleted if self.deleted else None
        )
        if found is not None:
            assert found.thread.version == self.version
            assert found.run.epoch == writer.epoch
            writer.seen = found.thread.version

    def stands(self, name: str, step: int) -> Said | None:
        return next(
            (
                one
                for one in self.messages
                if (one.run, one.step, one.role) == (name, step, "assistant")
            ),
            None,
        )

    def said(self, request_id: str | None) -> list[NewMessage]:
        number = next(TEXTS)
        return [
            NewMessage("user", dumps(f"{number}?"), request_id),
            NewMessage("tool", dumps(f"{number}.")),
            NewMessage("assistant", dumps(f"{number}!")),
        ]

    async def commit(self, name: str, writer: Writer, answers: str | None) -> None:
        steps = [one.step for one in self.messages if one.run == name]
        asked = answers if answers in self.requests else None
        new = asked is not None and all(one.request_id != asked for one in self.messages)
        turn = Turn(
            self.name,
            writer.seen,
            self.run(name),
            max(steps, default=-1) + 1,
            writer.epoch,
            self.said(asked if new else None),
            input_tokens=1,
            replies_to=answers,
            reply=None if answers is None else dumps(f"reply {next(TEXTS)}"),
        )
        writer.turns.append(turn)
        await self.commit_turn(name, turn)

    async def commit_turn(self, name: str, turn: Turn) -> None:
        stands = self.stands(name, turn.step)
        error: type[Exception] | None = None
        if self.deleted:
            error = ThreadDeleted
        elif turn.version != self.version and stands is None:
            error = StaleThread
        committed = await self.expect(self.threads.commit(turn), error)
        if committed is None:
            return
        if turn.version != self.version:
            assert stands is not None
            assert committed.earlier is not None
            assert (committed.version, committed.earlier.message) == (stands.version, stands.text)
            event("committed before")
            return
        assert committed.earlier is None
        assert committed.version == self.version + 1
        self.version, self.written_by = committed.version, name
        self.messages += [
            Said(self.version, one.role, one.message, name, turn.step, turn.epoch, one.request_id)
            for one in turn.messages
        ]
        if turn.replies_to is not None and turn.replies_to in self.requests:
            text, reply, _ = self.requests[turn.replies_to]
            if reply is None:
                assert turn.reply is not None
                self.requests[turn.replies_to] = (text, turn.reply, self.version)

    async def receive(self, request_id: str, *, other: bool) -> None:
        there = self.requests.get(request_id)
        text = dumps(f"another {request_id}" if other else request_id)
        error: type[Exception] | None = None
        if self.deleted:
            error = ThreadDeleted
        elif there is not None and there[0] != text:
            error = RequestConflict
        received = await self.expect(
            self.threads.receive(self.name, request_id, text, agent=None), error
        )
        if received is not None:
            if there is None:
                self.requests[request_id] = (text, None, 0)
            assert (received.message, received.reply) == self.requests[request_id][:2]

    def refusal_of_fork(self, name: str, writer: Writer, step: int) -> type[Exception] | None:
        if self.deleted:
            return ThreadDeleted
        if self.written_by not in (None, name):
            return StaleThread
        if writer.stopped:
            return ResetRefused
        stands = self.stands(name, step)
        if stands is None:
            return None if writer.fork_step == step else ResetRefused
        later = [one.run for one in self.messages if one.version > stands.version]
        return None if set(later) <= {name} else StaleThread

    async def fork(self, name: str, writer: Writer, operation: str, what: int) -> None:
        steps = [one.step for one in self.messages if one.run == name]
        last = max(steps, default=-1)
        step = last + 2 if "nothing" in operation else max(last - what % 3, 0)
        if "again" in operation and writer.fork_step is not None:
            step = writer.fork_step
        stands = self.stands(name, step)
        error = self.refusal_of_fork(name, writer, step)
        epoch = await self.expect(self.threads.fork(self.run(name), step), error)
        if epoch is None:
            return
        if stands is None:
            assert epoch == writer.epoch
            event("forked before")
            return
        writer.epoch += 1
        assert epoch == writer.epoch
        writer.fork_step = step
        self.version += 1
        self.messages = [one for one in self.messages if one.version < stands.version]
        for request_id, (text, _, version) in list(self.requests.items()):
            if version >= stands.version:
                self.requests[request_id] = (text, None, 0)
        event("forked")

    async def check(self) -> None:
        thread = await self.threads.get(self.name)
        assert thread is not None
        assert (thread.version, thread.deleted_at is not None) == (self.version, self.deleted)
        rows = await self.sql(
            "select * from agent_messages where thread_id = %(thread)s order by version, ordinal"
        )
        standing = [row for row in rows if row["superseded_at"] is None]
        assert [
            Said(
                row["version"],
                row["role"],
                row["message"],
                row["run_key"].rpartition("/")[2],
                row["step"],
                row["epoch"],
                row["request_id"],
            )
            for row in standing
        ] == self.messages
        requests = await self.sql("select * from agent_requests where thread_id = %(thread)s")
        assert {
            row["request_id"]: (row["message"], row["reply"], row["replied_version"] or 0)
            for row in requests
        } == self.requests
        if not self.deleted:
            check_versions(rows, self.version, sum(one.epoch for one in self.writers.values()))

    async def sql(self, statement: LiteralString) -> list[dict[str, Any]]:
        async with self.pool.connection() as connection:
            cursor = await connection.execute(statement, {"thread": self.name})
            return await cursor.fetchall()


def check_versions(rows: list[dict[str, Any]], version: int, forks: int) -> None:
    """Each version is one commit, of one run's turn, or a fork; a turn has one completion."""
    by_version: dict[int, set[tuple[str, int, int]]] = {}
    for row in rows:
        by_version.setdefault(row["version"], set()).add(
            (row["run_key"], row["step"], row["epoch"])
        )
    assert all(len(found) == 1 for found in by_version.values()), "of one commit"
    holes = set(range(1, version + 1)) - set(by_version)
    assert len(holes) == forks, "every version is a commit or a fork"
    assert max(by_version, default=0) <= version
    completions = Counter(
        (row["run_key"], row["step"])
        for row in rows
        if row["role"] == "assistant" and row["superseded_at"] is None
    )
    assert max(completions.values(), default=1) == 1, "one completion per turn"
    ordinals: dict[int, list[int]] = {}
    for row in rows:
        ordinals.setdefault(row["version"], []).append(row["ordinal"])
    assert all(found == list(range(len(found))) for found in ordinals.values())


@examples(25)
@given(plan=plans)
def test_in_any_order_of_commits_requests_and_forks_the_promises_hold(
    open_pool: Pool, run_the_loop: RunTheLoop, plan: list[tuple[str, int, int]]
) -> None:
    async def play() -> None:
        ledger = ActionLedger(open_pool)
        world = World(ledger, ledger.threads, open_pool, f"thread-{next(EXAMPLES)}")
        await world.open()
        for operation, who, what in plan:
            await world.step(operation, who, what)
            await world.check()

    run_the_loop(play())


# --- many at once ------------------------------------------------------------------------

STEPS: Final = (8, 9, 10, 11)
"""Of the actions: "10.0" sorts before "9.0"."""
SAFE: Final = ("x", "y", "z")
"""Runs that nobody gives up."""
CONCURRENT: Final = [
    *["commit"] * 8,
    *["receive"] * 3,
    *["claim"] * 8,
    *["claim a fact"] * 6,
    *["record"] * 5,
    *["decline"] * 3,
    *["park"] * 3,
    *["hand back"] * 3,
    *["settle"] * 5,
    *["fork"] * 3,
    *["give up"] * 2,
    "give up one's own",
    "end",
    "put",
]


@dataclass
class Crowd:
    """Workers that do all of it to one conversation at the same time."""

    ledger: ActionLedger
    threads: ThreadLedger
    name: str
    chance: Random
    held: list[tuple[Dispatched, ActionRequest]] = field(default_factory=list)
    forks: set[tuple[str, int]] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)
    clock: Iterator[int] = field(default_factory=count)
    orders: list[list[tuple[int, int]]] = field(default_factory=list)

    def run(self, name: str) -> RunKey:
        return RunKey(f"{self.name}/{name}")

    def now(self) -> datetime:
        return NOON + timedelta(seconds=next(self.clock))

    async def open_run(self, name: str) -> None:
        await self.ledger.runs.open(
            run_key=self.run(name),
            workflow_id=self.name,
            agent="support",
            input_digest="input",
            attempt_at=self.now(),
            thread_id=self.name,
        )

    async def worker(self, steps: int) -> None:
        for _ in range(steps):
            operation = self.chance.choice(CONCURRENT)
            name = self.chance.choice([*NAMES, *SAFE])
            try:
                await self.one(operation, name)
            except LedgerUnavailable:
                raise
            except LedgerError as err:
                self.done[f"{operation}: {type(err).__name__}"] += 1
            else:
                self.done[operation] += 1

    async def one(self, operation: str, name: str) -> None:
        chance = self.chance
        run = self.run(name)
        match operation:
            case "commit":
                await self.commit(run)
            case "receive":
                text = f"r{chance.randrange(4)}"
                await self.threads.receive(self.name, text, dumps(text), agent="support")
            case "claim" | "claim a fact":
                await self.claim(run, fact=operation == "claim a fact")
            case "record" | "decline" | "park" | "hand back" if self.held:
                await self.end(operation, *self.held.pop(chance.randrange(len(self.held))))
            case "settle":
                await self.settle()
            case "fork":
                await self.fork()
            case "give up" | "give up one's own":
                given_up = run if "own" in operation else self.run(chance.choice(NAMES))
                step = chance.choice(STEPS)
                positions = [position(step, index, epoch=0) for index in range(12)]
                with suppress(StaleThread):
                    found = await self.threads.read(run, self.name)
                    await self.threads.close_turn(
                        given_up,
                        positions,
                        by=run,
                        thread_id=self.name,
                        version=found.thread.version,
                    )
            case "end":
                await self.ledger.runs.end(run, attempt_at=self.now())
                await self.open_run(name)
            case "put":
                await self.ledger.put_value(ActionKey(f"{run}:1"), self.name, '"large"')

    async def commit(self, run: RunKey) -> None:
        found = await self.threads.read(run, self.name)
        self.orders.append([(one.version, one.ordinal) for one in found.messages])
        mine = [one.step for one in found.messages if one.run_key == run]
        told = [one.key for one in await self.threads.pending_notices(self.name)]
        step = max(mine, default=STEPS[0] - 1) + 1
        request = f"r{self.chance.randrange(4)}"
        new = all(one.request_id != request for one in found.messages)
        await self.threads.commit(
            Turn(
                self.name,
                found.thread.version,
                run,
                step,
                found.run.epoch,
                [
                    NewMessage("user", '"?"', request if new else None),
                    NewMessage("assistant", dumps(f"{next(TEXTS)}!")),
                ],
                input_tokens=1,
                notified=told,
                replies_to=request,
                reply=dumps(f"{next(TEXTS)}"),
            )
        )

    async def fork(self) -> None:
        """Fork whoever has written last, at one of its latest turns."""
        messages = await self.threads.messages(self.name)
        if messages:
            run = messages[-1].run_key
            step = max(messages[-1].step - self.chance.randrange(2), 0)
            self.forks.add((run, await self.threads.fork(run, step)))

    async def claim(self, run: RunKey, *, fact: bool) -> None:
        chance = self.chance
        found = await self.ledger.runs.get(run)
        assert found is not None
        at = position(chance.choice(STEPS), chance.randrange(12), epoch=found.epoch)
        # One position is always the same call.
        number = chance.randrange(2) if fact else 7
        tool = "ship" if fact else "mail"
        args = dumps({"number": number})
        request = ActionRequest(
            run_key=run,
            position=Position(at),
            tool=tool,
            args=args,
            effect=Effect.AT_MOST_ONCE if chance.random() < 0.6 else Effect.LOOKUP,
            requested_digest="the same",
            effective_digest=digest(parse(args)),
            domain_key=f"{self.name}-{number}" if fact else None,
            thread_id=self.name,
            can_look_up=True,
        )
        claim = await self.ledger.claim(request, attempt(since=self.now(), lease=HOUR))
        if isinstance(claim, Dispatched):
            self.held.append((claim, request))
        elif isinstance(claim, LookUp):
            self.held.append((claim.call, request))

    async def end(self, operation: str, claim: Dispatched, request: ActionRequest) -> None:
        match operation:
            case "record":
                await self.ledger.record(claim, Outcome.ok('"done"'))
            case "decline":
                declined = Outcome.error(kind="No", message="no", effect_possible=False)
                await self.ledger.record(claim, declined)
            case "park":
                await self.ledger.park(claim, "no answer", over=True)
                if self.chance.random() < 0.3:
                    self.held.append((claim, request))  # it comes late
            case "hand back":
                await self.ledger.hand_back(claim, claim.attempt)

    async def settle(self) -> None:
        parked = [
            one
            for one in await self.ledger.list(only_parked=True)
            if one.thread_id == self.name and one.duplicate_of is None
        ]
        if parked:
            key = self.chance.choice(parked).key
            never = Outcome.error(kind="Never", message="", effect_possible=False)
            outcome = self.chance.choice([never, Outcome.ok('"ada looked"')])
            for _ in range(2):  # also once more: the answer was lost
                await self.ledger.settle(key, outcome, by="ada")


@pytest.mark.parametrize("seed", range(6))
def test_what_is_done_at_once_keeps_the_promises_and_nobody_waits_for_ever(
    open_pool: Pool, run_the_loop: RunTheLoop, seed: int
) -> None:
    async def play() -> None:
        ledger = ActionLedger(open_pool, statement_seconds=20)
        crowd = Crowd(ledger, ledger.threads, f"crowd-{next(EXAMPLES)}", Random(seed))
        await crowd.threads.open(crowd.name, agent="support")
        for name in (*NAMES, *SAFE):
            await crowd.open_run(name)
        await asyncio.gather(*(crowd.worker(60) for _ in range(10)))
        for _ in range(50):  # in a crowd all forks may come too late; alone one does not
            if crowd.forks:
                break
            await crowd.worker(20)
        await check_crowd(crowd, open_pool)
        await asyncio.gather(*(crowd.worker(5) for _ in range(8)), crowd.threads.delete(crowd.name))
        await check_deleted(crowd, open_pool)

    run_the_loop(play())


async def rows_of(pool: Pool, statement: LiteralString, thread: str) -> list[dict[str, Any]]:
    async with pool.connection() as connection:
        cursor = await connection.execute(statement, {"thread": thread})
        return await cursor.fetchall()


async def check_crowd(crowd: Crowd, pool: Pool) -> None:
    assert crowd.done["commit"] > 5
    assert crowd.forks, "some forks came through"
    thread = await crowd.threads.get(crowd.name)
    assert thread is not None
    rows = await rows_of(
        pool,
        "select * from agent_messages where thread_id = %(thread)s order by version, ordinal",
        crowd.name,
    )
    check_versions(rows, thread.version, len(crowd.forks))
    everything = [(row["version"], row["ordinal"]) for row in rows]
    for order in crowd.orders:
        assert order == sorted(order), "one order"
        assert set(order) <= set(everything), "what was read is there"
    runs = await rows_of(pool, "select * from agent_runs where thread_id = %(thread)s", crowd.name)
    turns = Counter(row["run_key"] for row in rows if row["role"] == "assistant")
    assert {row["run_key"]: row["input_tokens"] for row in runs if row["input_tokens"]} == turns
    standing = {row["version"] for row in rows if row["superseded_at"] is None}
    requests = await rows_of(
        pool, "select * from agent_requests where thread_id = %(thread)s", crowd.name
    )
    assert {row["replied_version"] for row in requests} <= standing | {None}
    actions = await rows_of(
        pool, "select * from agent_actions where thread_id = %(thread)s", crowd.name
    )
    for row in actions:
        assert row["notified_version"] is None or row["notified_version"] in standing
    holders = Counter(
        row["domain_key"]
        for row in actions
        if row["domain_key"] is not None
        and row["idempotency_key"] is not None
        and row["effect_possible"] is not False
    )
    assert max(holders.values(), default=1) == 1, "a business fact has one holder"


async def check_deleted(crowd: Crowd, pool: Pool) -> None:
    for statement in (
        "select 1 from agent_messages where thread_id = %(thread)s",
        "select 1 from agent_requests where thread_id = %(thread)s",
        "select 1 from agent_values where thread_id = %(thread)s",
    ):
        assert await rows_of(pool, statement, crowd.name) == []

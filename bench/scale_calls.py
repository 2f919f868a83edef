"""What bench/scale.py does with a full ledger: stories of runs, and the lists for people.

A story calls the ledger's methods as workers, relay and operators do, with rows of its own: the
number tells them apart. All but the lists are on the path of some run: 2 ms for each query.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

from commitline import Effect, tool
from commitline.activities.runs.relay_batch import AT_ONCE
from commitline.canonical import digest, dumps
from commitline.identity import ActionKey, Position, RunKey, action_key, sub_run_key
from commitline.ledger import (
    ActionLedger,
    ActionRequest,
    ApprovalRequest,
    Attempt,
    Dispatched,
    NewMessage,
    Outcome,
    QuestionRequest,
    Turn,
)
from commitline.ledger.outbox_rules import Intent
from commitline.ledger.pool import Pool
from commitline.ledger.statements import fetch_row
from commitline.ledger.waiting import WaitingLedger

SERVED: Final = ("mail", "charge", "refund", "ship", "bill", "call", "book", "print")
NAMESPACE: Final = "default"
LEASE: Final = timedelta(minutes=15)
OVER: Final = timedelta(seconds=-1)
OK: Final = Outcome.ok(dumps({"id": "ch_1"}))
DECLINED: Final = Outcome.error(kind="Declined", message="no funds", effect_possible=False)
SAID: Final = dumps({"text": "I have charged the order and sent the mail."})


@tool(name="mail", effect=Effect.LOOKUP, lookup=lambda _: None, idempotency_key="intent-{n}")
def _mail(n: str) -> str:
    return n


@tool(name="ship", effect=Effect.AT_MOST_ONCE)
def _ship(n: str) -> str:
    return n


@dataclass(frozen=True)
class Ledger:
    """A ledger full of rows, and the moment at which the stories began."""

    ledger: ActionLedger
    pool: Pool
    stamp: str
    """Part of every key: no story meets the rows of another bench."""
    standing: Mapping[str, Any]
    """The domain key of a charge that is done, and what makes another call the same."""
    order: str = "account-1"
    """An order with many entries behind a parked one."""

    def run(self, number: int, name: str = "run") -> RunKey:
        """Return the key of a run of the story."""
        return RunKey(f"scale-{name}-{number}/{self.stamp}")

    async def opened(self, number: int, name: str = "run", thread: str | None = None) -> RunKey:
        """Open a run of the story."""
        key = self.run(number, name)
        await self.ledger.runs.open(
            run_key=key,
            workflow_id=key.rpartition("/")[0],
            agent="support",
            input_digest="input",
            attempt_at=datetime.now(UTC),
            thread_id=thread,
            spec=dumps({"agent": "support"}),
            namespace=NAMESPACE,
        )
        return key

    def request(self, run: RunKey, at: str, args: str = "{}", **given: Any) -> ActionRequest:
        """Return a call of the run."""
        plain: dict[str, Any] = {"tool": "charge", "args": args, "effect": Effect.IDEMPOTENT}
        digests: dict[str, Any] = {
            "requested_digest": digest(args),
            "effective_digest": digest([self.stamp, args]),
        }
        return ActionRequest(run_key=run, position=Position(at), **{**plain, **digests, **given})

    async def dispatched(self, run: RunKey, at: str, **given: Any) -> Dispatched:
        """Claim a call of the run that is to be sent."""
        lease = given.pop("lease", LEASE)
        claim = await self.ledger.claim(self.request(run, at, **given), attempt(lease))
        assert isinstance(claim, Dispatched), claim
        return claim


def attempt(lease: timedelta = LEASE, *, seconds: float = 0) -> Attempt:
    """Return an attempt that begins now, or later."""
    return Attempt(datetime.now(UTC) + timedelta(seconds=seconds), uuid4(), lease)


Story = Callable[[Ledger, int], Awaitable[None]]


async def a_call(on: Ledger, number: int) -> None:
    """A run that makes calls: new ones, repeated ones, one whose fact exists."""
    run, ledger = await on.opened(number), on.ledger
    await on.opened(number)
    by = attempt()
    for at, fact in (("0.0", None), ("1.0", f"scale-{on.stamp}-{number}")):
        request = on.request(run, at, args=dumps({"at": at}), domain_key=fact)
        claim = await ledger.claim(request, by)
        assert isinstance(claim, Dispatched), claim
        await ledger.claim(request, by)  # the answer of the commit was lost
        await ledger.fail_try(claim)
        await ledger.record(claim, OK)
    await ledger.claim(on.request(run, "2.0", args='{"a":1}', **on.standing), attempt())
    refused = await on.dispatched(run, "3.0", domain_key=f"scale-no-{on.stamp}-{number}")
    await ledger.record(refused, DECLINED)
    unsent = on.request(run, "4.0", args='{"b":1}')
    claim = await ledger.claim(unsent, by)
    await ledger.hand_back(unsent, by)
    await ledger.claim(on.request(run, "5.0", args='{"c":1}', detached=True), attempt())
    lost = on.request(run, "6.0", args='{"d":1}')
    await ledger.claim(lost, attempt(OVER))
    await ledger.claim(lost, attempt(seconds=9))
    asked = on.request(
        run, "7.0", args='{"e":1}', effect=Effect.LOOKUP, tool="mail", can_look_up=True
    )
    await ledger.claim(asked, attempt(OVER))
    looked = await ledger.claim(asked, attempt(seconds=9))
    await ledger.send_after_lookup(asked, looked.call)  # type: ignore[union-attr]
    await ledger.get(lost.key)
    await ledger.outcome(claim.key)  # type: ignore[union-attr]
    await ledger.runs.end(run, attempt_at=datetime.now(UTC))
    await ledger.claim(on.request(run, "8.0", args='{"f":1}'), attempt(seconds=20))  # reopens it


async def an_unknown_call(on: Ledger, number: int) -> None:
    """A call that is parked and repeated; a person settles it, or its late outcome does."""
    for late in (False, True):
        thread = f"unknown-{late}-{on.stamp}-{number}"
        run, ledger = await on.opened(number, f"unknown-{late}", thread), on.ledger
        claim = await on.dispatched(run, "0.0", thread_id=thread)
        await ledger.park(claim, "its answer was lost")
        await ledger.claim(on.request(run, "1.0", thread_id=thread), attempt())
        if late:
            await ledger.record(claim, OK)
        else:
            await ledger.settle(claim.key, OK, by="ada")
        await ledger.threads.pending_notices(thread)


async def an_undo(on: Ledger, number: int) -> None:
    """A run that fails and is undone; one of its calls succeeds late."""
    run, ledger = await on.opened(number, "undo"), on.ledger
    claims = [
        await on.dispatched(
            run, at, args=dumps(at), compensator="refund", domain_key=f"undo-{at}-{run}"
        )
        for at in ("0.0", "1.0", "2.0")
    ]
    for claim in claims[:2]:
        await ledger.record(claim, OK)
    now = datetime.now(UTC) + timedelta(seconds=60)
    began: dict[str, Any] = {"why": "it failed", "failed": True, "attempt_at": now}
    assert await ledger.undo.begin(run, unless=["ship"], **began)
    await ledger.undo.plan(run)
    undo = on.request(run, "undo-0.0", purpose="undo", undoes=claims[0].key, tool="refund")
    undoing = await ledger.claim(undo, attempt())
    assert isinstance(undoing, Dispatched), undoing
    await ledger.record(undoing, OK)
    passed = {action_key(run, Position("undo-1.0")), claims[2].key}
    await ledger.undo.finish(run, attempt_at=now, passed=passed)
    await ledger.undo.report(run)
    await ledger.record(claims[2], OK)
    await ledger.relay.dequeue_if_settled(claims[2].key)
    await ledger.relay.leave_to_person(claims[2].key, "no worker serves refund")


async def a_conversation(on: Ledger, number: int) -> None:
    """A conversation of two turns, which is forked, gone on with by another run, and deleted."""
    thread, threads = f"scale-{on.stamp}-{number}", on.ledger.threads
    await threads.receive(thread, "r1", SAID, agent="support")
    run = await on.opened(number, "talk", thread)
    notified = await on.dispatched(run, "0.0", thread_id=thread)
    version = 0
    for step in (0, 1):
        await threads.read(run, thread, request_id="r1")
        turn = Turn(
            thread_id=thread,
            version=version,
            run_key=run,
            step=step,
            epoch=0,
            messages=[NewMessage("assistant", SAID), NewMessage("tool", SAID)],
            input_tokens=900,
            notified=[notified.key],
            replies_to="r1",
            reply=SAID,
            state='{"cart": 1}',
        )
        version = (await threads.commit(turn)).version
    await threads.commit(turn)  # the answer of the commit was lost
    await threads.state(thread)
    await threads.messages(thread)
    await on.ledger.put_value(action_key(run, Position("1.1")), thread, SAID)
    await on.ledger.get_value(action_key(run, Position("1.1")))
    await threads.fork(run, 1)
    found = await threads.get(thread)
    assert found is not None
    goes_on: dict[str, Any] = {
        "by": on.run(number, "next"),
        "thread_id": thread,
        "version": found.version,
    }
    await threads.close_turn(run, [Position("0.0"), Position("0.1")], **goes_on)
    await threads.delete(thread)


async def a_person(on: Ledger, number: int) -> None:
    """A call that a person approves, one that asks a question, and ones that expire."""
    run, ledger = await on.opened(number, "person"), on.ledger
    plain: dict[str, Any] = {"run_key": run, "thread_id": run, "tool": "ship"}
    wanted: dict[str, Any] = {**plain, "args": "{}", "requested_digest": digest("{}")}
    for at, expires in (("0.0", None), ("0.1", timedelta(0))):
        asked = ApprovalRequest(position=Position(at), expires_after=expires, **wanted)
        await ledger.approvals.request(asked)
        await ledger.approvals.look(asked.key)
        if expires is None:
            await ledger.approvals.decide(asked.key, approve=True, by="ada")
        await ledger.approvals.get(asked.key)
    claim = await on.dispatched(run, "1.0")
    raises: dict[str, Any] = {
        **plain,
        "message": "Which one?",
        "payload": "{}",
        "index": 0,
        "expires_after": None,
    }
    question = QuestionRequest(position=Position("1.0"), **raises)
    now = datetime.now(UTC)
    await ledger.questions.raise_question(question, claim, attempt_at=now)
    await ledger.questions.look(claim.key, 1)
    await ledger.questions.get(claim.key)
    await ledger.questions.answer(claim.key, 1, '"this"', by="ada")


async def a_sub_agent(on: Ledger, number: int) -> None:
    """A run that calls a sub-agent, is stopped with it, and whose parent closes it."""
    run, ledger = await on.opened(number, "parent"), on.ledger
    given: dict[str, Any] = {"by": run.rpartition("/")[0], "agent": "sub", "input_digest": "sub"}
    for at in ("0.0", "0.1"):
        below = sub_run_key(run, Position(at))
        now = datetime.now(UTC)
        for workflow in ("one", "two"):
            assigned: dict[str, Any] = {**given, "workflow_id": workflow, "attempt_at": now}
            await ledger.sub_runs.assign(below, **assigned)
            await ledger.sub_runs.assign(below, **assigned, ended="one")
    await ledger.sub_runs.close(below, reason="gave no answer", attempt_at=datetime.now(UTC))
    await ledger.sub_runs.below(run)
    stop: dict[str, Any] = {
        "workflow_id": "w",
        "agent": "support",
        "reason": "no",
        "attempt_at": now,
    }
    await ledger.runs.stop(run, **stop)
    await ledger.runs.get(run)
    await ledger.runs.begun(run.rpartition("/")[0], namespace=NAMESPACE)


async def an_intent(on: Ledger, number: int) -> None:
    """Intents of the outbox: of no order, and of the order with many; the relay sends them."""
    relay, keys = on.ledger.relay, []
    for n, (kind, order) in enumerate(((_mail, on.order), (_mail, None), (_ship, None))):
        intent = Intent(kind, {"n": f"{on.stamp}-{number}-{n}"}, None, order)
        async with on.pool.connection() as connection, connection.transaction():
            row = await fetch_row(connection, "intend", request=intent.text)
        assert row is not None
        keys.append(ActionKey(row["action_key"]))
    sent, off = keys[1:]
    await relay.entry(keys[0])
    await relay.define(sent, effect=Effect.LOOKUP, key_ttl=None, compensator=None)
    found = await on.ledger.get(sent)
    assert found is not None
    same: dict[str, Any] = {
        "tool": found.tool,
        "effect": found.effect,
        "domain_key": found.domain_key,
    }
    digests: dict[str, Any] = {
        "requested_digest": found.requested_digest,
        "effective_digest": found.effective_digest,
    }
    request = ActionRequest(
        run_key=found.run_key,
        position=found.position,
        args=found.args,
        purpose="relay",
        **same,
        **digests,
    )
    claim = await on.ledger.claim(request, attempt())
    assert isinstance(claim, Dispatched), claim
    await on.ledger.record(claim, OK)
    await relay.dequeue_if_settled(sent)
    await on.ledger.park_unsent(off, "not sent")
    await relay.reopen(off)
    await relay.call_off(off, "not wanted", kind="NotWanted")


async def a_look_of_the_relay(on: Ledger, number: int) -> None:
    """The relay takes what is due, finds open runs, and ends one that is lost."""
    relay = on.ledger.relay
    due = await relay.take_due(SERVED, limit=AT_ONCE, namespace=NAMESPACE)
    for entry in due[:3]:
        await relay.count_start(entry)
    run = await on.opened(number, "lost")
    await on.dispatched(run, "0.0", lease=OVER)
    await on.dispatched(on.run(number, "lost"), "1.0", args="[]", lease=OVER)
    found = await on.ledger.runs.get(run)
    assert found is not None
    now = await relay.now()
    lost: dict[str, Any] = {"workflow_status": "terminated", "ended_at": now}
    await relay.end_lost(found, **lost, can_look_up=number % 2 == 0)
    await relay.leave_to_person(action_key(run, Position("0.0")), "tried in vain")


STORIES: Final[tuple[Story, ...]] = (
    a_call,
    an_unknown_call,
    an_undo,
    a_conversation,
    a_person,
    a_sub_agent,
    an_intent,
    a_look_of_the_relay,
)

Case = tuple[str, Callable[[Ledger], Awaitable[Any]]]


async def _nothing_due(on: Ledger) -> Any:
    return await on.ledger.relay.take_due(["charge"], limit=AT_ONCE, namespace=NAMESPACE)


async def _runs_due(on: Ledger) -> Any:
    before = datetime.now(UTC)
    return await on.ledger.relay.take_runs(limit=AT_ONCE, before=before, namespace=NAMESPACE)


async def _no_runs_due(on: Ledger) -> Any:
    before = datetime.now(UTC) - timedelta(hours=9)
    return await on.ledger.relay.take_runs(limit=AT_ONCE, before=before, namespace=NAMESPACE)


async def _ended_runs_due(on: Ledger) -> Any:
    return await on.ledger.relay.clear_runs(limit=AT_ONCE, before=datetime.now(UTC))


async def _no_ended_runs_due(on: Ledger) -> Any:
    before = datetime.now(UTC) - timedelta(hours=9)
    return await on.ledger.relay.clear_runs(limit=AT_ONCE, before=before)


LOOKS: Final[tuple[Case, ...]] = (
    (", nothing due", _nothing_due),
    (", nothing due", _no_runs_due),
    ("", _runs_due),
    ("", _ended_runs_due),
    (", nothing due", _no_ended_runs_due),
    ("", lambda on: on.ledger.relay.adopt()),
    ("", lambda on: on.ledger.relay.settle_repeats()),
    ("", lambda on: WaitingLedger.beside(on.ledger).look()),
    (
        ", nothing due",
        lambda on: on.ledger.relay.sweeps.take(
            namespace=NAMESPACE, task_queue="bench", every=timedelta(hours=9)
        ),
    ),
    ("", lambda on: on.ledger.relay.queue_parked(most=1000, tools=SERVED, namespace=NAMESPACE)),
)
"""Looks of the relay, each the same every time."""

LISTS: Final[tuple[Case, ...]] = (
    (", newest", lambda on: on.ledger.list(newest_first=True, limit=50)),
    (", oldest", lambda on: on.ledger.list(limit=50)),
    (", parked", lambda on: on.ledger.list(only_parked=True, limit=50)),
    (", of a run", lambda on: on.ledger.list(on.run(1), limit=50)),
    (", unknown", lambda on: on.ledger.find(state="unknown", limit=50)),
    (", of an agent", lambda on: on.ledger.find(agent="support", limit=50)),
    ("", lambda on: on.ledger.runs.list(limit=20)),
    (", of an id", lambda on: on.ledger.runs.list(workflow_id="outbox", limit=20)),
    ("", lambda on: on.ledger.runs.known([(f"run-{at}", on.run(at)) for at in range(50)])),
    (
        ", of 20 runs",
        lambda on: WaitingLedger.beside(on.ledger).of_runs([on.run(at) for at in range(20)]),
    ),
    ("", lambda on: on.ledger.threads.list(limit=20)),
    ("", lambda on: on.ledger.approvals.list(limit=50)),
    (", of a run", lambda on: on.ledger.approvals.list(on.run(1), limit=50)),
    (", all", lambda on: on.ledger.approvals.list(only_waiting=False, limit=50)),
    ("", lambda on: on.ledger.questions.list(limit=50)),
    (", of a run", lambda on: on.ledger.questions.list(on.run(1), limit=50)),
    (", all", lambda on: on.ledger.questions.list(only_waiting=False, limit=50)),
    ("", lambda on: on.ledger.relay.list(limit=50)),
    ("", lambda on: on.ledger.relay.list_lost(limit=50)),
    ("", lambda on: on.ledger.sub_runs.actions(on.run(1, "parent"), limit=50)),
    ("", lambda on: on.ledger.relay.without_exit(limit=50)),
)
"""What an operator's commands list, with the limits of the commands."""

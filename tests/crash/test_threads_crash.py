"""Conversations whose runs lose their worker, or are lost themselves: all is said and done once."""

import asyncio
import json
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import pytest
from temporalio.client import WorkflowExecutionStatus

from commitline.activities.contract.conversation import Message, RunResult, ToolResult
from commitline.activities.contract.encoding import from_text
from commitline.activities.replies import call_reply
from commitline.errors import RunFailed, RunNotFound, RunNotRunning
from commitline.ledger import Action, ActionLedger, Outcome, Request, Run, StoredMessage
from commitline.testing.processes import WorkerProcess
from commitline.tests.builders import action_request, attempt
from commitline.tests.crash.stage import Gate, Played, Scene, Script, Stage, freeze_in_claim, until
from commitline.tests.soak.conversations import malformed

TEXT: Final = "Please charge order 4821."


@dataclass(frozen=True)
class Talk:
    """What is left of a conversation."""

    replies: Sequence[RunResult]
    """What each sender got, in order."""
    stored: Sequence[StoredMessage]
    shown: Sequence[Sequence[Message]]
    """What the model was shown, request by request."""
    turns: Sequence[int]
    actions: Sequence[Action]
    runs: Sequence[Run]
    """Oldest first."""
    requests: Sequence[Request]
    effects: dict[str, int]
    sent: Sequence[tuple[str, str | None]]
    """Kind and key of every request to the provider."""

    @property
    def messages(self) -> list[Message]:
        return [from_text(Message, one.message) for one in self.stored]

    @property
    def outline(self) -> list[str]:
        """Each message in a word or two."""
        return [_outlined(message) for message in self.messages]

    def told(self, number: int) -> Sequence[ToolResult]:
        """Return the results of the `number`-th message that has results."""
        return [message.results for message in self.messages if message.role == "tool"][number]

    def rows(self, tool: str) -> list[Action]:
        return sorted((one for one in self.actions if one.tool == tool), key=lambda one: one.key)


def _outlined(message: Message) -> str:
    if message.completion is not None:
        calls = [call.name for call in message.completion.calls]
        return ", ".join(calls) or message.completion.text
    if message.role == "tool":
        return ", ".join(result.status for result in message.results)
    return message.text.split()[0]


async def _closed(scene: Scene) -> None:
    """Wait until the run has gone: its worker has to be there."""
    async with asyncio.timeout(60):
        await scene.client.thread(scene.thread_id).run.result()


async def _left(scene: Scene, replies: Sequence[RunResult], *asked: str) -> Talk:
    ledger = await scene.client.ledger()
    stats = await asyncio.to_thread(scene.provider.stats)
    shown = scene.log.with_name("shown")
    requests = [await ledger.threads.request(scene.thread_id, one) for one in asked]
    return Talk(
        replies=replies,
        stored=await scene.messages(),
        shown=[from_text(list[Message], line) for line in shown.read_text().splitlines()],
        turns=scene.turns(),
        actions=await ledger.list(),
        runs=list(reversed(await ledger.runs.list())),
        requests=[one for one in requests if one is not None],
        effects=stats["effects"],
        sent=[(one["kind"], one["key"]) for one in stats["sent"]],
    )


def _sending(scene: Scene, request_id: str, text: str = TEXT) -> asyncio.Task[RunResult]:
    async def send() -> RunResult:
        try:
            async with asyncio.timeout(60):
                return await scene.send(text, request_id)
        except Exception as err:
            err.add_note(scene.tail())
            raise

    return asyncio.create_task(send())


# --- the worker is killed at a point; whoever asked, asks again, at once and later

# The point, how often the model was asked for each turn, and how many charges were requested.
_POINTS: Final = {
    "after_completion": ([0, 0, 1], 1),
    "completion_recorded": ([0, 1], 1),
    "before_claim": ([0, 1], 1),
    "after_claim": ([0, 1], 1),
    "after_effect": ([0, 1], 2),
    "before_record": ([0, 1], 2),
    "after_record": ([0, 1], 1),
}


def _killed(app: str, point: str) -> Script[Talk]:
    async def play(scene: Scene) -> Talk:
        first = _sending(scene, "r1")
        await scene.crash(app, at=point)
        meanwhile = _sending(scene, "r1")
        with scene.worker(app):
            given = [await first, await meanwhile]
            await _closed(scene)
        # The answer is on record: nobody needs to be at work for it.
        return await _left(scene, [*given, await _sending(scene, "r1")], "r1")

    return play


@pytest.fixture(scope="module")
def killed(stage: Stage) -> Played[Talk]:
    return stage.play({point: _killed("talks:charging", point) for point in _POINTS})


@pytest.mark.parametrize("point", _POINTS)
def test_whoever_asked_gets_the_one_reply_however_often_it_was_sent(
    killed: Played[Talk], point: str
) -> None:
    left = killed[point]

    assert [reply.output for reply in left.replies] == ["charged"] * 3
    assert len(set(left.replies)) == 1
    (request,) = left.requests
    assert request.reply is not None
    assert from_text(RunResult, request.reply) == left.replies[0]


@pytest.mark.parametrize("point", _POINTS)
def test_the_conversation_has_each_message_once_and_one_result_per_call(
    killed: Played[Talk], point: str
) -> None:
    left = killed[point]

    assert malformed(left.stored) == []
    assert left.outline == ["Please", "charge_card", "ok", "charged"]
    assert [one.version for one in left.stored] == [1, 1, 2, 2]
    assert [one.request_id for one in left.stored] == ["r1", None, None, None]
    (run,) = left.runs
    assert (run.state, run.stopped_at) == ("ended", None)


@pytest.mark.parametrize("point", _POINTS)
def test_the_model_is_asked_once_per_recorded_turn_and_shown_what_stands(
    killed: Played[Talk], point: str
) -> None:
    left = killed[point]

    assert left.turns == _POINTS[point][0]
    for turn, shown in zip(left.turns, left.shown, strict=True):
        assert list(shown) == left.messages[: 2 * turn + 1]


@pytest.mark.parametrize("point", _POINTS)
def test_the_charge_of_a_conversation_happens_once(killed: Played[Talk], point: str) -> None:
    left = killed[point]

    assert left.effects == {"charge:4821": 1}
    assert left.sent == [("charge", "order-4821-charge")] * _POINTS[point][1]
    (row,) = left.actions
    assert row.state == "ok"


# --- the reply is on record, and its run does not know it


async def test_a_reply_on_record_is_given_though_no_worker_is_left(scene: Scene) -> None:
    first = _sending(scene, "r1")
    await scene.crash("talks:greeting", at="completion_recorded")

    again = await _sending(scene, "r1")
    with scene.worker("talks:greeting"):
        replies = [await first, again, await _sending(scene, "r2", "And then?")]
        await _closed(scene)
    left = await _left(scene, replies, "r1", "r2")

    assert [reply.output for reply in left.replies] == ["hello", "hello", "more"]
    assert left.replies[0] == left.replies[1]
    assert left.turns == [0, 1]
    assert left.outline == ["Please", "hello", "And", "more"]
    assert malformed(left.stored) == []


async def test_a_sender_can_give_up_and_what_it_said_is_answered_all_the_same(scene: Scene) -> None:
    giving_up = asyncio.create_task(scene.send(TEXT, "r1"))
    await until(lambda: _is_asked(scene))

    giving_up.cancel()
    _, pending = await asyncio.wait([giving_up], timeout=60)

    assert not pending
    assert giving_up.cancelled()
    with scene.worker("talks:greeting"):
        reply = await _sending(scene, "r1")
    assert reply.output == "hello"


async def _is_asked(scene: Scene) -> bool:
    """Whether the request has gone to the run, and waits there."""
    run = scene.client.thread(scene.thread_id).run
    with suppress(RunNotFound):
        return (await run.describe()).status is WorkflowExecutionStatus.RUNNING
    return False


# --- the run is terminated in the middle of its calls


async def _in_the_middle(scene: Scene) -> bool:
    """Whether one call is recorded, one dispatched, and one without a row is at work."""
    ledger = await scene.client.ledger()
    rows = {row.tool: row.state for row in await ledger.list()}
    sent = await asyncio.to_thread(scene.provider.requests, "mail")
    return (
        rows == {"charge_card": "ok", "send_mail": "dispatched"}
        and sent == 1
        and scene.log.with_name("looking").exists()
    )


async def _tear(scene: Scene, worker: WorkerProcess, *, killed: bool) -> None:
    """Have a run begin, and terminate it."""
    scene.hold.touch()
    first = _sending(scene, "r1")
    await until(lambda: _in_the_middle(scene))
    if killed:
        worker.kill()
    await scene.terminate()
    with pytest.raises(RunFailed):
        await first


def _torn(*, killed: bool, again: str) -> Script[Talk]:
    """Terminate a run whose worker lives on, or does not; then another request, or the same."""

    async def play(scene: Scene) -> Talk:
        with scene.worker("talks:torn") as worker:
            await _tear(scene, worker, killed=killed)
            if killed:
                scene.hold.unlink()
                worker.__enter__()
            text = TEXT if again == "r1" else "Are you there?"
            given = [await _sending(scene, again, text)]
            await _settled(scene, by_a_person=killed)
            given.append(await _sending(scene, "r3", "What became of it?"))
            given.append(await _sending(scene, "r4", "And now?"))
            await _closed(scene)
        return await _left(scene, given, "r1", again, "r3", "r4")

    return play


async def _settled(scene: Scene, *, by_a_person: bool) -> None:
    """Have it known what became of the mail: by a person, or by its own late answer."""
    ledger = await scene.client.ledger()

    async def mail() -> Action:
        (row,) = [
            row
            for row in await ledger.list()
            if row.tool == "send_mail" and row.duplicate_of is None
        ]
        return row

    async def is_settled() -> bool:
        return (await mail()).state == "ok"

    async def is_over() -> bool:
        return not (await mail()).leased

    if by_a_person:
        await until(is_over)
        await ledger.settle((await mail()).key, Outcome.ok('"mail_7"'), by="ada")
    else:
        scene.hold.unlink()
        await until(is_settled)


_TORN: Final = {
    "worker alive, another request": _torn(killed=False, again="r2"),
    "worker alive, the same request": _torn(killed=False, again="r1"),
    "worker killed, another request": _torn(killed=True, again="r2"),
    "worker killed, the same request": _torn(killed=True, again="r1"),
}


@pytest.fixture(scope="module")
def torn(stage: Stage) -> Played[Talk]:
    return stage.play(_TORN)


@pytest.mark.parametrize("name", _TORN)
def test_the_next_run_tells_of_each_call_what_the_ledger_knows(
    torn: Played[Talk], name: str
) -> None:
    left = torn[name]
    charge, mail, look = left.told(0)

    assert (charge.status, json.loads(charge.content)["order_id"]) == ("ok", "4821")
    assert mail.status == "unknown"
    assert json.loads(mail.content)["unknown"]["action"] == left.runs[0].run_key + ":0.1"
    assert look.status == "error"
    assert json.loads(look.content) == call_reply.not_carried_out().content


@pytest.mark.parametrize("name", _TORN)
def test_a_torn_conversation_is_mended_and_goes_on(torn: Played[Talk], name: str) -> None:
    left = torn[name]
    another = ["Are"] if "another" in name else []

    assert malformed(left.stored) == []
    # The mail and its repetition were unknown, and are told to be settled, once.
    assert left.outline == [
        "Please",
        "charge_card, send_mail, look",
        "ok, unknown, error",
        *another,
        "charge_card, send_mail",
        "ok, unknown",
        "went on",
        "What",
        "[notice]",
        "[notice]",
        "more",
        "And",
        "even more",
    ]
    assert [reply.output for reply in left.replies] == ["went on", "more", "even more"]
    assert [request.reply is not None for request in left.requests] == [
        not another,
        True,
        True,
        True,
    ]


@pytest.mark.parametrize("name", _TORN)
def test_a_later_settlement_is_told_as_a_notice(torn: Played[Talk], name: str) -> None:
    left = torn[name]
    by = "by ada" if "killed" in name else "by its own late answer"
    notices = [one.text for one in left.messages if one.text.startswith("[notice]")]

    assert [row.state for row in left.rows("send_mail")] == ["ok", "ok"]
    assert len(notices) == 2
    assert f"send_mail at 0.1, which was unknown, has been settled {by}" in "".join(notices)
    assert all("it happened" in one for one in notices)


@pytest.mark.parametrize("name", _TORN)
def test_nothing_that_a_torn_run_did_is_done_again(torn: Played[Talk], name: str) -> None:
    left = torn[name]

    assert left.effects == {"charge:4821": 1, "mail:ada@example.com": 1}
    assert sorted(kind for kind, _ in left.sent) == ["charge", "mail"]


@pytest.mark.parametrize("name", _TORN)
def test_a_run_whose_conversation_went_on_is_stopped(torn: Played[Talk], name: str) -> None:
    gone, going_on, *_ = torn[name].runs

    assert gone.state == "ended"
    assert gone.stopped_at is not None
    assert going_on.run_key in (gone.stop_reason or "")
    assert going_on.stopped_at is None


async def test_a_request_whose_run_was_lost_is_what_the_model_is_asked_when_it_comes_again(
    scene: Scene,
) -> None:
    with scene.worker("talks:torn") as worker:
        await _tear(scene, worker, killed=True)
        scene.hold.unlink()
        worker.__enter__()
        replies = [await _sending(scene, "r2", "Are you there?"), await _sending(scene, "r1")]
        await _closed(scene)
    left = await _left(scene, replies, "r1", "r2")

    assert [reply.output for reply in left.replies] == ["went on", "more"]
    assert malformed(left.stored) == []
    # Not a conversation that ends with the model's own answer to somebody else.
    assert left.shown[-1][-1].role == "user"


# --- what a terminated run has under way when its conversation has gone on


async def _gone_on(scene: Scene, app: str, first: asyncio.Task[RunResult]) -> RunResult:
    """Terminate the run, and have another one answer what it was asked."""
    await scene.terminate()
    with pytest.raises(RunFailed):
        await first
    with scene.worker(app):
        reply = await _sending(scene, "r1")
        await _closed(scene)
    return reply


async def test_an_answer_of_the_model_that_comes_late_is_not_committed_beside_another(
    scene: Scene,
) -> None:
    async with Gate(scene, "agent_messages") as gate:
        first = _sending(scene, "r1")
        with scene.worker("talks:greeting", COMMITLINE_STATEMENT_SECONDS="60") as worker:
            await gate.reached()
            worker.kill()  # its commit is with the database, which does not know
        await scene.terminate()
        with pytest.raises(RunFailed):
            await first
        with scene.worker("talks:greeting", COMMITLINE_STATEMENT_SECONDS="60"):
            again = _sending(scene, "r1")
            await gate.reached(2)
            await gate.passed()
            replies = [await again, await _sending(scene, "r2", "And then?")]
            await _closed(scene)
    left = await _left(scene, replies, "r1", "r2")

    assert malformed(left.stored) == []
    assert left.outline == ["Please", "hello", "And", "more"]
    assert [reply.output for reply in left.replies] == ["hello", "more"]
    # The run that went on asked as well, and what it was told was let go.
    assert left.turns == [0, 0, 1]
    assert left.stored[0].run_key == left.stored[1].run_key


@pytest.mark.parametrize("app", ["mailing", "shipping"])
async def test_an_attempt_of_a_terminated_run_claims_nothing_any_more(
    scene: Scene, app: str
) -> None:
    async with Gate(scene) as gate:
        first = _sending(scene, "r1")
        with scene.worker(f"talks:{app}", COMMITLINE_STATEMENT_SECONDS="60") as worker:
            await gate.reached()
            worker.kill()  # its claim is with the database, which does not know
        reply = await _gone_on(scene, f"talks:{app}", first)
        await gate.passed()
    left = await _left(scene, [reply], "r1")
    (told,) = left.told(0)
    ledger = await scene.client.ledger()

    assert json.loads(told.content) == call_reply.not_carried_out().content
    assert left.outline[2:] == ["error", "went on"]
    assert malformed(left.stored) == []
    assert list(left.actions) == []
    assert (left.effects, left.sent) == ({}, [])
    # Nor does one that only comes now, however young.
    gone = left.runs[0].run_key
    with pytest.raises(RunNotRunning):
        await ledger.claim(action_request(gone), attempt(since=datetime.now(UTC)))


@pytest.mark.parametrize("app", ["mailing", "shipping"])
async def test_an_attempt_of_a_terminated_run_that_wakes_up_too_late_calls_nothing(
    scene: Scene, app: str
) -> None:
    async def start() -> None:
        senders.append(_sending(scene, "r1"))

    senders: list[asyncio.Task[RunResult]] = []
    # The answer to a claim is taken up after a long sleep, too.
    frozen = scene.worker(f"talks:{app}", COMMITLINE_STATEMENT_SECONDS="60")
    frozen.log = scene.log.with_name("frozen.log")
    try:
        await freeze_in_claim(scene, frozen, start, commits=True)
        reply = await _gone_on(scene, f"talks:{app}", senders[0])
        ledger = await scene.client.ledger()
        await until(lambda: _is_over(ledger))
        before = await ledger.list()
        assert frozen.process is not None
        frozen.process.send_signal(signal.SIGCONT)
        status = await asyncio.to_thread(frozen.terminate)
    finally:
        frozen.kill()
    left = await _left(scene, [reply], "r1")
    (told,) = left.told(0)

    assert told.status == "unknown"
    assert malformed(left.stored) == []
    assert (left.effects, left.sent) == ({}, [])
    assert status == 0
    assert _fixed(left.actions) == _fixed(before)


async def _is_over(ledger: ActionLedger) -> bool:
    """Whether no attempt may be at work on the one action any more."""
    (row,) = await ledger.list()
    return not row.leased


def _fixed(actions: Sequence[Action]) -> list[Action]:
    """Return rows as they are, whenever they were read."""
    return sorted((replace(one, now=one.created_at) for one in actions), key=lambda one: one.key)

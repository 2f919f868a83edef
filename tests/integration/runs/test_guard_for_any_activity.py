"""The guard around plain activities of a workflow that is not ours."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from psycopg import AsyncConnection
from pydantic import BaseModel
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError
from temporalio.runtime import MetricBuffer, Runtime, TelemetryConfig
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from commitline.activities.app.tool_context import current_call
from commitline.errors import ConfigurationError, DefinitionError, ToolRefused
from commitline.identity import RunKey
from commitline.integrations import LedgerPlugin, effect
from commitline.integrations.rules import Rules
from commitline.ledger import Action, ActionLedger, Effect, ledger_pool
from commitline.operating import temporal_checks
from commitline.operating.check import Check
from commitline.operating.doctor import examine
from commitline.tests.builders import action_request, attempt, open_run

from .bench import Bench, eventually, fresh_id


@dataclass
class Receipt:
    cents: int
    id: str


class Parcel(BaseModel):
    number: int
    weight: Decimal
    sent_at: datetime


SEEN: list[tuple[Any, ...]] = []
"""What the functions were called with, in order."""
CALLS: Counter[str] = Counter()
BEGAN = threading.Event()


@activity.defn
async def charge(order_id: str, cents: int, currency: str = "eur") -> Receipt:
    CALLS["charge"] += 1
    SEEN.append((order_id, cents, currency, current_call.get().idempotency_key))
    return Receipt(cents, f"receipt-{CALLS['charge']}")


@activity.defn
async def ship(parcel: Parcel) -> Parcel:
    SEEN.append((parcel,))
    return parcel


@activity.defn(name="post")
async def post_bytes(content: bytes, note: str | None = None) -> bytes:
    SEEN.append((content, note))
    return content + b"\x00"


@activity.defn
def stamp(name: str) -> str:
    """A plain function on a thread; returns once its event loop has turned."""
    SEEN.append((name, current_call.get().idempotency_key, threading.current_thread().name))
    threading.Event().wait(1.2)
    return f"stamped {name}"


@activity.defn
async def decline(order_id: str) -> str:
    CALLS["decline"] += 1
    raise ToolRefused(f"card of {order_id} declined")


@activity.defn
async def capture(order_id: str) -> str:
    CALLS["capture"] += 1
    if CALLS["capture"] == 1:
        raise ToolRefused(f"order {order_id} is not shipped yet")
    return current_call.get().idempotency_key


@activity.defn
async def break_down() -> str:
    CALLS["break_down"] += 1
    raise RuntimeError("half way through")


@activity.defn
async def odd() -> Any:
    CALLS["odd"] += 1
    return lambda: None


@activity.defn
async def look(order_id: str) -> str:
    CALLS["look"] += 1
    if order_id == "lost":
        raise ApplicationError("lost for good", "4821", type="Lost", non_retryable=True)
    if CALLS["look"] < 3 and order_id == "away":
        raise ConfigurationError("Temporal does not answer a client of ours")
    if CALLS["look"] < 3:
        raise LookupError(f"{order_id} is not there yet")
    return "there"


@activity.defn
async def regret() -> str:
    BEGAN.set()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    return "I was cancelled, sorry"


@activity.defn
def relent() -> str:
    BEGAN.set()
    with suppress(CancelledError):  # Temporal raises it in the thread
        while True:
            threading.Event().wait(0.02)
    return "I was cancelled, sorry"


EFFECTS = {
    "charge": effect(
        Effect.IDEMPOTENT,
        idempotency_key="order-{order_id}-charge",
        key_ttl=timedelta(hours=24),
    ),
    "ship": effect(Effect.AT_MOST_ONCE),
    "post": effect(Effect.AT_MOST_ONCE),
    "stamp": effect(Effect.IDEMPOTENT),
    "decline": effect(Effect.AT_MOST_ONCE),
    "capture": effect(Effect.IDEMPOTENT, idempotency_key="order-{order_id}-capture"),
    "break_down": effect(Effect.AT_MOST_ONCE),
    "odd": effect(Effect.AT_MOST_ONCE),
    "look": effect(Effect.READ),
    "regret": effect(Effect.AT_MOST_ONCE),
    "relent": effect(Effect.AT_MOST_ONCE),
}
FUNCTIONS: list[Callable[..., Any]] = [
    charge,
    ship,
    post_bytes,
    stamp,
    decline,
    capture,
    break_down,
    odd,
    look,
    regret,
    relent,
]

TEN_SECONDS = timedelta(seconds=10)


@workflow.defn
class OneCall:
    """Calls one activity and returns what it returned."""

    @workflow.run
    async def run(self, name: str, args: list[Any]) -> Any:
        return await workflow.execute_activity(
            name,
            args=args,
            start_to_close_timeout=TEN_SECONDS,
            heartbeat_timeout=timedelta(seconds=1),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=10)),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )


@workflow.defn
class TwoExecutions:
    """Calls twice with automatic ids, once with one of its own, and goes on as a new execution."""

    @workflow.run
    async def run(self, round_number: int, receipts: list[str]) -> list[str]:
        for _ in range(2):
            receipt = await workflow.execute_activity(
                charge,
                args=[f"auto-{len(receipts)}", 100],
                start_to_close_timeout=TEN_SECONDS,
            )
            receipts.append(receipt.id)
        receipt = await workflow.execute_activity(
            charge,
            args=[f"named-{round_number}", 200, "usd"],
            activity_id=f"round-{round_number}",
            start_to_close_timeout=TEN_SECONDS,
        )
        receipts.append(receipt.id)
        if round_number == 0:
            workflow.continue_as_new(args=[1, receipts])
        return receipts


@workflow.defn
class Ship:
    @workflow.run
    async def run(self, parcel: Parcel) -> Parcel:
        return await workflow.execute_activity(ship, parcel, start_to_close_timeout=TEN_SECONDS)


@workflow.defn
class Post:
    @workflow.run
    async def run(self, content: bytes) -> bytes:
        return await workflow.execute_activity(
            post_bytes, content, start_to_close_timeout=TEN_SECONDS
        )


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()
    CALLS.clear()
    BEGAN.clear()


@pytest.fixture(params=["default", "pydantic"])
async def plain(bench: Bench, request: pytest.FixtureRequest) -> Bench:
    """The bench, by a client with each of the converters."""
    if request.param == "default":
        return bench
    temporal = await Client.connect(
        bench.temporal.service_client.config.target_host,
        data_converter=pydantic_data_converter,
    )
    return replace(bench, temporal=temporal)


@asynccontextmanager
async def serving(
    bench: Bench, *, guarded: bool = True, runtime: Runtime | None = None
) -> AsyncIterator[ActionLedger]:
    """Run a worker as somebody else would write it, with the plugin added."""
    plugin = LedgerPlugin(bench.settings.database_url, effects=EFFECTS)
    client = await Client.connect(
        bench.temporal.service_client.config.target_host,
        data_converter=bench.temporal.data_converter,
        plugins=[plugin] if guarded else [],
        runtime=runtime,
    )
    async with ledger_pool(bench.settings.database_url, size=4) as pool:
        with ThreadPoolExecutor(4, thread_name_prefix="theirs") as threads:
            async with Worker(
                client,
                task_queue=bench.settings.task_queue,
                workflows=[OneCall, TwoExecutions, Ship, Post],
                activities=FUNCTIONS,
                activity_executor=threads,
                workflow_runner=UnsandboxedWorkflowRunner(),
            ):
                yield ActionLedger(pool, statement_seconds=bench.settings.statement_seconds)


async def one_call(bench: Bench, name: str, *args: Any, id: str | None = None) -> Any:
    """Run a workflow of one call; return its result."""
    return await bench.temporal.execute_workflow(
        OneCall.run,
        args=[name, list(args)],
        id=id or fresh_id(),
        task_queue=bench.settings.task_queue,
        execution_timeout=timedelta(seconds=30),  # a call that is retried for ever must fail
    )


async def failure_of(bench: Bench, name: str, *args: Any) -> ApplicationError:
    """Run a workflow of one call that fails; return what it got for its call."""
    with pytest.raises(WorkflowFailureError) as failed:
        await one_call(bench, name, *args)
    assert isinstance(failed.value.cause, ActivityError)
    assert isinstance(failed.value.cause.cause, ApplicationError)
    return failed.value.cause.cause


async def rerun(bench: Bench, id: str) -> Any:
    """Reset a workflow to its beginning and return its new result."""
    await bench.reset(id)
    return await bench.temporal.get_workflow_handle(id).result()


async def test_a_call_is_recorded_and_read_back_when_the_workflow_is_reset(plain: Bench) -> None:
    workflow_id = fresh_id()

    async with serving(plain) as ledger:
        live = await one_call(plain, "charge", "4821", 4900, id=workflow_id)
        replayed = await rerun(plain, workflow_id)
        actions = await ledger.list()

    assert live == replayed == {"id": "receipt-1", "cents": 4900}
    assert SEEN == [("4821", 4900, "eur", "order-4821-charge")]
    assert [(a.position, a.tool, a.args, a.result) for a in actions] == [
        ("charge#0", "charge", '["4821",4900,"eur"]', '{"cents":4900,"id":"receipt-1"}')
    ]
    assert (actions[0].effect, actions[0].key_ttl) == ("idempotent", timedelta(hours=24))


async def test_positions_are_counted_over_a_continue_as_new_whatever_the_activity_ids_are(
    plain: Bench,
) -> None:
    async with serving(plain) as ledger:
        receipts = await plain.temporal.execute_workflow(
            TwoExecutions.run,
            args=[0, []],
            id=fresh_id(),
            task_queue=plain.settings.task_queue,
        )
        actions = await ledger.list()

    assert receipts == [f"receipt-{number}" for number in range(1, 7)]
    assert [(a.position, a.domain_key) for a in actions] == [
        ("charge#0", "order-auto%2D0-charge"),
        ("charge#1", "order-auto%2D1-charge"),
        ("charge#2", "order-named%2D0-charge"),
        ("charge#3", "order-auto%2D3-charge"),
        ("charge#4", "order-auto%2D4-charge"),
        ("charge#5", "order-named%2D1-charge"),
    ]
    assert len({a.run_key for a in actions}) == 1


async def test_another_workflow_gets_the_receipt_of_the_same_fact(plain: Bench) -> None:
    async with serving(plain) as ledger:
        first = await one_call(plain, "charge", "4821", 4900)
        second = await one_call(plain, "charge", "4821", 4900)
        actions = await ledger.list()

    assert first == second
    assert CALLS["charge"] == 1
    assert [a.duplicate_of for a in actions] == [None, actions[0].key]


async def test_a_key_used_for_something_else_fails_for_good_and_names_both(plain: Bench) -> None:
    async with serving(plain):
        await one_call(plain, "charge", "4821", 4900)
        failure = await failure_of(plain, "charge", "4821", 5900)

    assert (failure.type, failure.non_retryable) == ("IdempotencyKeyConflict", True)
    # What another run gave its call is not for this one to read.
    assert "4900" not in failure.message
    assert "was used by" in failure.message
    assert "charge [" in failure.message
    assert "5900" in failure.message
    assert CALLS["charge"] == 1


async def test_an_empty_argument_in_a_key_is_refused_before_the_intent(plain: Bench) -> None:
    async with serving(plain) as ledger:
        failure = await failure_of(plain, "charge", "", 4900)
        actions = await ledger.list()

    assert (failure.type, failure.non_retryable) == ("InvalidIdempotencyKey", True)
    assert (actions, CALLS["charge"]) == ([], 0)


async def test_a_refusal_is_final_and_frees_the_key(plain: Bench) -> None:
    async with serving(plain) as ledger:
        failure = await failure_of(plain, "decline", "4821")
        actions = await ledger.list()

    assert (failure.type, failure.message, failure.non_retryable) == (
        "ToolRefused",
        "card of 4821 declined",
        True,
    )
    assert CALLS["decline"] == 1
    assert [(a.state, a.effect_possible) for a in actions] == [("error", False)]


async def test_a_refusal_after_a_lost_attempt_proves_nothing_and_frees_no_key(
    bench: Bench,
) -> None:
    dead = action_request(
        RunKey("dead/1"), tool="capture", args='["4821"]', domain_key="order-4821-capture"
    )
    now = datetime.now(UTC)

    async with serving(bench) as ledger:
        await open_run(ledger, dead.run_key, attempt_at=now)
        await ledger.claim(dead, attempt(since=now, lease=timedelta()))
        failure = await failure_of(bench, "capture", "4821")
        actions = await ledger.list()

    assert failure.type == "OutcomeUnknown"
    assert [(a.idempotency_key, a.state) for a in actions] == [
        ("order-4821-capture", "unknown"),
        (None, "unknown"),
    ]
    assert actions[0].parked_reason == (
        "an earlier attempt may have happened; now ToolRefused: order 4821 is not shipped yet"
    )
    assert CALLS["capture"] == 1


async def test_a_call_that_broke_down_is_unknown_and_not_made_again(plain: Bench) -> None:
    async with serving(plain) as ledger:
        failure = await failure_of(plain, "break_down")
        actions = await ledger.list()

    assert (failure.type, failure.non_retryable) == ("OutcomeUnknown", True)
    assert actions[0].key in failure.message
    assert "RuntimeError: half way through" in failure.message
    assert failure.details[0] == actions[0].key
    assert CALLS["break_down"] == 1
    assert [a.state for a in actions] == ["unknown"]


async def test_a_result_that_no_converter_takes_is_told_once_and_not_produced_again(
    plain: Bench,
) -> None:
    async with serving(plain) as ledger:
        failure = await failure_of(plain, "odd")
        actions = await ledger.list()

    assert (failure.type, failure.non_retryable) == ("UnrepresentableResult", True)
    assert failure.message.startswith("odd ran, and its effect stands, but its result of type")
    assert CALLS["odd"] == 1
    assert [(a.state, a.effect_possible) for a in actions] == [("error", True)]


async def test_a_read_stays_out_of_the_ledger_and_is_retried_by_temporal(plain: Bench) -> None:
    async with serving(plain) as ledger:
        found = await one_call(plain, "look", "4821")
        actions = await ledger.list()

    assert (found, CALLS["look"], actions) == ("there", 3, [])


async def test_a_read_that_raises_an_error_of_ours_is_retried_by_temporal(bench: Bench) -> None:
    """It may use a client of ours; how often it is tried is for its own workflow to say."""
    async with serving(bench):
        found = await one_call(bench, "look", "away")

    assert (found, CALLS["look"]) == ("there", 3)


async def test_what_a_read_raises_reaches_the_workflow_as_it_is(plain: Bench) -> None:
    async with serving(plain):
        failure = await failure_of(plain, "look", "lost")

    assert (failure.type, failure.message, failure.non_retryable) == ("Lost", "lost for good", True)
    assert list(failure.details) == ["4821"]
    assert CALLS["look"] == 1


async def test_bytes_go_in_and_come_out_as_they_are(plain: Bench) -> None:
    workflow_id = fresh_id()

    async with serving(plain) as ledger:
        live = await plain.temporal.execute_workflow(
            Post.run, b"\xff\x00", id=workflow_id, task_queue=plain.settings.task_queue
        )
        replayed = await rerun(plain, workflow_id)
        actions = await ledger.list()

    assert live == replayed == b"\xff\x00\x00"
    assert SEEN == [(b"\xff\x00", None)]
    assert actions[0].args == (
        '[{"$payload":{"metadata":{"encoding":"binary/plain"},"data":"/wA="}},null]'
    )


async def test_pydantic_models_go_through_where_the_converter_knows_them(bench: Bench) -> None:
    temporal = await Client.connect(
        bench.temporal.service_client.config.target_host, data_converter=pydantic_data_converter
    )
    bench = replace(bench, temporal=temporal)
    parcel = Parcel(number=1, weight=Decimal("1.10"), sent_at=datetime(2026, 1, 2, tzinfo=UTC))

    async with serving(bench) as ledger:
        returned = await temporal.execute_workflow(
            Ship.run, parcel, id=fresh_id(), task_queue=bench.settings.task_queue
        )
        actions = await ledger.list()

    assert returned == parcel
    assert [(parcel,)] == SEEN
    assert actions[0].args == ('[{"number":1,"weight":"1.10","sent_at":"2026-01-02T00:00:00Z"}]')


async def test_a_plain_function_keeps_its_thread_and_its_worker_goes_on_beating(
    plain: Bench,
) -> None:
    """Its heartbeat timeout is 1 s and it takes longer: beats must go out meanwhile."""
    async with serving(plain):
        stamped = await asyncio.gather(
            one_call(plain, "stamp", "one"), one_call(plain, "stamp", "two")
        )

    assert list(stamped) == ["stamped one", "stamped two"]
    assert sorted(name for name, *_ in SEEN) == ["one", "two"]
    assert all(thread.startswith("theirs") for *_, thread in SEEN)
    assert len({key for _, key, _ in SEEN}) == 2


async def test_a_call_that_was_scheduled_without_the_plugin_is_adopted(plain: Bench) -> None:
    async def broken() -> bool:
        return CALLS["break_down"] > 0

    async with serving(plain, guarded=False):
        running = asyncio.create_task(failure_of(plain, "break_down"))
        await eventually(broken)
    # Its attempts ended, and nobody wrote a row.
    called = CALLS["break_down"]
    async with serving(plain) as ledger:
        failure = await running
        actions = await ledger.list()

    assert failure.type == "OutcomeUnknown"
    assert CALLS["break_down"] == called  # not sent again
    (action,) = actions
    assert (action.state, action.tool) == ("unknown", "break_down")
    assert action.position.startswith("unsigned.")


def test_rules_that_cannot_work_are_refused() -> None:
    @activity.defn
    async def collects(*items: str) -> None: ...

    with pytest.raises(DefinitionError, match="READ\\) has no key"):
        effect(Effect.READ, idempotency_key="order-{order_id}")
    with pytest.raises(DefinitionError, match="key_ttl and is no IDEMPOTENT"):
        effect(Effect.AT_MOST_ONCE, key_ttl=timedelta(hours=1))
    with pytest.raises(DefinitionError, match="0 to ten years"):
        effect(Effect.IDEMPOTENT, key_ttl=timedelta.max)
    with pytest.raises(DefinitionError, match="can be looked up"):
        effect(Effect.LOOKUP)
    with pytest.raises(DefinitionError, match=r"\*args"):
        Rules({}).add([effect(Effect.AT_MOST_ONCE)(collects)])
    with pytest.raises(DefinitionError, match="has no parameter order"):
        Rules({"charge": effect(Effect.IDEMPOTENT, idempotency_key="order-{order}")}).add([charge])
    with pytest.raises(DefinitionError, match="the activities ship have no effect"):
        Rules({}).add([ship])


async def test_what_is_known_is_written_anew_where_its_row_is_lost_while_the_ledger_is_away(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMITLINE_STATEMENT_SECONDS", "1")

    async def waits() -> bool:
        return bool(
            await bench.sql(
                "select 1 from pg_stat_activity where wait_event_type = 'Lock'"
                " and datname = current_database() and application_name = 'commitline'"
            )
        )

    async with (
        serving(bench) as ledger,
        await AsyncConnection.connect(bench.settings.database_url) as other,
    ):
        calling = asyncio.create_task(one_call(bench, "stamp", "ada"))
        await eventually(lambda: bench.sql("select 1 from agent_actions"))
        await other.execute("select from agent_actions for update")
        await eventually(waits)
        while await waits():  # until it has given the first record up  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await other.execute("delete from agent_actions")
        await other.commit()
        stamped = await calling
        (row,) = await ledger.list()

    assert stamped == "stamped ada"
    assert (row.state, row.result, len(SEEN)) == ("ok", '"stamped ada"', 1)


@pytest.mark.parametrize("name", ["regret", "relent"])
async def test_what_an_activity_makes_of_its_own_cancellation_proves_nothing(
    bench: Bench, name: str
) -> None:
    async with serving(bench) as ledger:
        workflow_id = fresh_id()
        calling = asyncio.ensure_future(one_call(bench, name, id=workflow_id))
        assert await asyncio.to_thread(BEGAN.wait, 60)
        await bench.temporal.get_workflow_handle(workflow_id).cancel()
        with pytest.raises(WorkflowFailureError):
            await calling

        async def ended() -> Sequence[Action]:
            return [one for one in await ledger.list() if one.state != "dispatched"]

        (action,) = await eventually(ended)

    assert (action.state, action.result) == ("unknown", None)


async def test_doctor_names_the_workers_of_a_queue_that_lack_the_plugin(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = bench.temporal.service_client.config.target_host
    monkeypatch.setenv("TEMPORAL_ADDRESS", target)
    monkeypatch.setenv("COMMITLINE_DATABASE_URL", bench.settings.database_url or "")
    queue = bench.settings.task_queue
    monkeypatch.setenv("COMMITLINE_TASK_QUEUE", queue)

    async def looked() -> Check:
        return next(one for one in await examine(queue) if one.name == f"queue {queue}")

    async def saw(state: str, text: str) -> bool:
        found = await looked()
        return found.state == state and text in found.found

    assert (await looked()).state == "missing"
    async with serving(bench):
        await eventually(lambda: saw("ok", "none without"))
        polled = await temporal_checks.workers()
        plain = await Client.connect(target, identity="old-worker")
        async with Worker(plain, task_queue=queue, activities=[charge]):
            await eventually(lambda: saw("wrong", "old-worker"))
    assert (polled.state, polled.found.partition(",")[0]) == ("ok", f"1 on {queue}")


async def test_what_a_guarded_worker_of_another_application_does_is_measured(bench: Bench) -> None:
    buffer = MetricBuffer(10_000)

    async with serving(bench, runtime=Runtime(telemetry=TelemetryConfig(metrics=buffer))):
        await one_call(bench, "charge", "4821", 4900)

    seen = {
        (one.metric.name, one.attributes.get("tool"), one.attributes.get("call"), one.value > 0)
        for one in buffer.retrieve_updates()
        if one.attributes.get("task_queue") == bench.settings.task_queue
    }
    assert ("commitline_tool_duration_seconds", "charge", None, True) in seen
    assert ("commitline_ledger_call_duration_seconds", None, "ActionLedger.claim", True) in seen
    # Also what did not happen.
    assert ("commitline_parks", "charge", None, False) in seen

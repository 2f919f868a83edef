"""A run is taken up again, by a crash, a reset, a retry or a deploy: the plan stays the plan."""

import asyncio
import json
from datetime import timedelta
from typing import Final
from uuid import UUID

import psycopg
import pytest
from temporalio.common import RetryPolicy

from commitline.activities.contract.encoding import pack
from commitline.errors import LedgerError
from commitline.examples.shop.app import app as shop
from commitline.ledger import ActionLedger, ledger_pool
from commitline.tests.crash.stage import SHOP, Aftermath, Played, Scene, Script, Stage, until
from commitline.worker import app_worker
from commitline.workflows import AGENT_RUN, RunInput

CHARGE_BODY: Final = '{"order_id": "4821", "amount_cents": 4900}'
CHARGE: Final = ("order-4821-charge", CHARGE_BODY)


def _crash(app: str, *, at: str, then: str | None = None) -> Script[Aftermath]:
    """Kill the worker of an app at a point; the same app, or another one, takes over."""

    async def play(scene: Scene) -> Aftermath:
        await scene.start()
        await scene.crash(app, at=at)
        return await scene.finish(then or app)

    return play


# --- a model that would plan something else if it were asked again


@pytest.fixture(scope="module")
def fickle(stage: Stage) -> Played[Aftermath]:
    points = ("after_completion", "completion_recorded", "after_effect@charge")
    return stage.play({point: _crash("plans:fickle", at=point) for point in points})


@pytest.mark.parametrize("point", ["completion_recorded", "after_effect@charge"])
def test_a_recorded_plan_is_not_asked_for_again(fickle: Played[Aftermath], point: str) -> None:
    after = fickle[point]

    assert after.turns == [0, 1]
    assert after.effects == {"charge:4821": 1}
    assert [action.tool for action in after.actions] == ["charge"]
    assert after.told("charge").status == "ok"


def test_a_plan_that_was_lost_before_it_was_recorded_is_asked_for_again(
    fickle: Played[Aftermath],
) -> None:
    after = fickle["after_completion"]

    assert after.turns == [0, 0, 1]
    assert after.effects == {"charge:4821": 1}
    assert [action.tool for action in after.actions] == ["charge_customer"]


# --- equal calls in one message


async def test_equal_calls_are_merged_by_their_domain_key_and_by_nothing_else(
    scene: Scene,
) -> None:
    async def both_mails_are_recorded() -> bool:
        rows = await scene.actions()
        return [row.state for row in rows if row.tool == "send_mail"] == ["ok", "ok"]

    await scene.start()
    scene.hold.touch()
    with scene.worker("services:twins", crash_at="after_effect@charge_card") as worker:
        await until(both_mails_are_recorded)
        scene.hold.unlink()
        await asyncio.to_thread(worker.wait_until_killed)

    after = await scene.finish("services:twins")

    assert after.effects == {"charge:4821": 1, "mail:ada@example.com": 2}
    assert after.sent["charge"] == [CHARGE, CHARGE]
    assert [result.status for result in after.results] == ["ok", "ok", "ok", "ok"]
    # Which of the two came first is the ledger's to say; the other one has its receipt.
    first, second = sorted(after.rows("charge_card"), key=lambda row: row.duplicate_of or "")
    told = {result.position: json.loads(result.content) for result in after.results}
    assert (first.duplicate_of, second.duplicate_of) == (None, first.key)
    assert told[first.position]["order_id"] == "4821"
    assert told[second.position]["existing"] is True
    assert told[second.position]["action"] == first.key
    assert told[second.position]["result"] == told[first.position]


# --- five calls in one message, one of each kind


@pytest.fixture(scope="module")
def mixed(stage: Stage) -> Aftermath:
    return stage.play({"mixed": _crash("plans:mixed", at="after_effect@charge")})["mixed"]


def test_each_call_of_a_mixed_message_has_one_result_in_order(mixed: Aftermath) -> None:
    assert [(r.call_id, r.position, r.name, r.status) for r in mixed.results] == [
        ("a", "0.0", "works", "ok"),
        ("b", "0.1", "raises", "unknown"),
        ("c", "0.2", "finds_nothing", "ok"),
        ("d", "0.3", "charge", "ok"),
        ("e", "0.4", "refnd", "error"),
    ]


def test_no_result_of_a_mixed_message_is_empty(mixed: Aftermath) -> None:
    told = {result.call_id: json.loads(result.content) for result in mixed.results}

    assert told["a"]["order_id"] == "A"
    assert "Exception" in told["b"]["unknown"]["reason"]
    assert told["c"] == []
    assert told["d"]["order_id"] == "4821"
    assert told["e"]["error"] == {
        "type": "UnknownTool",
        "message": (
            "there is no tool 'refnd'; the tools are: works, raises, finds_nothing, charge"
        ),
        "effect": "none",
    }


def test_each_effect_of_a_mixed_message_happens_once_and_its_text_is_kept(
    mixed: Aftermath,
) -> None:
    completion = mixed.conversation[1].completion

    assert mixed.effects == {"charge:A": 1, "charge:B": 1, "charge:C": 1, "charge:4821": 1}
    assert completion is not None
    assert completion.text == "I will do five things."


# --- arguments, from the intent on


@pytest.fixture(scope="module")
def arguments(stage: Stage) -> Played[Aftermath]:
    lost_answer = "after_effect@charge_card"
    return stage.play(
        {
            "spoiled": _crash("plans:spoiling", at="before_record@ship"),
            "default added": _crash("deploys:before", at=lost_answer, then="deploys:after"),
            "default added and sent": _crash(
                "deploys:before", at=lost_answer, then="deploys:after_sending_more"
            ),
            "default made up": _crash("deploys:made_up_default", at=lost_answer),
        }
    )


def test_a_tool_that_spoils_its_arguments_gets_them_whole_the_next_time(
    arguments: Played[Aftermath],
) -> None:
    after = arguments["spoiled"]
    (first_key, first_body), (second_key, second_body) = after.sent["parcel"]

    assert first_body == second_body == '{"order_id": "4821", "items": ["tea", "cup"]}'
    assert first_key == second_key
    assert after.effects == {"parcel:4821": 1}
    assert after.row("ship").args == '{"order_id":"4821","items":["tea","cup"]}'


@pytest.mark.parametrize("deployed", ["default added", "default added and sent"])
def test_a_parameter_added_by_a_deploy_is_not_given_to_what_was_begun(
    deployed: str, arguments: Played[Aftermath]
) -> None:
    after = arguments[deployed]

    assert after.sent["charge"] == [CHARGE]
    assert after.effects == {"charge:4821": 1}
    assert after.row("charge_card").args == '{"order_id":"4821","amount_cents":4900}'
    assert after.told("charge_card").status == "unknown"


def test_a_default_that_is_made_up_is_made_up_once(arguments: Played[Aftermath]) -> None:
    after = arguments["default made up"]
    (_, first_body), (_, second_body) = after.sent["charge"]
    reference = json.loads(first_body)["reference"]

    assert first_body == second_body
    assert str(UUID(reference)) == reference
    assert json.loads(after.row("charge_card").args)["reference"] == reference
    assert after.effects == {"charge:4821": 1}


# --- rows that a failover lost

_LOST: Final = {
    "action": ["agent_actions"],
    "action and key": ["agent_actions", "agent_domain_keys"],
    "everything but what was said": ["agent_actions", "agent_domain_keys", "agent_runs"],
}


@pytest.fixture(scope="module")
def failed_over(stage: Stage) -> Played[Aftermath]:
    def lose(tables: list[str]) -> Script[Aftermath]:
        async def play(scene: Scene) -> Aftermath:
            await scene.start()
            await scene.crash("services:till", at="after_effect@charge_card")
            await asyncio.to_thread(_empty, scene.settings.database_url, tables)
            return await scene.finish("services:till")

        return play

    return stage.play({what: lose(tables) for what, tables in _LOST.items()})


def _empty(database_url: str, tables: list[str]) -> None:
    with psycopg.connect(database_url) as connection:
        for table in tables:
            deleted = connection.execute(f"delete from {table}".encode())
            assert deleted.rowcount >= 1


@pytest.mark.parametrize("lost", _LOST)
def test_a_row_that_is_lost_after_the_effect_comes_back_with_the_same_key_and_body(
    failed_over: Played[Aftermath], lost: str
) -> None:
    after = failed_over[lost]

    assert after.sent["charge"] == [CHARGE, CHARGE]
    assert after.effects == {"charge:4821": 1}
    assert after.turns == [0, 1]
    assert (after.row("charge_card").state, after.output) == ("ok", "charged")


async def test_a_run_whose_conversation_is_lost_ends_and_asks_for_nothing_by_what_is_left(
    scene: Scene,
) -> None:
    everything = ["agent_actions", "agent_domain_keys", "agent_messages", "agent_threads"]
    run = await scene.start()
    await scene.crash("services:till", at="after_effect@charge_card")
    await asyncio.to_thread(_empty, scene.settings.database_url, [*everything, "agent_runs"])

    with scene.worker("services:till"), pytest.raises(LedgerError):
        async with asyncio.timeout(60):
            await run.result()

    assert scene.provider.effects("charge:4821") == 1
    assert scene.provider.sent("charge") == [CHARGE, CHARGE]
    assert scene.turns() == [0]
    (row,) = await scene.actions()
    assert row.state == "ok"


# --- reset, retry policy, cache


async def _finished_then_reset(scene: Scene, *, before: str) -> Aftermath:
    await scene.start()
    with scene.worker("services:till"):
        await scene.aftermath()
        await scene.reset(before=before)
        return await scene.aftermath()


async def _crashed_then_reset(scene: Scene, *, at: str, before: str) -> Aftermath:
    await scene.start()
    await scene.crash("services:till", at=f"{at}@charge_card")
    await scene.reset(before=before)
    return await scene.finish("services:till")


async def _retried_after_the_charge(scene: Scene) -> Aftermath:
    await scene.start(retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=100)))
    return await scene.finish("services:outage")


async def _timed_out_and_retried(scene: Scene) -> Aftermath:
    run = await scene.temporal.start_workflow(
        AGENT_RUN,
        pack(RunInput("support", "Please charge order 4821.")),
        id=scene.run_id,
        task_queue=scene.settings.task_queue,
        run_timeout=timedelta(seconds=6),
        retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=100)),
    )
    await scene.crash("services:till", at="after_effect@charge_card")
    killed_in = (await run.describe()).run_id

    async def next_execution() -> bool:
        return (await run.describe()).run_id != killed_in

    await until(next_execution)
    return await scene.finish("services:till")


@pytest.fixture(scope="module")
def begun_again(stage: Stage) -> Played[Aftermath]:
    return stage.play(
        {
            "finished, reset to before the charge": lambda scene: _finished_then_reset(
                scene, before="0.0"
            ),
            "finished, reset to before the model": lambda scene: _finished_then_reset(
                scene, before="0.model"
            ),
            "killed after the record, reset to before the model": lambda scene: _crashed_then_reset(
                scene, at="after_record", before="0.model"
            ),
            "killed after the effect, reset to before the charge": lambda scene: (
                _crashed_then_reset(scene, at="after_effect", before="0.0")
            ),
            "model out of service, retried by the workflow's policy": _retried_after_the_charge,
            "killed after the effect, timed out and retried": _timed_out_and_retried,
        }
    )


@pytest.mark.parametrize(
    ("story", "requests", "turns"),
    [
        ("finished, reset to before the charge", 1, [0, 1]),
        ("finished, reset to before the model", 1, [0, 1]),
        ("killed after the record, reset to before the model", 1, [0, 1]),
        ("killed after the effect, reset to before the charge", 2, [0, 1]),
        ("model out of service, retried by the workflow's policy", 1, [0, 1, 1]),
        ("killed after the effect, timed out and retried", 2, [0, 1]),
    ],
)
def test_a_run_that_begins_again_charges_once_and_asks_for_no_plan_twice(
    begun_again: Played[Aftermath], story: str, requests: int, turns: list[int]
) -> None:
    after = begun_again[story]

    assert after.effects == {"charge:4821": 1}
    assert after.sent["charge"] == [CHARGE] * requests
    assert after.turns == turns
    assert (after.row("charge_card").state, after.output) == ("ok", "charged")


async def test_a_worker_that_keeps_no_workflow_in_memory_charges_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PROVIDER_URL", scene.provider.url)
    await scene.start()
    await scene.crash(SHOP, at="after_effect@charge_card")

    async with (
        ledger_pool(scene.settings.database_url) as pool,
        app_worker(
            shop,
            client=scene.temporal,
            ledger=ActionLedger(pool),
            settings=scene.settings,
            max_cached_workflows=0,
        ),
    ):
        after = await scene.aftermath()

    assert after.effects["charge:4821"] == 1
    assert after.sent["charge"] == [CHARGE, CHARGE]
    assert after.told("charge_card").status == "ok"

"""Agents of other frameworks, killed by SIGKILL after an effect: with the plugin it counts once.

A test has all agents at once, each with a worker of its own, and compares what became of each.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

import pytest
from temporalio.exceptions import TimeoutType

from commitline.tests.frameworks.stage import Stage

FAMILIES = (
    "deepagents_shop",
    "genai_shop",
    "langgraph_shop",
    "mcp_shop",
    "openai_shop",
    "pydantic_shop",
)
SERVERS = ("openai_server", "openai_server@stateless")
"""Whose tools are an MCP server's."""
APART = (
    "adk_server",
    "adk_shop",
    "genai_server",
    "pydantic_server",
    "strands_server",
    "strands_shop",
)
"""Those that want MCP's first SDK, or an older OpenTelemetry than ours."""
SENT_ONCE = ("adk_server", "genai_server", "pydantic_server", "strands_server")
"""Whose calls carry no key to an MCP server, so that a charge is sent once, too."""
EACH_WORLD = pytest.mark.parametrize(
    "apps",
    [
        pytest.param(FAMILIES, id="families"),
        pytest.param(SERVERS, id="servers", marks=pytest.mark.slow),
        pytest.param(APART, id="apart", marks=[pytest.mark.slow, pytest.mark.frameworks]),
    ],
)
KEYED = ("mcp_shop", "openai_shop", "pydantic_shop")
"""Those whose charge has a key from the business."""
PARALLEL = ("deepagents_shop", "mcp_shop", "openai_shop", "pydantic_shop")
"""Those whose models ask for several calls in one message."""
DONE = [("charge_card", "ok"), ("send_mail", "ok")]
UNKNOWN = [("charge_card", "ok"), ("send_mail", "unknown")]

StageOf = Callable[[Sequence[str]], Stage]


@pytest.fixture
def apps() -> Sequence[str]:
    return FAMILIES


@pytest.fixture
def stage(apps: Sequence[str], stage_of: StageOf) -> Stage:
    return stage_of(apps)


@EACH_WORLD
async def test_a_killed_worker_charges_once_and_what_may_be_mailed_is_told_as_unknown(
    stage: Stage,
) -> None:
    told = await stage.play("charge_card", "send_mail")

    each, once = stage.each, dict.fromkeys(SENT_ONCE, 1)
    assert (stage.effects("charge"), stage.requests("charge")) == (each(1), each(2, **once))
    assert (stage.effects("mail"), stage.requests("mail")) == (each(1), each(1))
    charges, mails = ({app: one.split(" | ")[n] for app, one in told.items()} for n in (0, 1))
    lost = {app: "unknown" in one for app, one in charges.items()}
    assert lost == each(False, **dict.fromkeys(SENT_ONCE, True)), charges
    assert {app: "unknown" in one for app, one in mails.items()} == each(True), mails
    both = [("charge_card", "unknown"), ("send_mail", "unknown")]
    assert await stage.states() == each(UNKNOWN, **dict.fromkeys(SENT_ONCE, both))


@pytest.mark.slow
@EACH_WORLD
async def test_without_the_plugin_a_killed_worker_charges_and_mails_twice(stage: Stage) -> None:
    stage.guarded = False

    await stage.play("charge_card", "send_mail", HEARTBEAT="10", TIMEOUT="20")

    # A node of LangGraph makes both calls, and makes both again after the mail.
    assert stage.effects("charge") == stage.each(2, langgraph_shop=3)
    assert stage.effects("mail") == stage.each(2)


@pytest.mark.slow
async def test_a_reset_does_nothing_again_and_asks_no_model_again_whatever_it_would_answer(
    stage: Stage,
) -> None:
    handles = await stage.start()
    with stage.worker():
        told = await stage.ends(handles)
        asked = stage.model_calls()
    with stage.worker(SCRIPT="other"):
        again = await stage.ends(await stage.reset(handles))

    # The workflow of `temporalio-mcp` has no model: its own code plans otherwise.
    assert again == {**told, "mcp_shop": "failed: PlanDivergence"}
    assert stage.model_calls() == asked == stage.each(3, mcp_shop=0, langgraph_shop=2)
    assert stage.requests("charge") == stage.requests("mail") == stage.each(1)
    assert await stage.states() == stage.each(DONE)


@pytest.mark.slow
@pytest.mark.parametrize("apps", [[one for one in FAMILIES if one != "langgraph_shop"]])
async def test_another_plan_after_a_reset_is_refused_where_no_completion_is_recorded(
    stage: Stage,
) -> None:
    stage.environment["RECORD"] = "0"
    handles = await stage.start()
    with stage.worker():
        await stage.ends(handles)
    with stage.worker(SCRIPT="other"):
        again = await stage.ends(await stage.reset(handles))

    # genai hands any failure of a call to its model, and goes on.
    refused = {app: "PlanDivergence" in one for app, one in again.items()}
    assert refused == stage.each(True, genai_shop=False), again
    assert stage.effects("charge") == stage.effects("mail") == stage.each(1)
    assert stage.effects("mail", beside="-b") == stage.each(0)


@pytest.mark.slow
async def test_a_second_attempt_of_the_workflow_does_nothing_again(stage: Stage) -> None:
    handles = await stage.start("fails once", attempts=2)
    with stage.worker():
        told = await stage.ends(handles)

    assert {app: one.startswith("failed") for app, one in told.items()} == stage.each(False), told
    assert stage.model_calls() == stage.each(3, mcp_shop=0, langgraph_shop=2)
    assert stage.requests("charge") == stage.requests("mail") == stage.each(1)
    assert await stage.states() == stage.each(DONE)


@pytest.mark.slow
async def test_what_goes_on_as_a_new_execution_makes_calls_of_its_own_once(stage: Stage) -> None:
    handles = await stage.start("goes on")
    with stage.worker():
        told = await stage.ends(handles)
        again = await stage.ends(await stage.reset(handles))

    assert again == told
    # The same business fact: the first charge answers the second call.
    charged = stage.each(2, **dict.fromkeys(KEYED, 1))
    assert (stage.effects("charge"), stage.requests("charge")) == (charged, charged)
    assert stage.effects("mail") == stage.requests("mail") == stage.each(2)
    assert await stage.states() == stage.each(sorted(DONE * 2))


@pytest.mark.slow
@pytest.mark.parametrize("apps", [PARALLEL])
async def test_twelve_parallel_calls_of_one_type_are_made_once_and_read_back_after_a_reset(
    stage: Stage,
) -> None:
    stage.environment["SCRIPT"] = "many"
    handles = await stage.start()
    with stage.worker():
        told = await stage.ends(handles)
        again = await stage.ends(await stage.reset(handles))

    assert again == told
    sent = [json.loads(body)["order_id"] for _, body in stage.provider.sent("charge")]
    orders = {f"{app}-{turn}{n}" for app in PARALLEL for turn in range(2) for n in range(6)}
    assert (len(sent), set(sent)) == (12 * len(PARALLEL), orders)
    assert await stage.states() == stage.each([("charge_card", "ok")] * 12)


@pytest.mark.slow
@pytest.mark.parametrize("apps", [["openai_shop", "pydantic_shop"]])
async def test_two_agents_in_one_workflow_do_nothing_twice_whichever_is_slow(stage: Stage) -> None:
    handles = await stage.start("two agents")
    with stage.worker(SLOW="a"):
        told = await stage.ends(handles)
    with stage.worker(SLOW="b"):
        again = await stage.ends(await stage.reset(handles))

    # They share the counters: what a reset orders otherwise is refused, and never done again.
    for app, one in again.items():
        assert one == told[app] or one == "failed: PlanDivergence", again
    for beside in ("-a", "-b"):
        assert stage.effects("charge", beside=beside) == stage.each(1)
        assert stage.effects("mail", beside=beside) == stage.each(1)


@pytest.mark.slow
@pytest.mark.parametrize("apps", [["genai_shop", "openai_shop"]])
async def test_an_id_that_all_activities_share_is_no_position(stage: Stage) -> None:
    stage.environment |= {"ACTIVITY_ID": "1", "SCRIPT": "mails"}
    handles = await stage.start()
    with stage.worker():
        await stage.ends(handles)
        await stage.ends(await stage.reset(handles))

    # Two equal calls and another one, each once.
    assert stage.effects("mail") == stage.requests("mail") == stage.each(2)
    assert stage.effects("mail", beside="-b") == stage.each(1)


@pytest.mark.slow
@pytest.mark.parametrize("apps", [["genai_shop", "openai_shop", "pydantic_shop"]])
async def test_a_call_that_a_tool_refuses_has_no_effect_and_the_next_one_is_made(
    stage: Stage,
) -> None:
    stage.environment["SCRIPT"] = "refused"
    told = await stage.play()

    assert {app: "too much" in one for app, one in told.items()} == stage.each(True), told
    assert stage.effects("charge") == stage.requests("charge") == stage.each(1)
    rows = await stage.rows()
    ended = {app: [(one.state, one.effect_possible) for one in of] for app, of in rows.items()}
    assert ended == stage.each([("error", False), ("ok", True)])
    keys = {app: of[1].idempotency_key for app, of in rows.items()}
    for app in set(KEYED) & set(stage.apps):
        assert str(keys[app]).endswith("-charge~2")


@pytest.mark.slow
@pytest.mark.parametrize("apps", [[one for one in FAMILIES if one != "langgraph_shop"]])
async def test_a_tool_that_may_be_tried_once_is_tried_as_often_as_workers_die(
    stage: Stage,
) -> None:
    await stage.play("charge_card", "send_mail", ATTEMPTS="1", HEARTBEAT="10")

    assert (stage.effects("charge"), stage.requests("charge")) == (stage.each(1), stage.each(2))
    assert (stage.effects("mail"), stage.requests("mail")) == (stage.each(1), stage.each(1))
    assert await stage.states() == stage.each(UNKNOWN)


@pytest.mark.slow
async def test_a_dead_worker_is_noticed_where_no_heartbeat_time_out_is_set(stage: Stage) -> None:
    handles = await stage.start()
    await stage.die_after("charge_card", HEARTBEAT="0")
    died = time.monotonic()
    with stage.worker(HEARTBEAT="0"):
        await stage.ends(handles)

    assert time.monotonic() - died < 100, "as long as the activity may take"
    assert (stage.effects("charge"), stage.requests("charge")) == (stage.each(1), stage.each(2))


@pytest.mark.slow
async def test_a_plugin_that_comes_while_calls_are_under_way_adopts_them(stage: Stage) -> None:
    stage.guarded = False
    handles = await stage.start()
    await stage.die_after("send_mail", HEARTBEAT="10", TIMEOUT="20")
    stage.guarded = True
    with stage.worker():
        told = await stage.ends(handles)

    # A node of LangGraph cannot tell what it did before the plugin came, and charges again.
    assert stage.effects("charge") == stage.each(1, langgraph_shop=2)
    assert stage.effects("mail") == stage.each(1)
    unknown = {app: '"unknown"' in one.split(" | ")[1] for app, one in told.items()}
    assert unknown == stage.each(True), told


@pytest.mark.slow
async def test_workers_without_the_plugin_that_take_over_are_named_by_doctor(stage: Stage) -> None:
    handles = await stage.start()
    await stage.die_after("send_mail")
    stage.guarded = False
    with stage.worker():
        await stage.ends(handles)
        named = {app: await stage.doctor(f"{stage.queue}-{app}") for app in stage.apps}

    # They see no ledger, so it is done again.
    assert stage.effects("mail") == stage.each(2)
    assert {app: one["state"] for app, one in named.items()} == stage.each("wrong"), named


@pytest.mark.slow
@pytest.mark.parametrize("guarded", [False, True])
async def test_a_history_replays_with_the_plugin_and_without_it(
    stage: Stage, guarded: bool
) -> None:
    stage.guarded = guarded
    handles = await stage.start()
    with stage.worker():
        await stage.ends(handles)

    stage.guarded = not guarded
    await stage.replay(handles)


@pytest.mark.slow
@pytest.mark.parametrize("apps", [KEYED])
@pytest.mark.parametrize("approve", [True, False])
async def test_a_mail_waits_for_a_person_and_outlives_its_worker(
    stage: Stage, approve: bool
) -> None:
    stage.environment["APPROVE"] = "1"
    handles = await stage.start()
    with stage.worker():
        found = await stage.waiting(handles)
    # That worker was killed by SIGKILL.
    mailed = stage.provider.requests("mail")
    edited = {"to": "eve@example.com"} if approve else None
    if edited is None:
        await stage.decide(handles, found, approve=False, reason="not now")
    with stage.worker():
        if edited is not None:
            await stage.decide(handles, found, approve=True, args=edited)
        told = await stage.ends(handles)

    assert mailed == 0
    assert {app: json.loads(one.args) for app, one in found.items()} == {
        app: {"to": app} for app in stage.apps
    }
    assert (stage.effects("charge"), stage.effects("mail")) == (stage.each(1), stage.each(0))
    assert stage.provider.effects("mail:eve@example.com") == (len(KEYED) if approve else 0)
    for one in [] if approve else told.values():
        refused = json.loads(one.split(" | ")[1])
        assert (refused["status"], refused["effect"]) == ("error", "none")
        assert refused["message"] == "not executed: rejected by ada: not now"


@pytest.mark.slow
@pytest.mark.parametrize("apps", [["openai_shop"]])
async def test_an_undo_whose_worker_is_killed_in_the_middle_refunds_once(stage: Stage) -> None:
    handles = await stage.start()
    with stage.worker():
        await stage.ends(handles)
    run = handles["openai_shop"].id
    async with stage.undoing(run) as undo:
        await stage.die_after("refund")
        with stage.worker():
            report = await undo
            rows = json.loads((await stage.command("actions", "list", "--run", run, "--json"))[1])

    assert (stage.effects("refund"), stage.requests("refund")) == (stage.each(1), stage.each(2))
    fates = {one["tool"]: one["fate"] for one in report["actions"]}
    assert fates == {"send_mail": "stands", "charge_card": "undone"}
    assert sorted(one["tool"] for one in rows) == ["charge_card", "refund", "send_mail"]


@pytest.mark.slow
@pytest.mark.parametrize("apps", [["pydantic_asks"]])
async def test_a_call_that_only_asked_holds_nothing_and_the_resumed_one_acts_once(
    stage: Stage,
) -> None:
    handles = await stage.start()
    await stage.die_after("charge_card")
    with stage.worker():
        told = await stage.ends(handles)
        again = await stage.ends(await stage.reset(handles))

    assert told == again
    assert (stage.effects("charge"), stage.requests("charge")) == (stage.each(1), stage.each(2))
    assert await stage.states() == stage.each([("charge_card", "error"), ("charge_card", "ok")])


@pytest.mark.slow
@pytest.mark.parametrize("apps", [["langgraph_shop"]])
async def test_what_a_node_did_before_its_interrupt_is_read_back_when_it_goes_on(
    stage: Stage,
) -> None:
    handles = await stage.start()
    await handles["langgraph_shop"].signal("answer", "eve@example.com")
    with stage.worker(ASKS="1"):
        told = await stage.ends(handles)

    assert "unknown" not in told["langgraph_shop"]
    assert stage.effects("charge") == stage.requests("charge") == stage.each(1)
    assert stage.provider.effects("mail:eve@example.com") == 1
    assert stage.provider.requests("mail") == 1
    assert await stage.states() == stage.each(DONE)


@pytest.mark.slow
@pytest.mark.parametrize("apps", [["mcp_shop"]])
async def test_hints_of_an_mcp_server_count_where_they_are_trusted(stage: Stage) -> None:
    told = await stage.play("charge_card", "send_mail", HINTS="1")

    assert (stage.effects("charge"), stage.requests("charge")) == (stage.each(1), stage.each(2))
    assert (stage.effects("mail"), stage.requests("mail")) == (stage.each(1), stage.each(1))
    assert "unknown" in told["mcp_shop"].split(" | ")[1]
    # What only reads has no row.
    assert await stage.states() == stage.each(UNKNOWN)


@pytest.mark.slow
@pytest.mark.parametrize("apps", [["openai_server@stateful"]])
async def test_a_stateful_server_that_dies_with_its_worker_leaves_the_charge_unknown(
    stage: Stage,
) -> None:
    handles = await stage.start()
    await stage.die_after("charge_card")
    with stage.worker():
        told = await stage.ends(handles)

    # Its task queue had that one worker. The framework ends the run by its next request to the
    # server, which no worker takes: the time-out schedule_to_start.
    assert told == stage.each(f"failed: {TimeoutType.SCHEDULE_TO_START.value}")
    assert stage.effects("charge") == stage.requests("charge") == stage.each(1)
    assert await stage.states() == stage.each([("charge_card", "unknown")])

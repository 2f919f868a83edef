"""Plans on real servers: in order and side by side, undone backwards, past what nothing undoes."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from commitline import (
    AgentClient,
    App,
    Effect,
    Plan,
    PlanHandle,
    ToolContext,
    ToolRefused,
    result_of,
    step,
    tool,
)
from commitline.activities.contract.encoding import pack
from commitline.activities.contract.plans import PlanInput, PlannedStep
from commitline.errors import (
    CommitlineError,
    PlanFailed,
    PlanInvalid,
    ResetRefused,
    RunDeadlineExceeded,
    RunFailed,
    RunInputConflict,
    RunNotRunning,
    ToolNotServed,
)
from commitline.ledger import Outcome
from commitline.operating.run_list import newest_runs

from .bench import Bench, eventually, fresh_id


class Shop:
    """What a plan calls, and what reached it, in order; one effect per idempotency key."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.keys: set[str] = set()
        self.refusing: set[str] = set()
        """Tools that decline."""
        self.losing: set[str] = set()
        """Tools whose answer is lost, once."""
        self.slow = 0.0

        @tool(effect=Effect.IDEMPOTENT)
        async def release(ctx: ToolContext, result: dict[str, Any]) -> str:
            """Release a reservation."""
            return await self._does(ctx, f"release {result['id']}")

        @tool(effect=Effect.IDEMPOTENT, compensate=release, summary="Reserve {item}")
        async def reserve(ctx: ToolContext, item: str) -> dict[str, Any]:
            """Reserve stock."""
            await self._does(ctx, f"reserve {item}")
            return {"id": f"r-{item}", "boxes": [1, 2]}

        @tool(effect=Effect.IDEMPOTENT)
        async def refund(ctx: ToolContext, order_id: str) -> str:
            """Refund a charge."""
            return await self._does(ctx, f"refund {order_id}")

        @tool(
            effect=Effect.IDEMPOTENT,
            idempotency_key="order-{order_id}-charge",
            tries=1,
            compensate=refund,
        )
        async def charge(ctx: ToolContext, order_id: str, cents: int = 100) -> str:
            """Charge an order."""
            return await self._does(ctx, f"charge {order_id} {cents}")

        @tool(effect=Effect.AT_MOST_ONCE, approval=lambda arguments: arguments["to"] == "abroad")
        async def ship(ctx: ToolContext, reservation: str, to: str = "home") -> str:
            """Ship a parcel: the step that nothing undoes."""
            return await self._does(ctx, f"ship {reservation}")

        @tool(effect=Effect.IDEMPOTENT, tries=1)
        async def notify(ctx: ToolContext, text: str) -> str:
            """Tell the customer, time after time."""
            return await self._does(ctx, f"notify {text}")

        @tool(effect=Effect.READ)
        async def look(what: Any) -> Any:
            """Look at something."""
            await asyncio.sleep(self.slow)
            return what

        self.reserve, self.charge, self.ship, self.notify = reserve, charge, ship, notify
        self.look = look
        self.app = App(tools=[reserve, charge, ship, notify, look])

    async def _does(self, ctx: ToolContext, what: str) -> str:
        if ctx.tool in self.refusing:
            raise ToolRefused("not today")
        await asyncio.sleep(self.slow)
        if ctx.idempotency_key not in self.keys:
            self.keys.add(ctx.idempotency_key)
            self.log.append(what)
        if ctx.tool in self.losing:
            self.losing.remove(ctx.tool)
            raise ConnectionError("no answer")
        return f"{ctx.tool}d"

    def plan(self, *, to: str = "home") -> Plan:
        """Four steps, each of them on the way to the pivot, and two beyond it."""
        parcel = {"reservation": result_of("reserve", "id"), "to": to}
        return Plan(
            "fulfil",
            [
                step(self.reserve, {"item": "tea"}),
                step(self.reserve, {"item": "cup"}, name="reserve a cup"),
                step(self.charge, {"order_id": "1", "cents": 4900}),
                step(self.ship, parcel),
                [
                    step(self.notify, {"text": result_of("ship")}),
                    step(self.notify, {"text": "thanks"}, name="thank"),
                ],
            ],
        )


DONE = ["reserve tea", "reserve cup", "charge 1 4900"]
UNDONE = ["refund 1", "release r-cup", "release r-tea"]


async def failed(run: PlanHandle, kind: type[CommitlineError] = PlanFailed) -> str:
    with pytest.raises(kind) as raised:
        async with asyncio.timeout(60):
            await run.result()
    return str(raised.value)


async def test_a_plan_runs_in_order_and_its_steps_use_what_earlier_ones_returned(
    bench: Bench,
) -> None:
    shop = Shop()
    plan, given = shop.plan(), fresh_id("plan")

    async with bench.serving(shop.app) as client:
        run = await client.start_plan(plan, id=given)
        again = await client.start_plan(shop.plan(), id=given, run_deadline=60)
        result = await run.result()
        assert await again.result() == result
        with pytest.raises(RunInputConflict):
            await client.start_plan(Plan("fulfil", plan.steps[:1]), id=given)
        with pytest.raises(RunFailed, match=r"AgentClient\.plan"):
            await client.run(given).result()
        status, actions = await run.status(), await run.actions()
        runs = await eventually(lambda: newest_runs(client, limit=100))
        report = await run.undo()

    assert shop.log == [*DONE, "ship r-tea", *sorted(shop.log[4:6]), *UNDONE]
    assert sorted(shop.log[4:6]) == ["notify shipd", "notify thanks"]
    assert result["reserve"] == {"id": "r-tea", "boxes": [1, 2]}
    assert [(one.name, one.position, one.tool) for one in result.steps] == [
        ("reserve", "0.0", "reserve"),
        ("reserve a cup", "1.0", "reserve"),
        ("charge", "2.0", "charge"),
        ("ship", "3.0", "ship"),
        ("notify", "4.0", "notify"),
        ("thank", "4.1", "notify"),
    ]
    assert [one.action_key for one in result.steps] == [one.key for one in actions]
    assert status.state == "completed"
    assert status.progress is not None
    assert [call.summary for call in status.progress.calls][:2] == ["Reserve tea", "Reserve cup"]
    assert "fulfil" in [one.agent for one in runs if one.id == given]
    # Once a person asks for it, what can be undone is.
    assert (report.state, len(report.standing)) == ("compensated", 3)


async def test_the_steps_of_a_stage_run_side_by_side(bench: Bench) -> None:
    shop = Shop()
    shop.slow = 0.2
    reads = [step(shop.look, {"what": number}, name=f"look {number}") for number in range(20)]
    answer = step(
        shop.look,
        {"what": {"all": [result_of(one) for one in reads], "$ref": "look 1", "none": None}},
    )

    async with bench.serving(shop.app) as client:
        began = time.monotonic()
        run = await client.start_plan(Plan("look", [reads, answer]), id=fresh_id())
        result = await run.result()
        took = time.monotonic() - began
        assert await run.actions() == []

    assert result["look"] == {"$ref": "look 1", "all": list(range(20)), "none": None}
    assert took < 0.2 * 20, "one after the other would take longer"


@pytest.mark.parametrize("lost", [False, True], ids=["refused", "unknown"])
async def test_what_a_plan_did_is_undone_backwards_when_a_step_fails_for_good(
    bench: Bench, lost: bool
) -> None:
    shop = Shop()
    why = "the step 'ship' (ship at 3.0) failed: ToolRefused: not today"
    shop.refusing.add("ship")
    if lost:
        # Unknown at its only try: settled by its key, without a second effect, then undone.
        why = "the step 'charge' (charge at 2.0) is unknown, and may have happened"
        shop.losing.add("charge")

    async with bench.serving(shop.app) as client:
        run = await client.start_plan(shop.plan(), id=fresh_id())
        told = await failed(run)
        report = await run.undo_report()
        await bench.reset(run.id)  # an operator's, past us: nothing opens the run again
        await failed(client.plan(run.id), RunNotRunning)
        with pytest.raises(ResetRefused):
            await run.reset(to_step=0)

    assert shop.log == [*DONE, *UNDONE]
    assert why in told
    assert "The run is compensated: 3 undone" in told
    assert "[CL510]" in told
    assert [(one.position, one.fate) for one in report.actions] == [
        ("2.0", "undone"),
        ("1.0", "undone"),
        ("0.0", "undone"),
    ]


async def test_a_pivot_that_is_unknown_is_kept_and_settled_and_the_plan_goes_on(
    bench: Bench,
) -> None:
    """To undo the rest may leave the parcel on its way, and nobody charged."""
    shop = Shop()
    shop.losing.add("ship")

    async with bench.serving(shop.app) as client:
        run = await client.start_plan(shop.plan(), id=fresh_id())
        told = await failed(run)
        log = list(shop.log)
        (row,) = [one for one in await run.actions() if one.state == "unknown"]
        ledger = await client.ledger()
        await ledger.settle(row.key, Outcome.ok('"found"'), by="ada")
        with pytest.raises(ResetRefused, match="no stage 4"):
            await run.reset(to_step=4)
        with pytest.raises(ResetRefused, match="is a plan"):
            await run.reset(to_step=3, fork=True)
        back = await run.reset(to_step=3)
        result = await client.plan(run.id).result()

    assert [one.tool for one in back.actions] == ["ship"]
    assert log == [*DONE, "ship r-tea"]
    assert "the step 'ship' (ship at 3.0) is unknown" in told
    assert "Nothing was undone by itself, since 'ship' took effect, or may have" in told
    assert (result["ship"], row.tool) == ("found", "ship")
    assert shop.log[4:] == ["notify found", "notify thanks"] or shop.log[4:] == [
        "notify thanks",
        "notify found",
    ]


async def test_past_the_pivot_a_plan_only_goes_forward(bench: Bench) -> None:
    shop = Shop()
    shop.losing.add("notify")  # whose one try is used up: it goes on all the same

    async with bench.serving(shop.app) as client:
        done = await (await client.start_plan(shop.plan(), id=fresh_id())).result()
        shop.refusing.add("notify")
        steps = [step(shop.charge, {"order_id": "2"}), step(shop.ship, {"reservation": "r"})]
        late = Plan("late", [*steps, step(shop.notify, {"text": "late"})])
        run = await client.start_plan(late, id=fresh_id())
        told = await failed(run)
        log = list(shop.log)
        report = await run.undo()

    assert done["notify"] == "notifyd"
    assert log[-2:] == ["charge 2 100", "ship r"], "and nothing was undone"
    assert "Nothing was undone by itself, since 'ship' took effect" in told
    assert shop.log[len(log) :] == ["refund 2"]
    assert [one.tool for one in report.standing] == ["ship"]


async def test_a_step_that_a_person_rejects_has_the_rest_undone(bench: Bench) -> None:
    shop = Shop()

    async with bench.serving(shop.app) as client:
        approved = await client.start_plan(shop.plan(to="abroad"), id=fresh_id())
        (asked,) = await eventually(approved.approvals)
        await approved.decide(asked.position, approve=True, by="ada")
        await approved.result()
        shop.log.clear()
        shop.keys.clear()
        steps = [step(shop.reserve, {"item": "jar"}), step(shop.ship, {"reservation": "r"})]
        steps[1] = step(shop.ship, {"reservation": result_of("reserve", "id"), "to": "abroad"})
        rejected = await client.start_plan(Plan("abroad", steps), id=fresh_id())
        (asked,) = await eventually(rejected.approvals)
        await rejected.decide(asked.position, approve=False, by="bob", reason="embargo")
        told = await failed(rejected)

    assert asked.args == '{"reservation":"r-jar","to":"abroad"}'
    assert "not executed: rejected by bob: embargo" in told
    assert shop.log == ["reserve jar", "release r-jar"]


async def test_a_plan_is_stopped_and_undone_or_left_as_it_is(bench: Bench) -> None:
    shop = Shop()

    async def waiting(client: AgentClient) -> PlanHandle:
        run = await client.start_plan(shop.plan(to="abroad"), id=fresh_id())
        await eventually(run.approvals)
        return run

    async with bench.serving(shop.app) as client:
        undone = await waiting(client)
        status = await undone.stop(reason="changed", compensate=True)
        log = list(shop.log)
        left = await waiting(client)
        await left.stop(reason="enough")
        report = await left.undo_report()

    assert status.state == "canceled"
    assert log == [*DONE, *UNDONE]
    assert [one.fate for one in report.actions] == ["stands"] * 3


async def test_a_plan_that_is_stopped_before_it_opens_ends_as_canceled(bench: Bench) -> None:
    shop = Shop()
    async with AgentClient(bench.temporal, bench.settings) as client:
        run = await client.start_plan(shop.plan(), id=fresh_id())
        await (await client.ledger()).runs.stop(
            await bench.run_key(client.run(run.id)),
            workflow_id=run.id,
            agent="",
            reason="enough",
            attempt_at=datetime.now(tz=UTC),
        )

        async def refused() -> bool:
            events = (await bench.history(run.id)).events  # a local activity leaves a marker
            return any(e.marker_recorded_event_attributes.HasField("failure") for e in events)

        async with bench.serving(shop.app):
            await eventually(refused)
            status = await run.stop()  # its cancellation comes now
    rows = await bench.sql("select state, stop_reason, namespace from agent_runs")

    assert (status.state, shop.log) == ("canceled", [])
    assert rows == [("stopping", "enough", bench.temporal.namespace)]


@pytest.mark.parametrize("at", ["the beginning", "1.0"])
async def test_a_plan_that_is_reset_in_the_middle_of_its_undo_goes_on_with_that(
    bench: Bench, at: str
) -> None:
    """Its second step, which changes nothing, succeeds when it is taken again."""
    refunded: set[str] = set()
    refunding, go_on = asyncio.Event(), asyncio.Event()
    looks: list[str] = []

    @tool(effect=Effect.IDEMPOTENT)
    async def refund(ctx: ToolContext, order_id: str) -> str:
        refunding.set()
        await go_on.wait()
        refunded.add(ctx.idempotency_key)
        return "refunded"

    @tool(effect=Effect.IDEMPOTENT, compensate=refund)
    async def charge(order_id: str) -> str:
        return "charged"

    @tool(effect=Effect.READ)
    async def look(order_id: str) -> str:
        looks.append(order_id)
        if len(looks) == 1:
            raise ToolRefused("not now")
        return "fine"

    plan = Plan("pay", [step(charge, {"order_id": "1"}), step(look, {"order_id": "1"})])
    async with bench.serving(App(tools=[charge, refund, look])) as client:
        run = await client.start_plan(plan, id=fresh_id())
        await refunding.wait()
        to = None if at == "the beginning" else await bench.task_before(run.id, at)
        await bench.reset(run.id, to=to)
        go_on.set()
        told = await failed(run, RunNotRunning)
        report = await run.undo_report()

    assert "The run is compensated: 1 undone" in told
    assert len(refunded) == 1
    assert report.state == "compensated"


async def test_a_run_deadline_stops_a_plan_and_undoes_it_while_nothing_is_final(
    bench: Bench,
) -> None:
    shop = Shop()

    async with bench.serving(shop.app) as client:
        run = await client.start_plan(shop.plan(to="abroad"), id=fresh_id(), run_deadline=1.5)
        await failed(run, RunDeadlineExceeded)
        log = list(shop.log)
        shop.slow = 30
        steps = [step(shop.ship, {"reservation": "r"})]
        hangs = await client.start_plan(Plan("hang", steps), id=fresh_id(), run_deadline=1)
        told = await failed(hangs, RunDeadlineExceeded)
        hung = await hangs.actions()

    assert log == [*DONE, *UNDONE]
    assert "The run is" not in told
    assert [one.state for one in hung] == ["unknown"]


async def test_a_restarted_worker_goes_on_with_each_step_once(bench: Bench) -> None:
    shop = Shop()
    given = fresh_id()

    async with bench.serving(shop.app) as client:
        run = await client.start_plan(shop.plan(to="abroad"), id=given)
        (asked,) = await eventually(run.approvals)
    async with bench.serving(shop.app) as client:
        run = client.plan(given)
        await run.decide(asked.position, approve=True, by="ada")
        result = await run.result()
        await bench.reset(given)
        assert await client.plan(given).result() == result

    assert shop.log[:4] == [*DONE, "ship r-tea"]
    assert sorted(shop.log[4:]) == ["notify shipd", "notify thanks"]


async def test_a_receipt_of_an_earlier_run_is_used_and_never_undone(bench: Bench) -> None:
    shop = Shop()
    charged = step(shop.charge, {"order_id": "7"})
    uses = step(shop.look, {"what": result_of("charge")})

    async with bench.serving(shop.app) as client:
        await (await client.start_plan(Plan("first", [charged]), id=fresh_id())).result()
        used = await (
            await client.start_plan(Plan("next", [charged, uses]), id=fresh_id())
        ).result()
        other = step(shop.charge, {"order_id": "7", "cents": 1}, name="other")
        shop.refusing.add("ship")
        ships = step(shop.ship, {"reservation": "r"})
        run = await client.start_plan(Plan("third", [charged, ships]), id=fresh_id())
        told = await failed(run)
        conflict = await client.start_plan(Plan("fourth", [other]), id=fresh_id())
        why = await failed(conflict)

    assert (used["look"], used.step("charge").existing) == ("charged", True)
    assert shop.log == ["charge 7 100"]
    assert "ToolRefused" in told
    assert "the step 'other' (charge at 0.0) failed: IdempotencyKeyConflict" in why


async def test_what_a_step_refers_to_has_to_be_there_and_to_fit_into_a_message(
    bench: Bench,
) -> None:
    shop = Shop()
    reserved = step(shop.reserve, {"item": "tea"})
    big = step(shop.look, {"what": "x" * 300_000})

    async with bench.serving(shop.app) as client:
        lacking = step(shop.look, {"what": result_of("reserve", "boxes", 2)}, name="third box")
        run = await client.start_plan(Plan("lacking", [reserved, lacking]), id=fresh_id())
        told = await failed(run)
        again = step(shop.look, {"what": [result_of("look")]}, name="again")
        missing = step(shop.look, {"what": result_of("look", "there")}, name="missing")
        much = await client.start_plan(Plan("much", [big, again]), id=fresh_id())
        used = await much.result()
        amiss = await failed(await client.start_plan(Plan("m", [big, missing]), id=fresh_id()))

    assert "'third box' was not carried out: result_of('reserve', 'boxes', 2) is not in" in told
    assert shop.log == ["reserve tea", "release r-tea"]
    assert (used["look"], used["again"]) == ("x" * 300_000, ["x" * 300_000])
    assert "its arguments cannot be made: result_of('look', 'there') is not in what" in amiss


async def test_large_results_do_not_travel_and_are_used_and_undone_whole(bench: Bench) -> None:
    given: list[tuple[str, str]] = []

    @tool(effect=Effect.IDEMPOTENT)
    async def shrink(result: str, what: str) -> str:
        given.append(("shrink", result[-1]))
        assert (len(what), len(result)) in ((1, 250_001), (250_001, 250_001))
        return "y" * 250_000

    @tool(
        effect=Effect.IDEMPOTENT,
        compensate=shrink,
        approval=lambda arguments: arguments["what"].endswith("c"),
    )
    async def grow(what: str) -> str:
        given.append(("grow", what[-1]))
        return "x" * 250_000 + chr(ord(what[-1]) + 1)

    @tool(effect=Effect.IDEMPOTENT)
    async def fail(what: str) -> None:
        raise ToolRefused("no")

    steps = [step(grow, {"what": "a"}, name="0")]
    steps += [step(grow, {"what": result_of(f"{n}")}, name=f"{n + 1}") for n in range(4)]
    plan = Plan("grow", [*steps, step(fail, {"what": result_of("4")})])
    async with bench.serving(App(tools=[grow, fail])) as client:
        run = await client.start_plan(plan, id=fresh_id())
        (asked,) = await eventually(run.approvals)
        await run.decide(asked.position, approve=True, by="ada")
        told = await failed(run)
        info = (await run.describe()).raw_description.workflow_execution_info

    forward = [("grow", letter) for letter in "abcde"]
    assert given == [*forward, *(("shrink", letter) for letter in "fedcb")]
    assert (asked.position, asked.args[-3:]) == ("2.0", 'c"}')
    assert "The run is compensated: 5 undone" in told
    assert info.history_size_bytes < 100_000, "of 5 MB"


async def test_a_worker_checks_a_plan_by_the_tools_that_it_serves(bench: Bench) -> None:
    shop = Shop()
    by_name = [step("ship", {"reservation": "r"}), step("charge", {"order_id": "1"})]
    by_hand = PlanInput("by hand", [[PlannedStep("ship", "ship", '{"reservation":1}')]])

    async with bench.serving(shop.app) as client:
        run = await client.start_plan(Plan("by name", by_name), id=fresh_id())
        with pytest.raises(PlanInvalid, match="'ship' must be undoable: 'charge' follows it"):
            await run.result()
        hand = fresh_id()
        await client.temporal.start_workflow(
            "PlanRun", pack(by_hand), id=hand, task_queue=bench.settings.task_queue
        )
        with pytest.raises(PlanInvalid, match="'ship': ship: reservation"):
            await client.plan(hand).result()
        unknown = await client.start_plan(Plan("x", [step("fly")]), id=fresh_id())
        with pytest.raises(ToolNotServed, match="'fly'"):
            await unknown.result()

    assert shop.log == []

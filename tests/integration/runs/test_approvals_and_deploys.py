"""Calls that a person may have to approve, while newer code asks otherwise, or calls otherwise."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator
from temporalio.common import RetryPolicy

from commitline import Agent, App, Effect, Plan, ScriptedModel, step, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import call, say
from commitline.canonical import digest, parse
from commitline.errors import ModelUnavailable
from commitline.ledger import Outcome
from commitline.tests.builders import action_request, attempt, dispatched

from .bench import Bench, eventually, fresh_id, one_agent
from .playing import replies_of, within
from .relay_bench import ledger_of

REFUSING: list[str] = []
"""Orders that the validator does not let through any more."""


def still_there(order_id: str) -> str:
    if order_id in REFUSING:
        raise ValueError("no such order any more")
    return order_id


@pytest.fixture(autouse=True)
def _none_refused() -> None:
    REFUSING.clear()


class Paid:
    """A tool that asks nobody at first; `deploy` makes one of its rules stricter.

    Args:
        newer: The rule that is newer then, ``predicate`` or ``validator``.
    """

    def __init__(self, newer: str) -> None:
        self.calls: list[str] = []
        self.deployed = False
        self._newer = newer

        @tool(
            effect=Effect.IDEMPOTENT,
            approval=lambda _: self.deployed and newer == "predicate",
        )
        async def refund(order_id: Annotated[str, AfterValidator(still_there)]) -> str:
            """Refund an order."""
            self.calls.append(order_id)
            return "refunded"

        self.tool = refund

    def deploy(self) -> None:
        self.deployed = True
        if self._newer == "validator":
            REFUSING.append("4821")


@tool(effect=Effect.READ)
async def look() -> str:
    """Look."""
    return "seen"


@pytest.mark.parametrize("newer", ["predicate", "validator"])
async def test_a_call_that_is_done_is_not_decided_about_anew_by_a_retried_run(
    bench: Bench, newer: str
) -> None:
    paid = Paid(newer)

    def fails_once(request: ModelRequest) -> Completion:
        if not paid.deployed:
            paid.deploy()
            raise ModelUnavailable("500")
        return say("Done.")

    model = ScriptedModel("scripted", [call(("refund", {"order_id": "4821"})), fails_once])
    app = App([Agent("agent", model, "Do it.", tools=[paid.tool], model_tries=1)])
    policy = RetryPolicy(initial_interval=timedelta(milliseconds=100), maximum_attempts=2)

    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id(), retry_policy=policy)
        await within(run.result())
        told, asked = await replies_of(run), await run.approvals(only_waiting=False)

    assert (told, asked, paid.calls) == ([("ok", '"refunded"')], [], ["4821"])


@pytest.mark.parametrize("newer", ["predicate", "validator"])
async def test_a_step_that_is_done_is_not_decided_about_anew_by_a_reset_plan(
    bench: Bench, newer: str
) -> None:
    paid = Paid(newer)
    # The reset goes back to the first call of the stage, and so to before the check of the second.
    plan = Plan("refund", [[step(look, {}), step(paid.tool, {"order_id": "4821"})]])

    async with bench.serving(App(tools=[look, paid.tool])) as client:
        run = await client.start_plan(plan, id=fresh_id())
        first: Any = await within(run.result())
        paid.deploy()
        await run.reset(to_step=0)
        again: Any = await within(client.plan(run.id).result())
        asked = await run.approvals(only_waiting=False)

    assert (first["refund"], again["refund"]) == ("refunded", "refunded")
    assert (asked, paid.calls) == ([], ["4821"])


async def test_a_rejection_does_not_deny_what_was_done_meanwhile(bench: Bench) -> None:
    """By an attempt of an earlier execution, whose code asked nobody."""
    paid = Paid("predicate")
    paid.deploy()
    script = [call(("refund", {"order_id": "4821"})), say("Done.")]
    async with bench.serving(one_agent([paid.tool], script)) as client:
        run = await client.start("agent", "go", id=fresh_id())
        (asked,) = await eventually(run.approvals)
        async with ledger_of(bench) as ledger:
            requested = digest([parse(asked.args)])
            late = action_request(
                asked.run_key, tool="refund", args=asked.args, requested_digest=requested
            )
            claim = await dispatched(ledger, late, attempt(since=datetime.now(UTC)))
            await ledger.record(claim, Outcome.ok('"refunded late"'))
        await run.decide(asked.position, approve=False, by="ada")
        await within(run.result())
        told = await replies_of(run)

    assert (told, paid.calls) == ([("ok", '"refunded late"')], [])

"""Calls that a person may have to approve, while newer code asks otherwise, or calls otherwise."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator
from temporalio.common import RetryPolicy

from commitline import (
    NEVER_HAPPENED,
    Agent,
    App,
    Effect,
    NotAttempted,
    Plan,
    ScriptedModel,
    Tool,
    step,
    tool,
)
from commitline.activities.contract.approvals import WordGiven
from commitline.activities.contract.conversation import Completion
from commitline.activities.contract.encoding import pack
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import call, say
from commitline.canonical import digest, dumps, parse
from commitline.errors import ApprovalRefused, CommitlineError, ModelUnavailable
from commitline.handles.any_run import AnyRun
from commitline.ledger import Approval, Outcome
from commitline.operating.decisions import call_name, call_named
from commitline.tests.builders import action_request, attempt, dispatched
from commitline.workflows.base_run import WORD_GIVEN

from .bench import Bench, eventually, fresh_id, one_agent
from .playing import replies_of, within
from .relay_bench import ledger_of

NEWER: list[bool] = []
"""Whether newer code is deployed: its validator writes orders in another way."""
REFUSING: list[str] = []
"""Orders that the validator does not let through any more."""


def still_there(order_id: str) -> str:
    if order_id in REFUSING:
        raise ValueError("no such order any more")
    return order_id


def as_newer_code_writes(order_id: str) -> str:
    return order_id.upper() if NEWER else order_id


Order = Annotated[str, AfterValidator(as_newer_code_writes)]


@pytest.fixture(autouse=True)
def _none_deployed() -> None:
    REFUSING.clear()
    NEWER.clear()


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


class Release:
    """A release of an application that refunds. The second one has a default for the currency."""

    def __init__(self, sent: list[dict[str, Any]]) -> None:
        options: dict[str, Any] = {"effect": Effect.IDEMPOTENT, "approval": True}

        @tool(**options)
        async def refund(order_id: str, cents: int) -> str:
            """Refund."""
            sent.append({"order_id": order_id, "cents": cents})
            return "refunded"

        self.first = refund

        @tool(**{**options, "name": "refund"})
        async def refund_in(order_id: str, cents: int, currency: str = "EUR") -> str:
            """Refund in a currency."""
            sent.append({"order_id": order_id, "cents": cents, "currency": currency})
            return "refunded"

        self.second = refund_in


def app_of(refund: Tool) -> App:
    script = [call(("refund", {"order_id": "1", "cents": 100})), say("Done.")]
    model = ScriptedModel("scripted", script)
    return App([Agent("agent", model, "Do it.", tools=[refund])], tools=[refund])


async def waiting(run: AnyRun) -> Approval:
    (asked,) = await eventually(run.approvals)
    return asked


async def approve_without_worker(
    bench: Bench, asked: Approval, edited: dict[str, Any] | None = None
) -> None:
    """Have a decision stand before any worker of the second release sees the run."""
    async with ledger_of(bench) as ledger:
        text = None if edited is None else dumps(edited)
        await ledger.approvals.decide(asked.key, approve=True, by="ada", edited_args=text)
    word = WordGiven(asked.run_key, asked.position)
    await bench.temporal.get_workflow_handle(asked.workflow_id).signal(WORD_GIVEN, pack(word))


async def test_what_newer_code_would_not_send_as_it_was_approved_is_asked_about_again(
    bench: Bench,
) -> None:
    sent: list[dict[str, Any]] = []
    release = Release(sent)
    async with bench.serving(app_of(release.first), cached=0) as client:
        run = await client.start("agent", "go", id=fresh_id())
        first = await waiting(run)
    await approve_without_worker(bench, first)
    async with bench.serving(app_of(release.second), cached=0) as client:
        run = client.run(run.id)
        second = await waiting(run)
        before = list(sent)
        with pytest.raises(ApprovalRefused, match=r"asked about again, as 0\.0~2"):
            await run.decide(first.at, approve=True, by="ada")
        named, at = await call_named(client, call_name(second))
        await named.decide(at, approve=True, by="ada")
        await within(run.result())
        told, (action,) = await replies_of(run), await run.actions()

    assert (first.at, second.at) == ("0.0", "0.0~2")
    assert parse(second.args) == {"order_id": "1", "cents": 100, "currency": "EUR"}
    assert before == []
    assert call_name(second) == f"{run.id}:0.0~2", "so commands list it, and take it"
    assert sent == [parse(second.args)]
    assert action.args == second.args
    assert told == [("ok", '"refunded"')]


async def test_a_step_that_was_approved_with_edited_arguments_is_asked_about_again(
    bench: Bench,
) -> None:
    """With what the person made of them, and not with what the plan had."""
    sent: list[dict[str, Any]] = []
    release = Release(sent)
    plan = Plan("refund", [step(release.first, {"order_id": "1", "cents": 100})])
    async with bench.serving(app_of(release.first), cached=0) as client:
        run = await client.start_plan(plan, id=fresh_id())
        first = await waiting(run)
    await approve_without_worker(bench, first, {"order_id": "1", "cents": 80})
    async with bench.serving(app_of(release.second), cached=0) as client:
        again = client.plan(run.id)
        second = await waiting(again)
        await again.decide(second, approve=True, by="ada")
        done: Any = await within(again.result())

    assert second.generation == 2
    assert parse(second.args) == {"order_id": "1", "cents": 80, "currency": "EUR"}
    assert (done["refund"], sent) == ("refunded", [parse(second.args)])


async def test_what_passed_without_an_approval_is_judged_again_if_newer_code_would_send_more(
    bench: Bench,
) -> None:
    """The deploy comes between the check of the approval and the call."""
    sent: list[str] = []

    def passes_once(_: dict[str, Any]) -> bool:
        newer = bool(NEWER)
        NEWER.append(True)
        return newer

    @tool(effect=Effect.IDEMPOTENT, approval=passes_once)
    async def refund(order_id: Order) -> str:
        """Refund an order."""
        sent.append(order_id)
        return "refunded"

    script = [call(("refund", {"order_id": "a1"})), say("Done.")]
    async with bench.serving(one_agent([refund], script)) as client:
        run = await client.start("agent", "go", id=fresh_id())
        asked = await waiting(run)
        before = list(sent)
        await run.decide(asked, approve=False, by="ada")
        await within(run.result())

    assert (asked.at, asked.args, before, sent) == ("0.0", '{"order_id":"A1"}', [], [])


@pytest.mark.parametrize(
    ("effect", "first_try", "status", "kind"),
    [
        (Effect.IDEMPOTENT, NotAttempted, "error", "ArgumentsChanged"),
        (Effect.IDEMPOTENT, ConnectionError, "unknown", "an earlier attempt may have happened"),
        (Effect.LOOKUP, ConnectionError, "unknown", "asked what became of it: ArgumentsChanged"),
    ],
    ids=["an intent", "a take-over", "a lookup"],
)
async def test_a_stored_call_is_made_to_the_letter_or_not_at_all(
    bench: Bench, effect: Effect, first_try: type[Exception], status: str, kind: str
) -> None:
    sent, looked = [], []

    def found(args: dict[str, Any], _: str) -> Any:
        looked.append(args)
        return NEVER_HAPPENED

    @tool(effect=effect, lookup=found if effect is Effect.LOOKUP else None)
    async def pay(order_id: Order) -> str:
        """Pay for an order; the first try fails, and newer code is deployed meanwhile."""
        sent.append(order_id)
        if not NEWER:
            NEWER.append(True)
            raise first_try("no way through")
        return "paid"

    script = [call(("pay", {"order_id": "a1"})), say("Done.")]
    async with bench.serving(one_agent([pay], script)) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await within(run.result())
        ((told, content),), (action,) = await replies_of(run), await run.actions()

    assert (sent, looked) == (["a1"], [])
    assert (told, action.args) == (status, '{"order_id":"a1"}')
    assert kind in content
    assert "order_id" in content


async def test_an_undo_that_was_begun_is_made_to_the_letter_or_requested_anew(bench: Bench) -> None:
    sent: list[str] = []

    @tool(effect=Effect.IDEMPOTENT)
    async def give_back(order_id: Order) -> str:
        """Give back; the first try fails, and newer code is deployed meanwhile."""
        sent.append(order_id)
        if not NEWER:
            NEWER.append(True)
            raise NotAttempted("no way through")
        return "given back"

    @tool(effect=Effect.IDEMPOTENT, compensate=give_back)
    async def take(order_id: str) -> str:
        """Take."""
        return "taken"

    async with bench.serving(one_agent([take], [call(("take", {"order_id": "a1"}))])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        with pytest.raises(CommitlineError, match="partly compensated"):
            await within(run.result())
        (stands,) = (await run.undo_report()).standing
        before = list(sent)
        await within(run.undo(reason="with the newer code"))
        undone = await run.undo_report()

    assert before == ["a1"]
    assert "give_back cannot be called with exactly the arguments that are stored" in stands.why
    assert sent == ["a1", "A1"]
    assert undone.state == "compensated"

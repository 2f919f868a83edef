"""Detached calls: the run goes on, the relay carries them out, and the model is told the truth.

No relay runs here: what it does is done by hand, through the ledger.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from commitline import Agent, App, Effect, ScriptedModel, Tool, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import Answer, call, say
from commitline.identity import ActionKey
from commitline.ledger import ActionLedger, Dispatched, Outcome, intend, ledger_pool
from commitline.tests.builders import attempt, dispatched, relay_request

from .bench import Bench, Ran, eventually, fresh_id


class Post:
    """Sends letters in the background, and mails at once."""

    def __init__(self, *, approval: bool = False) -> None:
        self.sent: list[str] = []

        @tool(
            effect=Effect.IDEMPOTENT,
            idempotency_key="letter-{to}",
            detached=True,
            approval=approval,
        )
        async def letter(to: str) -> str:
            """Send a letter."""
            self.sent.append(to)
            return f"sent to {to}"

        self.letter: Tool = letter

    def app(self, *answers: Answer) -> App:
        model = ScriptedModel("scripted", answers)
        return App([Agent("agent", model, "Do it.", tools=[self.letter])])


def letters(*to: str) -> Completion:
    return call(*(("letter", {"to": one}) for one in to))


def content(ran: Ran, index: int) -> Any:
    return json.loads(ran.results[index].content)


async def carried_out(ledger: ActionLedger, key: ActionKey, outcome: Outcome) -> None:
    """Do what the relay does."""
    await ledger.record(await taken(ledger, key), outcome)


async def taken(ledger: ActionLedger, key: ActionKey) -> Dispatched:
    """Claim as the relay does."""
    found = await ledger.get(key)
    assert found is not None
    return await dispatched(ledger, relay_request(found), attempt(since=datetime.now(UTC)))


async def said(bench: Bench, thread_id: str) -> list[str]:
    """Return the messages of a conversation, as JSON."""
    rows = await bench.sql(
        "select message::text from agent_messages where thread_id = %(id)s"
        " order by version, ordinal",
        id=thread_id,
    )
    return [text for (text,) in rows]


async def queued(bench: Bench) -> list[tuple[Any, ...]]:
    return await bench.sql("select key, why, tool from agent_relay order by seq")


async def test_the_run_goes_on_at_once_and_is_told_later_how_it_ended(bench: Bench) -> None:
    post = Post()
    key = ""

    async def meanwhile() -> None:
        """Between the first turn and the second: what the relay does."""
        async with ledger_pool(bench.settings.database_url, size=1) as pool:
            declined = Outcome.error(kind="NoAddress", message="unknown", effect_possible=False)
            await carried_out(ActionLedger(pool), ActionKey(key), Outcome.ok('"sent to ada"'))
            other = ActionKey(key.replace(":0.0", ":0.1"))
            await carried_out(ActionLedger(pool), other, declined)

    def asks(request: ModelRequest) -> Completion:
        nonlocal key
        key = json.loads(request.messages[-1].results[0].content)["action"]
        return call(("action_state", {"action": key}), ("action_state", {"action": "other/1:0"}))

    script: list[Answer] = [letters("ada", "bob"), asks, say("waiting"), say("done")]
    async with bench.serving(post.app(*script)) as client:
        thread = client.thread(fresh_id("thread"))
        await thread.send("go", agent="agent")
        shown = await said(bench, thread.id)
        pending = await queued(bench)
        await meanwhile()
        await thread.send("and?")
        later = await said(bench, thread.id)

    assert post.sent == []  # nobody but the relay
    told = json.loads(shown[2])["results"]
    first, second = (json.loads(one["content"]) for one in told)
    assert first["accepted"] is True
    assert (first["state"], first["action"]) == ("pending", key)
    assert first["note"].startswith("NOT done yet")
    assert second["action"] == key.replace(":0.0", ":0.1")
    stands, refused = json.loads(shown[4])["results"]
    assert json.loads(stands["content"]) == {
        "action": key,
        "tool": "letter",
        "state": "pending",
        "note": "NOT done yet. It may still fail.",
    }
    assert "this conversation has no action" in refused["content"]
    assert sorted(pending) == [(key, "send", "letter"), (second["action"], "send", "letter")]
    text = "\n".join(later[len(shown) :])
    assert f"at 0.0, which was accepted as {key}, has ended: it happened." in text
    assert "at 0.1, which was accepted" in text
    assert "it did NOT happen. Its error:" in text
    assert "NoAddress" in text


async def test_a_reset_reads_what_was_told_and_intends_nothing_twice(bench: Bench) -> None:
    post = Post()
    async with bench.serving(post.app(letters("ada"), say("done"))) as client:
        ran = await bench.start(client)
        key = ActionKey(content(ran, 0)["action"])
        async with ledger_pool(bench.settings.database_url, size=1) as pool:
            await carried_out(ActionLedger(pool), key, Outcome.ok('"sent"'))
        again = await bench.rerun(client, ran.id)

    assert again.results[0].content == ran.results[0].content
    assert [action.state for action in again.actions] == ["ok"]
    assert post.sent == []


async def test_the_same_fact_is_one_action_wherever_it_is_asked_for(bench: Bench) -> None:
    """From the outbox, pending; and by another run, done."""
    post = Post()
    url = bench.settings.database_url
    async with bench.serving(post.app(letters("ada"), say("done"))) as client:
        async with ledger_pool(url, size=1) as pool:
            async with pool.connection() as conn, conn.transaction():
                key = await intend(conn, post.letter, {"to": "ada"})
            pending = await bench.start(client)
            await carried_out(ActionLedger(pool), key, Outcome.ok('"sent"'))
        done = await bench.start(client)

    assert content(pending, 0)["action"] == key
    assert "asked for before, elsewhere" in content(pending, 0)["note"]
    assert pending.actions == []
    assert content(done, 0)["existing"] is True
    assert content(done, 0)["result"] == "sent"


async def test_a_person_approves_before_it_is_intended(bench: Bench) -> None:
    post = Post(approval=True)
    async with bench.serving(post.app(letters("ada"), say("done"))) as client:
        run = await client.start("agent", "go", id=fresh_id())
        (asked,) = await eventually(run.approvals)
        assert await queued(bench) == []
        await run.decide(asked.position, approve=True, by="ada")
        ran = await bench.outcome(run)

    assert content(ran, 0)["accepted"] is True
    assert [row[1:] for row in await queued(bench)] == [("send", "letter")]


async def test_what_the_relay_is_at_is_not_parked_with_the_run_that_ends(bench: Bench) -> None:
    post = Post()
    async with bench.serving(post.app(letters("ada"), say("done"))) as client:
        ran = await bench.start(client)
        assert await bench.sql("select state from agent_runs") == [("ended",)]
        (action,) = ran.actions
        # The relay's attempt is under way as its run ends.
        async with ledger_pool(bench.settings.database_url, size=1) as pool:
            ledger = ActionLedger(pool)
            await taken(ledger, action.key)
            await ledger.runs.end(action.run_key, attempt_at=datetime.now(UTC))
            found = await ledger.get(action.key)

    assert found is not None
    assert (found.state, found.relayed) == ("dispatched", True)

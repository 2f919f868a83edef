"""What nobody foresaw in an activity of ours, and no wait mends, has an end with a name."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from structlog.testing import capture_logs

from commitline import Agent, App, Effect, tool
from commitline.activities.guard import unforeseen
from commitline.activities.model.scripted_model import ScriptedModel, call, say
from commitline.errors import CommitlineError, StatementRefused

from .bench import Bench, fresh_id
from .playing import SOON

CALLED: Counter[str] = Counter()


@tool(effect=Effect.IDEMPOTENT)
async def act() -> str:
    CALLED["act"] += 1
    return "acted"


APP = App([Agent("agent", ScriptedModel("scripted", [call(("act", {})), say("Done.")]), "", [act])])


@pytest.fixture(autouse=True)
def _given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unforeseen, "_TRIES", 4)


async def refuse(bench: Bench, table: str, *, times: int = 1_000_000) -> None:
    """Have Postgres refuse every new row of a table, so many times."""
    await bench.sql("create sequence refusals")
    await bench.sql(
        "create function refuse() returns trigger language plpgsql as $$ begin"
        f" if nextval('refusals') <= {times} then"
        " raise exception 'no grant on this' using errcode = '42501'; end if;"
        " return new; end $$"
    )
    await bench.sql(
        f"create trigger refuse before insert on {table} for each row execute function refuse()"
    )


async def failed(bench: Bench) -> tuple[CommitlineError, list[Any]]:
    """Run the agent to its failure; return that, and what the log says of it."""
    with capture_logs() as logs:
        async with bench.serving(APP) as client, asyncio.timeout(SOON):
            run = await client.start("agent", "go", id=fresh_id())
            with pytest.raises(CommitlineError) as error:
                await run.result()
    return error.value, [log for log in logs if log["event"] == "activity.failed"]


@pytest.mark.parametrize(
    ("table", "activity"),
    [
        ("agent_runs", "commitline.open_run"),
        ("agent_actions", "act"),
        ("agent_messages", "commitline.record_turn"),
    ],
)
async def test_what_postgres_refuses_for_good_fails_the_run_by_its_name(
    bench: Bench, table: str, activity: str
) -> None:
    await refuse(bench, table)

    error, logs = await failed(bench)

    assert isinstance(error, StatementRefused)
    assert "InsufficientPrivilege 42501: no grant on this" in error.message
    final = [log for log in logs if log["final"]]
    assert (final[0]["activity"], final[0]["tries"]) == (activity, 4)
    assert CALLED == {}


async def test_a_refusal_that_passes_ends_nothing(bench: Bench) -> None:
    await refuse(bench, "agent_actions", times=3)

    async with asyncio.timeout(SOON):
        ran = await bench.run(APP)

    assert [(a.state, a.result) for a in ran.actions] == [("ok", '"acted"')]
    assert CALLED == {"act": 1}


async def test_a_row_that_cannot_be_read_fails_the_run_and_names_what_was_raised(
    bench: Bench,
) -> None:
    await bench.sql(
        "create function spoil() returns trigger language plpgsql as $$ begin"
        " new.spec = '{\"name\": 1}'; return new; end $$"
    )
    await bench.sql(
        "create trigger spoil before insert on agent_runs for each row execute function spoil()"
    )

    error, logs = await failed(bench)

    assert error.code == "CL001"
    assert "raised" in error.message
    assert logs[-1]["final"]

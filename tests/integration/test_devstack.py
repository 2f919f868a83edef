"""The servers of one machine: they come, they stay, and nothing of them is left behind."""

import os
import pwd
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import psycopg
import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from commitline.devstack import DevStack, postgres_package
from commitline.devstack.postgres import ROOTS_DATA, remove_data
from commitline.errors import ConfigurationError


@pytest.fixture
def data_dir() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="commitline-devstack-"))
    yield folder
    remove_data(folder)


def processes_on(data_dir: Path) -> list[str]:
    """Command lines of the servers whose data lies here, zombies left out."""
    place = str((data_dir / "postgres").resolve())
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "status", "cwd"]):
        line = " ".join(process.info["cmdline"] or [])
        temporal = "start-dev" in line and process.info["cwd"] == str(data_dir)
        if temporal or ("bin/postgres" in line and place in line):
            found.append(line)
    return found


def test_starts_both_servers_and_leaves_no_process_behind(data_dir: Path) -> None:
    with DevStack(data_dir, ui_port=None) as stack:
        with psycopg.connect(stack.database_url) as connection:
            row = connection.execute(
                "select current_database(), current_setting('fsync'), "
                "current_setting('max_connections')"
            ).fetchone()
        running = processes_on(data_dir)

    assert row == ("commitline", "on", "200")
    assert len(running) == 2
    assert stack.ui_url == ""
    assert processes_on(data_dir) == []


def test_stopping_twice_is_stopping_once(data_dir: Path) -> None:
    stack = DevStack(data_dir, ui_port=None, persistent=False)
    stack.start()

    stack.stop()
    stack.stop()

    assert processes_on(data_dir) == []


async def test_data_and_ports_survive_a_restart(data_dir: Path) -> None:
    with DevStack(data_dir) as stack:
        first = (stack.temporal_address, stack.ui_url, stack.database_url)
        with psycopg.connect(stack.database_url) as connection:
            connection.execute("create table kept as select 42 as answer")
        client = await Client.connect(stack.temporal_address)
        await client.start_workflow("Waiting", id="kept", task_queue="nobody")

    with DevStack(data_dir) as stack:
        second = (stack.temporal_address, stack.ui_url, stack.database_url)
        with psycopg.connect(stack.database_url) as connection:
            row = connection.execute("select answer from kept").fetchone()
        client = await Client.connect(stack.temporal_address)
        description = await client.get_workflow_handle("kept").describe()

    assert second == first
    assert row == (42,)
    assert description.status == WorkflowExecutionStatus.RUNNING


OWNER = """
import sys, time
from pathlib import Path
import psycopg
from commitline.devstack import DevStack, postgres_package
from commitline.devstack.postgres import ROOTS_DATA, remove_data
stack = DevStack(Path(sys.argv[1]), ui_port=None)
stack.start()
with psycopg.connect(stack.database_url) as connection:
    connection.execute("create table kept as select 42 as answer")
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def killed_owner(data_dir: Path) -> None:
    """A process that started both servers, wrote a row and was killed."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER, data_dir], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    with owner, owner.stdout:
        assert owner.stdout.readline() == b"ready\n"
        os.kill(owner.pid, signal.SIGKILL)


@pytest.mark.usefixtures("killed_owner")
async def test_a_start_after_the_owner_was_killed_finds_the_data(data_dir: Path) -> None:
    with DevStack(data_dir, ui_port=None) as stack:
        with psycopg.connect(stack.database_url) as connection:
            row = connection.execute("select answer from kept").fetchone()
        await Client.connect(stack.temporal_address)
        running = processes_on(data_dir)

    assert row == (42,)
    assert len(running) == 2
    assert processes_on(data_dir) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a child to its parent")
@pytest.mark.usefixtures("killed_owner")
def test_temporal_dies_with_a_killed_owner(data_dir: Path) -> None:
    deadline = time.monotonic() + 40
    while any("start-dev" in line for line in processes_on(data_dir)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with DevStack(data_dir, ui_port=None):
        pass  # takes the Postgres over, and so stops it

    assert processes_on(data_dir) == []


def test_a_second_owner_is_refused(data_dir: Path) -> None:
    with DevStack(data_dir, ui_port=None, persistent=False):
        second = DevStack(data_dir, ui_port=None, persistent=False)

        with pytest.raises(ConfigurationError, match="another process"):
            second.start()


def test_a_taken_port_is_refused_and_nothing_stays(data_dir: Path, devstack: DevStack) -> None:
    taken = int(devstack.temporal_address.rpartition(":")[2])

    with pytest.raises(ConfigurationError, match=f"port {taken} for temporal is in use"):
        DevStack(data_dir, temporal_port=taken, ui_port=None).start()

    assert processes_on(data_dir) == []


def test_starts_in_a_path_with_spaces_and_quotes(data_dir: Path) -> None:
    data_dir.chmod(0o755)  # closed to others, root's data would lie elsewhere
    folder = data_dir / "My project's data (#1) & 100%"

    for _ in range(2):  # the second time, the data is there
        with DevStack(folder, ui_port=None) as stack:
            with psycopg.connect(stack.database_url) as connection:
                row = connection.execute("select current_setting('data_directory')").fetchone()
            assert row == (str(folder / "postgres"),)
            assert (folder / "temporal.db").is_file()

    assert processes_on(folder) == []


@pytest.mark.parametrize("name", ['say "x"', "a,b", "a$b", "a`b", "a\\b"])
def test_a_path_that_postgres_cannot_use_is_named(data_dir: Path, name: str) -> None:
    data_dir.chmod(0o755)  # closed to others, root's data would lie elsewhere

    with pytest.raises(ConfigurationError, match="cannot be started in a path with"):
        DevStack(data_dir / name, ui_port=None).start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's Postgres runs as somebody else")
def test_roots_postgres_gets_its_user_without_the_system_folders_on_the_path(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package calls ``useradd``. One that notes it was called stands in a system folder."""
    sbin, noted = data_dir / "sbin", data_dir / "noted"
    sbin.mkdir()
    (sbin / "useradd").write_text(f"#!/bin/sh\necho $* > {noted}\nexit 1\n", encoding="utf-8")
    (sbin / "useradd").chmod(0o755)
    monkeypatch.setattr(postgres_package, "SYSTEM_FOLDERS", (str(sbin),))
    monkeypatch.setattr(pwd, "getpwnam", dict[str, pwd.struct_passwd]().__getitem__)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")

    with pytest.raises(ConfigurationError, match=r"Postgres did not start.*useradd"):
        DevStack(data_dir, ui_port=None).start()

    assert noted.read_text(encoding="utf-8").split()[-1] == "embedded_postgres"
    assert os.environ["PATH"] == "/usr/bin:/bin"


seen: list[str] = []


@pytest.mark.parametrize("turn", ["first", "second"])
def test_every_test_has_a_migrated_database_of_its_own(database_url: str, turn: str) -> None:
    with psycopg.connect(database_url) as connection:
        row = connection.execute("select count(*) from agent_actions").fetchone()

    assert row == (0,)
    assert database_url not in seen
    seen.append(database_url)


async def test_the_client_fixture_is_connected(temporal_client: Client) -> None:
    assert await temporal_client.service_client.check_health()


def test_postgres_can_be_restarted_alone(devstack: DevStack) -> None:
    before = devstack.database_url
    with psycopg.connect(before, autocommit=True) as connection:
        devstack.stop_postgres()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")

    devstack.start_postgres()
    devstack.restart_postgres()

    assert devstack.database_url == before
    with psycopg.connect(before) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's Postgres runs as somebody else")
def test_roots_closed_folders_stay_closed(data_dir: Path) -> None:
    closed = data_dir / "closed"
    closed.mkdir(mode=0o700)
    stack = DevStack(closed / "project" / "data", ui_port=None, persistent=False)

    with stack:
        home = (closed / "project" / "data" / "postgres").resolve()

    assert closed.stat().st_mode & 0o777 == 0o700
    assert home.parent == ROOTS_DATA
    assert not home.exists(), "the data of a stack for tests is gone with it"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's data lies elsewhere")
def test_data_that_lies_elsewhere_is_kept_until_it_is_removed(data_dir: Path) -> None:
    data_dir.chmod(0o700)
    stack = DevStack(data_dir, ui_port=None)
    stack.start_postgres()
    stack.stop_postgres()
    home = (data_dir / "postgres").resolve()

    kept = (home / "PG_VERSION").exists()
    remove_data(data_dir)

    assert (home.parent, kept) == (ROOTS_DATA, True)
    assert not home.exists()
    assert not data_dir.exists()

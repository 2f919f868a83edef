"""The command line, as a person or a script meets it: real processes, real servers."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args
from uuid import uuid4

import psycopg
import pytest

from commitline.config import DevAddresses
from commitline.devstack import DevStack
from commitline.devstack.postgres import remove_data
from commitline.identity import RunKey
from commitline.ledger import ActionLedger, Dispatched, Effect, Outcome, ledger_pool
from commitline.ledger.action_records import ActionState
from commitline.operating import app_checks, database_checks
from commitline.operating.actions import find_actions
from commitline.operating.check import Check
from commitline.operating.doctor import examine, healthy
from commitline.testing.processes import ProviderProcess
from commitline.tests import builders
from commitline.tests.builders import action_request, attempt, open_run
from commitline.tests.integration.database import limited_role

COMMAND = [sys.executable, "-m", "commitline.cli"]
SHOP = "commitline.examples.shop.app:app"
TASK_QUEUE = f"cli-{uuid4().hex}"


def environment(**added: str) -> dict[str, str]:
    """This process's environment without what would send a command elsewhere.

    The task queue is of this session: `commitline dev` uses its usual port if that is free,
    and a worker that somebody left on this machine would take the runs.
    """
    foreign = ("TEMPORAL_", "COMMITLINE_", "SHOP_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "COLUMNS": "80", "COMMITLINE_TASK_QUEUE": TASK_QUEUE, **added}


def commitline(
    *arguments: str, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@contextmanager
def started(
    *arguments: str, cwd: Path, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command beside the test; killed at the end if it is still there."""
    with (cwd / "output.log").open("ab") as log:
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=cwd,
            env=environment(**(variables or {})),
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@contextmanager
def dev(folder: Path) -> Iterator[DevAddresses]:
    """Run `commitline dev` in the folder; ended by SIGTERM, and it must end well."""
    with started("dev", cwd=folder) as process:
        found: list[DevAddresses] = []

        def is_up() -> bool:
            assert process.poll() is None, (folder / "output.log").read_text()
            if addresses := DevAddresses.find(folder):
                found.append(addresses)
            return bool(found)

        try:
            eventually(is_up)
            yield found[0]
        finally:
            process.terminate()
            process.wait(60)
        assert process.returncode == 0


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A project's folder, open to all as such folders are (pytest's own is closed)."""
    found = Path(tempfile.mkdtemp(prefix="commitline-cli-"))
    found.chmod(0o755)
    yield found
    remove_data(found / ".commitline")
    shutil.rmtree(found, ignore_errors=True)


@pytest.fixture
def empty_database(devstack: DevStack) -> Iterator[str]:
    name = f"cli_{uuid4().hex}"
    with psycopg.connect(devstack.database_url, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
        yield devstack.database_url.replace("/commitline?", f"/{name}?")
        connection.execute(f"drop database {name} with (force)".encode())


def test_help_names_every_command_within_80_columns() -> None:
    shown = commitline("--help")

    names = ["demo", "dev", "worker", "run", "runs", "actions", "doctor", "migrate"]
    assert shown.returncode == 0
    assert [name for name in names if f" {name} " not in shown.stdout] == []
    headings = re.findall("^([A-Z][a-z]+):", shown.stdout, re.MULTILINE)
    assert headings == ["Usage", "Options", "Start", "Operate"]
    assert "..." not in shown.stdout.partition("Options:")[2], "all of what a command does"
    assert max(len(line) for line in shown.stdout.splitlines()) <= 80


def test_the_help_waits_for_no_import_that_it_does_not_need() -> None:
    slow = {"asyncio", "psycopg", "pydantic", "rich", "temporalio"}
    script = "import sys\ntry:\n    import commitline.cli as cli\n    cli.app(['--help'])\n"
    script += "finally:\n    print(*sys.modules, file=sys.stderr)"

    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert "Operate:" in shown.stdout
    assert slow & set(shown.stderr.split()) == set()


def test_an_error_is_a_readable_message_with_code_and_remedy(folder: Path) -> None:
    failed = commitline("runs", cwd=folder, TEMPORAL_ADDRESS="127.0.0.1:1")

    assert failed.returncode == 1
    assert failed.stdout == ""
    assert failed.stderr.startswith("commitline: no Temporal server at 127.0.0.1:1")
    assert "[CL103] Run `commitline doctor`" in failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.parametrize(
    "url", ["postgresql+asyncpg://app:s3cr3t@127.0.0.1:1/db", "postgresql://app:s3%cr3t@db/db"]
)
@pytest.mark.parametrize(
    "command",
    [("doctor",), ("migrate",), ("worker", SHOP), ("runs",), ("actions", "list"), ("relay",)],
)
def test_no_command_repeats_the_address_of_the_database(
    url: str, command: tuple[str, ...], folder: Path
) -> None:
    done = commitline(*command, cwd=folder, COMMITLINE_DATABASE_URL=url)

    assert done.returncode == 1
    assert "COMMITLINE_DATABASE_URL" in done.stdout + done.stderr
    assert "cr3t" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [("relay", "run"), ("stop", "support-4821")])
def test_a_namespace_that_does_not_exist_is_named_in_one_sentence(
    command: tuple[str, ...], devstack: DevStack, database_url: str, folder: Path
) -> None:
    failed = commitline(
        *command,
        cwd=folder,
        TEMPORAL_ADDRESS=devstack.temporal_address,
        TEMPORAL_NAMESPACE="nope",
        COMMITLINE_DATABASE_URL=database_url,
    )

    said = f"commitline: Temporal at {devstack.temporal_address} has no namespace 'nope'"
    assert failed.returncode == 1
    assert said in failed.stderr.splitlines()
    assert "worker.started" not in failed.stderr
    assert "Traceback" not in failed.stderr


def test_a_database_that_is_away_is_told_once(devstack: DevStack, folder: Path) -> None:
    failed = commitline(
        "approvals",
        cwd=folder,
        TEMPORAL_ADDRESS=devstack.temporal_address,
        COMMITLINE_DATABASE_URL="postgresql://nobody@127.0.0.1:1/nothing",
    )

    assert failed.returncode == 1
    assert failed.stderr.startswith("commitline: the ledger did not answer within 10 s\n[CL206]")


def test_doctor_without_servers_says_how_to_get_them_and_fails(folder: Path) -> None:
    looked = commitline("doctor", "--json", cwd=folder, TEMPORAL_ADDRESS="127.0.0.1:1")

    found = {check["name"]: check for check in json.loads(looked.stdout)}
    assert looked.returncode == 1
    assert found["database"]["state"] == "missing"
    assert "COMMITLINE_DATABASE_URL" in found["database"]["remedy"]
    assert found["Temporal"]["state"] == "missing"
    assert "TEMPORAL_ADDRESS" in found["Temporal"]["remedy"]


async def checked(monkeypatch: pytest.MonkeyPatch, **variables: str) -> dict[str, Check]:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return {check.name: check for check in await examine()}


async def test_doctor_is_content_with_two_servers(
    devstack: DevStack, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await checked(
        monkeypatch,
        TEMPORAL_ADDRESS=devstack.temporal_address,
        COMMITLINE_DATABASE_URL=database_url,
    )

    assert healthy(list(found.values()))
    assert found["database"].found.startswith("PostgreSQL 1")
    assert ("schema 1" in found["database"].found, found["database"].state) == (True, "ok")
    assert re.match(r"\d+\.\d+\.\d+ at .*, histories kept for", found["Temporal"].found)
    clocks = [one for name, one in found.items() if name.endswith("clock")]
    assert [one.state for one in clocks] == ["ok", "ok"], clocks
    assert found["session"].state == "ok"
    assert found["workers"].found.startswith("none polls")
    lacking = [one for one in found.values() if one.state != "ok"]
    assert [one.name for one in lacking if not one.remedy] == ["models"]
    # The Postgres of the tests does not wait for its disk, and a worker could run all the same.
    assert found["commits"].state == "wrong"
    assert "fsync is off" in found["commits"].found
    assert found["actions"].state == "ok"


@pytest.mark.parametrize(
    ("option", "found", "healthy"),
    [
        ("default_transaction_read_only=on", "default_transaction_read_only is on", False),
        ("statement_timeout=500", "statement_timeout is 500 ms", True),
    ],
)
async def test_doctor_names_a_setting_of_the_role_with_which_the_ledger_cannot_work(
    option: str, found: str, healthy: bool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    join = "&" if "?" in database_url else "?"
    url = f"{database_url}{join}options=-c{option.replace('=', '%3D')}"
    monkeypatch.setenv("COMMITLINE_DATABASE_URL", url)

    session = await database_checks.session()

    assert (session.state, session.found, session.needed) == ("wrong", found, not healthy)
    assert session.remedy.startswith("alter role")


async def test_doctor_names_the_key_that_a_model_of_the_app_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = "app = App([Agent('a', 'openai:gpt-5-mini', ''), Agent('b', 'nobody:knows', '')])\n"
    (tmp_path / "keyless_app.py").write_text(f"from commitline import Agent, App\n{app}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COMMITLINE_APP", "keyless_app:app")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    without = await app_checks.models()
    monkeypatch.setenv("OPENAI_API_KEY", "not-a-real-one")
    with_key = await app_checks.models()

    assert (without.state, with_key.state) == ("wrong", "wrong")
    assert "openai:gpt-5-mini: " in without.found
    assert "OPENAI_API_KEY" in without.found
    assert "openai" not in with_key.found
    assert with_key.found.startswith("nobody:knows: ")
    assert (await app_checks.app()).found == "keyless_app:app: a, b"


async def test_doctor_says_what_of_the_app_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COMMITLINE_APP", "nowhere_at_all:app")

    found = await app_checks.app()

    assert (found.state, found.needed) == ("wrong", True)
    assert "cannot import 'nowhere_at_all'" in found.found
    assert (await app_checks.models()).state == "missing"


async def test_doctor_names_what_the_role_may_not_do(
    devstack: DevStack, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = devstack.temporal_address
    lacks = ("insert, update on agent_questions", "select on agent_runs")
    with limited_role(database_url, *lacks) as url:
        one = await checked(monkeypatch, TEMPORAL_ADDRESS=address, COMMITLINE_DATABASE_URL=url)
    with limited_role(database_url) as url:
        none = await checked(monkeypatch, TEMPORAL_ADDRESS=address, COMMITLINE_DATABASE_URL=url)
    with limited_role(database_url, "all on agent_schema_migrations") as url:
        schema = await checked(monkeypatch, TEMPORAL_ADDRESS=address, COMMITLINE_DATABASE_URL=url)

    assert not healthy(list(one.values()))
    assert one["database"].found == f"the role has no right to {'; '.join(lacks)}"
    assert (none["database"].state, none["database"].remedy) == ("ok", "")
    assert schema["database"].state == "wrong"
    assert "denied for table agent_schema_migrations" in schema["database"].found


async def test_doctor_tells_an_old_schema_and_an_unknown_namespace(
    devstack: DevStack, empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await checked(
        monkeypatch,
        TEMPORAL_ADDRESS=devstack.temporal_address,
        TEMPORAL_NAMESPACE="elsewhere",
        COMMITLINE_DATABASE_URL=empty_database,
    )

    assert not healthy(list(found.values()))
    assert found["database"].state == "wrong"
    assert "commitline migrate" in found["database"].remedy
    assert found["Temporal"].state == "wrong"
    assert "namespace create -n elsewhere" in found["Temporal"].remedy


def test_migrate_says_what_it_applied_and_then_that_there_is_nothing_to_do(
    empty_database: str,
) -> None:
    first = commitline("migrate", "--json", COMMITLINE_DATABASE_URL=empty_database)
    second = commitline("migrate", COMMITLINE_DATABASE_URL=empty_database)

    assert json.loads(first.stdout)["applied"] == ["0001_schema.sql"]
    assert second.stdout == "nothing to do: up to date\n"


LONG_ID = "customer-0123456789-order-0123456789-in-the-shop-of-[bold]Ada[/]/2026-11-29/a"


@pytest.fixture
async def ledger_with_actions(database_url: str) -> str:
    """Two runs: one charge that is recorded, one mail that is parked."""
    async with ledger_pool(database_url, size=1) as pool:
        ledger = ActionLedger(pool)
        charge = await dispatched(ledger, "support-4821", "charge_card", Effect.IDEMPOTENT)
        await ledger.record(charge, Outcome.ok('{"id":"charge_1"}'))
        mail = await dispatched(ledger, LONG_ID, "send_receipt", Effect.AT_MOST_ONCE)
        await ledger.park(mail, "the mail system went away")
    return database_url


async def dispatched(ledger: ActionLedger, run: str, tool: str, effect: Effect) -> Dispatched:
    key = RunKey(f"{run}/01a22977-b19f-78fe-bfb3-8357f419693b")
    now = datetime.now(tz=UTC)
    await open_run(ledger, key, attempt_at=now)
    request = action_request(key, "0.1", tool=tool, effect=effect)
    return await builders.dispatched(ledger, request, attempt(since=now))


def test_actions_list_fits_80_columns_and_breaks_no_id(ledger_with_actions: str) -> None:
    shown = commitline("actions", "list", COMMITLINE_DATABASE_URL=ledger_with_actions)

    lines = shown.stdout.splitlines()
    assert max(len(line) for line in lines) <= 80
    assert [line.split()[:3] for line in lines if "charge_card" in line] == [
        ["0.1", "charge_card", "ok"]
    ]
    assert [line.split()[:3] for line in lines if "send_receipt" in line] == [
        ["0.1", "send_receipt", "unknown"]
    ]
    assert LONG_ID in lines


def test_actions_list_as_json_gives_the_parked_with_reason_and_arguments(
    ledger_with_actions: str,
) -> None:
    shown = commitline(
        *("actions", "list", "--parked", "--state", "unknown", "--agent", "support", "--json"),
        COMMITLINE_DATABASE_URL=ledger_with_actions,
    )

    [found] = json.loads(shown.stdout)
    assert (found["state"], found["tool"]) == ("unknown", "send_receipt")
    assert found["parked_reason"] == "the mail system went away"
    assert found["args"] == {"order_id": "4821"}


async def test_actions_are_found_by_run_agent_and_state(ledger_with_actions: str) -> None:
    async with ledger_pool(ledger_with_actions, size=1) as pool:

        async def found(run: str | None = None, **by: Any) -> list[str]:
            asked = {"parked": False, "limit": 10, **by}
            rows = await find_actions(ActionLedger(pool), run=run, **asked)
            return [one.tool for one in rows]

        by_state = [await found(state=state) for state in get_args(ActionState)]
        by_agent = [await found(agent=agent) for agent in ("support", "another")]
        both = await found("support-4821", agent="support", state="ok")
        neither = await found("support-4821", state="unknown")
        parked = await found(agent="support", parked=True)

    assert by_state == [[], [], ["send_receipt"], ["charge_card"], []]
    assert by_agent == [["send_receipt", "charge_card"], []]
    assert (both, neither, parked) == (["charge_card"], [], ["send_receipt"])


def test_actions_show_takes_the_short_key_and_has_everything(ledger_with_actions: str) -> None:
    shown = commitline(
        "actions", "show", "support-4821:0.1", COMMITLINE_DATABASE_URL=ledger_with_actions
    )

    for fact in ("idempotent", "ok", '"order_id": "4821"', '"id": "charge_1"', "cl_"):
        assert fact in shown.stdout


def test_an_action_that_does_not_exist_is_named(ledger_with_actions: str) -> None:
    failed = commitline(
        "actions", "show", "support-4821:7.7", COMMITLINE_DATABASE_URL=ledger_with_actions
    )

    assert failed.returncode == 1
    assert "no action 'support-4821:7.7'" in failed.stderr


@pytest.mark.slow
def test_a_run_whose_worker_was_killed_ends_after_dev_was_stopped_and_started(
    folder: Path,
) -> None:
    below = folder / "src" / "shop"
    below.mkdir(parents=True)
    run = ("run", "support", "Charge order 4821.", "--id", "support-4821", "--json")
    with ProviderProcess() as provider:
        shop = {"SHOP_PROVIDER_URL": provider.url, "COMMITLINE_HEARTBEAT_SECONDS": "1"}
        with dev(folder) as first:
            doctor = commitline("doctor", cwd=below)
            begun = json.loads(commitline(*run, "--no-wait", cwd=below).stdout)
            crash = {**shop, "COMMITLINE_CRASH_AT": "after_effect@charge_card"}
            with started("worker", SHOP, cwd=below, variables=crash) as worker:
                status = worker.wait(90)
            charged = provider.effects("charge:4821")

        between = DevAddresses.find(folder)

        with dev(folder) as second, started("worker", SHOP, cwd=below, variables=shop) as worker:
            ended = json.loads(commitline(*run, cwd=below).stdout)
            listed = json.loads(commitline("runs", "--json", cwd=below).stdout)
            actions = json.loads(commitline("actions", "list", "--json", cwd=below).stdout)
            worker.terminate()
            left = worker.wait(90)

        charges = provider.effects("charge:4821")

    assert doctor.returncode == 0
    assert (status, charged) == (-signal.SIGKILL, 1)
    assert between is None
    assert second.temporal_address == first.temporal_address
    assert begun["ui"].startswith(f"{first.ui_url}/namespaces/default/workflows/support-4821/")
    assert (ended["run_id"], ended["steps"]) == (begun["run_id"], 2)
    assert charges == 1
    assert run_facts(listed) == [("support-4821", "support", "completed")]
    assert {action["tool"]: action["state"] for action in actions}["charge_card"] == "ok"
    assert left == 0


def run_facts(listed: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(run["id"], run["agent"], run["state"]) for run in listed]


@pytest.mark.slow
def test_a_second_dev_in_the_same_folder_says_that_one_runs(folder: Path) -> None:
    with dev(folder) as first:
        second = commitline("dev", cwd=folder)

    assert second.returncode == 1
    assert f"`commitline dev` (pid {first.pid})" in second.stderr
    assert first.ui_url in second.stderr


def test_an_operator_settles_an_unknown_action_once(ledger_with_actions: str) -> None:
    parked = ("actions", "list", "--parked", "--json")

    def as_ada(*arguments: str) -> subprocess.CompletedProcess[str]:
        return commitline(*arguments, COMMITLINE_DATABASE_URL=ledger_with_actions, USER="ada")

    [found] = json.loads(as_ada(*parked).stdout)

    settled = as_ada("actions", "settle", found["key"], "--happened", '{"mail": 7}', "--json")
    again = as_ada("actions", "settle", found["key"], "--did-not-happen")
    neither = as_ada("actions", "settle", found["key"])

    [row] = json.loads(settled.stdout)
    assert (row["state"], row["result"], row["decided_by"]) == ("ok", {"mail": 7}, "ada")
    assert json.loads(as_ada(*parked).stdout) == []
    assert again.returncode == 1
    assert "is settled already: ok [CL209]" in " ".join(again.stderr.split())
    assert neither.returncode == 2
    assert "--happened RESULT or --did-not-happen" in " ".join(neither.stderr.split())

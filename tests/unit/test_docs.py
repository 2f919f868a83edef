"""The documents say what the code does: their programs run, their tables are complete."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any
from unittest.mock import ANY
from uuid import uuid4

import pytest
import typer
from temporalio.client import Client

from commitline import cli, errors
from commitline.config import PREFIX, Settings
from commitline.devstack import DevStack
from commitline.ledger import ActionLedger, ledger_pool
from commitline.metrics import METRICS
from commitline.testing.demo.scenarios import SCENARIOS
from commitline.testing.processes import ProviderProcess, WorkerProcess
from commitline.worker import app_worker

ROOT = Path(__file__).parents[2]
NO_SOURCE = {"tests", "bench", "docs", "build", "dist"}
NAMED_THOUGH_ABSENT = {
    "app.py",  # the reader writes it
    "charge.py",
    "utils.py",  # there is none
    "models.py",
    "common.py",
}
LOG_LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def table_rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if line.startswith("|") and not line.startswith("| ---"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def sources() -> list[Path]:
    return [
        path
        for path in ROOT.rglob("*.py")
        if not any(
            part.startswith(".") or part in NO_SOURCE for part in path.relative_to(ROOT).parts
        )
    ]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_python_block_compiles(page: Path) -> None:
    for code in blocks(page.read_text(encoding="utf-8"), "python"):
        compile(code, str(page), "exec")


@pytest.mark.parametrize(
    "page",
    [
        "docs/tools.md",
        "docs/models.md",
        "docs/state.md",
        "docs/plans.md",
        "docs/integrations/langgraph.md",
        "docs/integrations/mcp.md",
        "docs/integrations/pydantic-ai.md",
        "docs/integrations/workflows.md",
        # The SDK takes seconds to import.
        pytest.param("docs/integrations/openai-agents.md", marks=pytest.mark.slow),
    ],
)
def test_the_definitions_of_a_how_to_can_be_run_from_top_to_bottom(
    page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A plugin opens no connection before a worker runs.
    monkeypatch.setenv("COMMITLINE_DATABASE_URL", "postgresql://nobody@127.0.0.1/nothing")
    namespace: dict[str, Any] = {"__name__": "page"}

    for code in blocks(read(page), "python"):
        exec(compile(code, page, "exec", dont_inherit=True), namespace)


def test_the_ledgers_program_prints_what_its_page_says(database_url: str, tmp_path: Path) -> None:
    page = read("docs/ledger.md")
    (program,) = blocks(page, "python")
    (printed,) = blocks(page, "text")
    file = tmp_path / "charge.py"
    file.write_text(program, encoding="utf-8")

    done = subprocess.run(
        [sys.executable, file],
        env={**os.environ, "COMMITLINE_DATABASE_URL": database_url},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == printed, done.stderr


async def test_every_way_to_start_a_run_that_is_shown_starts_it(
    temporal_client: Client,
    devstack: DevStack,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = read("docs/starting-runs.md")
    app, script, web, scheduled = (executed(one) for one in blocks(page, "python"))
    settings = Settings(database_url=database_url, task_queue=f"docs-{uuid4()}", relay_seconds=0)
    monkeypatch.setenv("TEMPORAL_ADDRESS", devstack.temporal_address)
    monkeypatch.setenv("COMMITLINE_DATABASE_URL", database_url)
    monkeypatch.setenv("COMMITLINE_TASK_QUEUE", settings.task_queue)

    async with ledger_pool(database_url, size=4) as pool:
        ledger = ActionLedger(pool)
        async with app_worker(app["app"], client=temporal_client, ledger=ledger, settings=settings):
            answer = await script["credit_order"]("4821")
            replies = await asgi_replies(
                web["web"], [("POST", "/4821"), ("GET", "/credit-4821"), ("GET", "/nobody")]
            )
            by_schedule = await scheduled["credit_of"](date(2026, 12, 1), "4821")
            cells: dict[str, Any] = {}
            for cell in blocks(page, "ipython"):
                code = compile(cell, "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                await eval(code, cells)

    assert (answer, by_schedule) == ("Credited.", "credit-4821-2026-12-01")
    assert replies == [
        (202, {"run": "credit-4821"}),
        (200, {"run": "credit-4821", "state": "completed"}),
        (404, {"error": "CL504", "message": ANY}),
    ]
    assert {"Credited.", "0.0 credit ok"} <= {*capsys.readouterr().out.splitlines()}


def executed(program: str) -> dict[str, Any]:
    """Return the names that a program defines, run as a module is that somebody imports."""
    namespace: dict[str, Any] = {"__name__": "page"}
    exec(compile(program, "page", "exec", dont_inherit=True), namespace)
    return namespace


async def asgi_replies(web: Any, requests: list[tuple[str, str]]) -> list[tuple[int, Any]]:
    """Start an ASGI application, send it requests, and shut it down, as a server does."""
    told: asyncio.Queue[Any] = asyncio.Queue()
    said: asyncio.Queue[Any] = asyncio.Queue()
    running = asyncio.create_task(web({"type": "lifespan"}, told.get, said.put))
    await told.put({"type": "lifespan.startup"})
    assert (await said.get())["type"] == "lifespan.startup.complete"
    replies = []
    for method, path in requests:
        sent: asyncio.Queue[Any] = asyncio.Queue()
        await web({"type": "http", "method": method, "path": path}, told.get, sent.put)
        head, body = await sent.get(), await sent.get()
        replies.append((head["status"], json.loads(body["body"])))
    await told.put({"type": "lifespan.shutdown"})
    assert (await said.get())["type"] == "lifespan.shutdown.complete"
    await running
    return replies


def test_the_readme_is_short() -> None:
    assert len(read("README.md").splitlines()) <= 150


def test_the_readmes_application_is_the_shop_without_its_crash_points() -> None:
    (shown,) = blocks(read("README.md"), "python")
    tree = ast.parse(read("examples/shop/app.py"))
    after_docstring = read("examples/shop/app.py").splitlines()[tree.body[1].lineno - 1 :]
    kept = [
        line
        for line in after_docstring
        if "crash_point" not in line and "demo can kill" not in line
    ]

    assert shown.strip() == "\n".join(kept).strip()


def test_the_readmes_application_runs_as_it_is_copied(
    devstack: DevStack, database_url: str, tmp_path: Path
) -> None:
    (program,) = blocks(read("README.md"), "python")
    (tmp_path / "app.py").write_text(program, encoding="utf-8")
    log = tmp_path / "worker.log"

    with ProviderProcess() as provider:
        environment = {
            "COMMITLINE_DATABASE_URL": database_url,
            "COMMITLINE_TASK_QUEUE": f"readme-{uuid4().hex}",
            "TEMPORAL_ADDRESS": devstack.temporal_address,
            "SHOP_PROVIDER_URL": provider.url,
        }
        with WorkerProcess("app:app", environment=environment, log=log, cwd=tmp_path):
            ran = subprocess.run(
                [sys.executable, "-m", "commitline.cli", *_shown_run(), "--id", uuid4().hex],
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )

        assert "Order 4821 is charged" in ran.stdout, ran.stderr + log.read_text()
        assert provider.effects("charge:4821") == 1


def _shown_run() -> list[str]:
    """Return the README's `commitline run …`, without its id."""
    (line,) = re.findall(r"^commitline (run .*) --id", read("README.md"), re.MULTILINE)
    return shlex.split(line)


def test_the_readme_shows_what_the_demo_prints() -> None:
    """The figures differ from one run to the next; the scenarios and the columns do not."""
    (table,) = blocks(read("README.md"), "text")
    head, _, *rows = [line for line in table.splitlines() if line[:1].strip()]

    assert head.split() == [
        "scenario",
        "charges",
        "requests",
        "mails",
        "rows",
        "run",
        "sec",
        "paid",
    ]
    shown = [re.split(r"  +", row)[0] for row in rows]
    assert shown == [each.name for each in SCENARIOS if each.pays]


def test_the_readmes_map_names_what_is_there() -> None:
    house = read("README.md").split("## The house")[1].split("```")[1]

    named = [line.split()[0] for line in house.strip().splitlines()]

    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_resolves(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]

    broken = [link for link in links if not _resolves(page, link)]

    assert broken == []


def _resolves(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    if not anchor:
        return target.exists()
    headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.MULTILINE)
    return anchor in {re.sub(r"[^\w -]", "", text).lower().replace(" ", "-") for text in headings}


def shell_commands(program: str) -> list[str]:
    """Return the distinct command lines of a program that the documents show."""
    found = []
    for page in pages():
        for block in blocks(page.read_text(encoding="utf-8"), "sh"):
            for line in block.splitlines():
                words = [word for word in shlex.split(line, comments=True) if word != "&"]
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    words.pop(0)
                if words and words[0] == program:
                    found.append(shlex.join(words))
    return sorted(set(found))


@pytest.mark.parametrize("command", shell_commands("make"))
def test_a_make_target_that_is_shown_exists(command: str) -> None:
    targets = re.findall(r"^([a-z]+):.*## ", read("Makefile"), re.MULTILINE)

    assert [word for word in command.split()[1:] if word not in targets] == []


@pytest.mark.parametrize("shown", shell_commands("commitline"))
def test_a_command_that_is_shown_is_one_that_the_command_line_takes(shown: str) -> None:
    command: Any = typer.main.get_command(cli.app)
    context = None
    name, *arguments = shlex.split(shown)

    while hasattr(command, "commands") and not _stands_alone(command, arguments):
        context = command.make_context(name, [], parent=context, resilient_parsing=True)
        name, *arguments = arguments
        command = command.commands[name]

    # Raises on an unknown option, a missing argument or one too many.
    command.make_context(name, arguments, parent=context)


def _stands_alone(group: Any, arguments: list[str]) -> bool:
    """Whether a group does something itself (`commitline runs`) and no command of it is named."""
    return bool(group.invoke_without_command) and (not arguments or arguments[0].startswith("-"))


def test_the_error_reference_lists_every_code_with_its_class_and_no_other() -> None:
    coded = {
        (value.code, name)
        for name, value in vars(errors).items()
        if isinstance(value, type)
        and issubclass(value, errors.CommitlineError)
        and "code" in vars(value)
    }

    listed = [
        (row[0], row[1].strip("`"))
        for row in table_rows(read("docs/reference/errors.md"))
        if re.fullmatch(r"CL\d+|NODE_TIMEOUT_\d+", row[0])
    ]

    assert len(listed) == len(set(listed))
    assert set(listed) == coded


def test_the_api_reference_says_what_the_docstrings_say() -> None:
    page = runpy.run_path(str(ROOT / "docs/reference/make_api.py"))["page"]()

    assert read("docs/reference/api.md") == page, "run: python docs/reference/make_api.py"


def test_the_event_reference_lists_exactly_the_events_of_the_code() -> None:
    logged = {
        str(call.args[0].value)
        for path in sources()
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in LOG_LEVELS
        and ast.unparse(call.func.value).split(".")[-1] in {"log", "_log"}
        and call.args
        and isinstance(call.args[0], ast.Constant)
    }

    listed = [
        row[0].strip("`")
        for row in table_rows(read("docs/reference/events.md"))
        if row[0].startswith("`")
    ]

    assert len(listed) == len(set(listed))
    assert set(listed) == logged


def test_the_metrics_reference_lists_exactly_the_metrics_of_the_code() -> None:
    expected = [(one.name, one.kind, one.unit, ", ".join(one.by)) for one in METRICS]

    listed = [
        tuple(cell.replace("`", "") for cell in row[:4])
        for row in table_rows(read("docs/reference/metrics.md"))
        if row[0].startswith("`commitline_")
    ]

    assert sorted(listed) == sorted(expected)


def test_operating_lists_every_setting_with_its_default() -> None:
    expected = {
        PREFIX + name.upper(): _shown(field.default)
        for name, field in Settings.model_fields.items()
    }

    listed = {
        row[0].strip("`"): row[1].strip("`")
        for row in table_rows(read("docs/operating.md"))
        if row[0].strip("`") in expected
    }

    assert listed == expected


def _shown(default: object) -> str:
    if default is None:
        return "none"
    return f"{default:g}" if isinstance(default, float) else str(default) or "none"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_is_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    folders = [path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."]
    suffixes = r"(?:py|sql|md|json|toml|sh|yaml|png)"
    named = {
        name
        for name in re.findall(rf"[`(\s]((?:\.\./)*[\w./-]+\.{suffixes})\b(?![/\w])", text)
        if name.lstrip("./").split("/")[0] in folders or "/" not in name
    }

    missing = [
        name
        for name in named
        if not (page.parent / name).exists()
        and not (ROOT / name).exists()
        and name not in NAMED_THOUGH_ABSENT
    ]

    assert missing == []

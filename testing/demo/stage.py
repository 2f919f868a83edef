"""Gives each scenario what it needs: servers, a database, a provider.

Everything that the demo starts ends with it: the servers lie in a temporary folder, and a ``with``
block starts every process. Ctrl-C leaves these blocks as every other way out does.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql
from temporalio.client import Client

from ...client import AgentClient
from ...config import Settings, core_runtime
from ...devstack import DevStack
from ...ledger import migrate
from ..environment import clean_environment, sigterm_as_interrupt
from ..processes import ProviderProcess
from .frameworks import check_installed
from .play import Play, Result
from .scenarios import SCENARIOS, Scenario

AT_A_TIME: Final = 2


def run_demo(
    names: Sequence[str] = (),
    *,
    of: Sequence[Scenario] = SCENARIOS,
    started: Callable[[], None] = lambda: None,
    doing: Callable[[str], None] = lambda _: None,
    finished: Callable[[Result], None] = lambda _: None,
) -> list[Result]:
    """Play the scenarios of these names, or all; return the results in the order of ``of``.

    Call it from the main thread.

    Args:
        names: Names of scenarios; empty means all.
        of: The scenarios to choose from: `SCENARIOS`, or `INTEGRATIONS`.
        started: Called when the servers are up.
        doing: Called with what begins, in words.
        finished: Called with the result of each scenario when that has ended.

    Raises:
        ConfigurationError: A framework's package is missing, and nothing was started; or the
            servers' packages are missing, or they did not come up.
    """
    chosen = [found for found in of if not names or found.name in names]
    check_installed(one.framework for one in chosen if one.framework)
    doing("Starting Temporal and Postgres for the demo")
    folder = Path(tempfile.mkdtemp(prefix="commitline-demo-"))
    try:
        with (
            clean_environment(),
            sigterm_as_interrupt(),
            DevStack(folder, ui_port=None, persistent=False) as stack,
        ):
            started()
            return asyncio.run(_play_all(chosen, stack, folder, doing, finished))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _play_all(
    chosen: Sequence[Scenario],
    stack: DevStack,
    folder: Path,
    doing: Callable[[str], None],
    finished: Callable[[Result], None],
) -> list[Result]:
    # The table alone goes to stdout.
    temporal = await Client.connect(stack.temporal_address, runtime=core_runtime())
    stages = asyncio.Semaphore(AT_A_TIME)

    async def one(number: int, scenario: Scenario) -> Result:
        async with stages:
            own = Path(tempfile.mkdtemp(prefix=f"scenario-{number}-", dir=folder))
            result = await play(scenario, temporal, stack, own, doing)
            finished(result)
            return result

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(*numbered)) for numbered in enumerate(chosen)]
    return [task.result() for task in tasks]


async def play(
    scenario: Scenario,
    temporal: Client,
    stack: DevStack,
    folder: Path,
    doing: Callable[[str], None] = lambda _: None,
) -> Result:
    """Play one scenario on a running stack.

    Args:
        scenario: What goes wrong, and when.
        temporal: Connected to the stack's server.
        stack: Gives the scenario a database of its own.
        folder: An existing folder for its logs.
        doing: Called with what begins, in words.
    """
    settings = Settings(
        database_url=await _new_database(stack, folder.name),
        task_queue=folder.name,
    )
    async with _provider() as provider, AgentClient(temporal, settings) as client:
        environment = {
            "TEMPORAL_ADDRESS": stack.temporal_address,
            "COMMITLINE_DATABASE_URL": settings.database_url,
            "COMMITLINE_TASK_QUEUE": settings.task_queue,
            "COMMITLINE_HEARTBEAT_SECONDS": "1",
            "COMMITLINE_BUILD_ID": "demo",
            "SHOP_PROVIDER_URL": provider.url,
        }
        under_way = Play(
            scenario,
            client=client,
            provider=provider,
            environment=environment,
            folder=folder,
            doing=doing,
        )
        return await under_way.play()


@asynccontextmanager
async def _provider() -> AsyncIterator[ProviderProcess]:
    """Start a provider in a thread: that takes a while, and other scenarios go on meanwhile."""
    with ExitStack() as stack:
        entering = asyncio.ensure_future(asyncio.to_thread(stack.enter_context, ProviderProcess()))
        try:
            yield await asyncio.shield(entering)
        finally:
            await asyncio.wait(
                {entering}
            )  # otherwise a process that starts now would never be stopped


async def _new_database(stack: DevStack, name: str) -> str:
    async with await psycopg.AsyncConnection.connect(
        stack.database_url, autocommit=True
    ) as connection:
        await connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    url = stack.url_of(name)
    await migrate(url)
    return url

"""The stage as fixtures."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from commitline.devstack import DevStack
from commitline.tests.crash.fork_server import ForkServer
from commitline.tests.crash.stage import Scene, Stage


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """The process from which the session's workers are forked."""
    folder = Path(tempfile.mkdtemp(prefix="commitline-"))  # short, as a socket's path must be
    with ForkServer(folder) as made:
        yield made
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def stage(
    devstack: DevStack,
    database_template: str,
    fork_server: ForkServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Stage:
    """The stage of the session."""
    return Stage(devstack, database_template, tmp_path_factory.mktemp("crash"), fork_server)


@pytest_asyncio.fixture
async def scene(stage: Stage) -> AsyncIterator[Scene]:
    """A scene for one test."""
    async with stage.scene() as made:
        yield made

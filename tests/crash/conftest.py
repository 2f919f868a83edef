"""The stage as fixtures."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from commitline.devstack import DevStack
from commitline.tests.crash.stage import Scene, Stage


@pytest.fixture(scope="session")
def stage(
    devstack: DevStack, database_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Stage:
    """The stage of the session."""
    return Stage(devstack, database_template, tmp_path_factory.mktemp("crash"))


@pytest_asyncio.fixture
async def scene(stage: Stage) -> AsyncIterator[Scene]:
    """A scene for one test."""
    async with stage.scene() as made:
        yield made

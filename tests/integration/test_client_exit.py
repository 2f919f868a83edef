"""How the process of an application's script ends."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Final

import pytest
from temporalio.client import Client

from commitline.client import AgentClient
from commitline.config import Settings
from commitline.devstack import DevStack

SCRIPT: Final = """
import asyncio
from commitline import AgentClient

async def main():
    async with await AgentClient.connect() as client:
        await asyncio.gather(*(client.temporal.count_workflows() for _ in range(20)))

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_script_that_closes_its_client_does_not_abort_at_its_exit(
    devstack: DevStack,
) -> None:
    """Of those that end at once, one in four does."""
    environment = {**os.environ, "TEMPORAL_ADDRESS": devstack.temporal_address}

    async def exit_status() -> int:
        script = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SCRIPT, env=environment, stderr=asyncio.subprocess.DEVNULL
        )
        return await script.wait()

    found = [await exit_status() for _ in range(16)]

    assert found == [0] * 16


async def test_only_the_first_close_lets_the_sdk_finish(temporal_client: Client) -> None:
    client = AgentClient(temporal_client, Settings())
    loop = asyncio.get_running_loop()

    began = loop.time()
    await client.close()
    first = loop.time() - began
    for _ in range(100):
        await client.close()
    others = loop.time() - began - first

    assert first >= 0.05
    assert others < 100 * 0.05 / 2

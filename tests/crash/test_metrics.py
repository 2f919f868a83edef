"""What a worker counts is served for Prometheus, by option."""

from __future__ import annotations

import asyncio
import re
import socket
import urllib.request

from commitline.tests.crash.stage import Scene


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def counted(text: str) -> dict[tuple[str, str], int]:
    """Return our counters by name and tool."""
    found = re.findall(r'^(commitline_\w+)\{[^}]*tool="(\w+)"[^}]*\} (\d+)', text, re.MULTILINE)
    return {(name, tool): int(number) for name, tool, number in found}


async def test_timeouts_errors_and_parks_are_counted_and_served(scene: Scene) -> None:
    address = f"127.0.0.1:{free_port()}"
    await scene.start()

    with scene.worker("metrics:app", COMMITLINE_METRICS_ADDRESS=address):
        await scene.aftermath()
        with await asyncio.to_thread(
            urllib.request.urlopen, f"http://{address}/metrics", timeout=40
        ) as answer:
            served = counted(answer.read().decode())

    assert served == {
        ("commitline_tool_timeouts", "hangs"): 1,
        ("commitline_parks", "hangs"): 1,
        ("commitline_tool_errors", "raises"): 1,
        ("commitline_parks", "raises"): 1,
        ("commitline_tool_errors", "has_no_time"): 1,
        ("commitline_node_timeouts", "has_no_time"): 1,
        ("commitline_parks", "has_no_time"): 1,
    }


async def test_an_address_that_is_taken_is_said_and_ends_the_worker(scene: Scene) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with scene.worker("metrics:app", COMMITLINE_METRICS_ADDRESS=address) as worker:
            assert worker.process is not None
            status = await asyncio.to_thread(worker.process.wait, 60)

    assert status == 1
    assert "COMMITLINE_METRICS_ADDRESS" in scene.log.read_text()

"""All that a worker writes is one JSON object a line, whoever writes it and whatever fails."""

import asyncio
import json
import os
import signal
from typing import Any

import pytest

from commitline.testing.proxy import TcpProxy
from commitline.tests.crash.stage import Played, Scene, Script, Stage, until


def _lines(scene: Scene) -> list[dict[str, Any]]:
    return [json.loads(line) for line in scene.log.read_text().splitlines()]


def _play() -> Script[list[dict[str, Any]]]:
    async def play(scene: Scene) -> list[dict[str, Any]]:
        async def logged(event: str) -> bool:
            return any(line["event"] == event for line in _lines(scene))

        with TcpProxy.before(scene.settings.database_url) as proxy:
            environment = {
                "COMMITLINE_DATABASE_URL": proxy.url(scene.settings.database_url),
                "COMMITLINE_STATEMENT_SECONDS": "1",
            }
            await scene.start()
            with scene.worker("noisy:app", **environment) as worker:
                await until(lambda: logged("tool.raised"))
                proxy.cut()
                await until(lambda: logged("ledger.unavailable"))
                proxy.restore()
                await scene.aftermath()
                await asyncio.to_thread(worker.terminate)
            with scene.worker("noisy:app") as killed:
                await until(lambda: logged("worker.stopped"))
                assert killed.process is not None
                os.kill(killed.process.pid, signal.SIGKILL)
        return _lines(scene)

    return play


@pytest.fixture(scope="module")
def lines(stage: Stage) -> list[dict[str, Any]]:
    """Everything that the workers of a run wrote that met all kinds of trouble."""
    played: Played[list[dict[str, Any]]] = stage.play({"noisy": _play()})
    return played["noisy"]


def _of(lines: list[dict[str, Any]], event: str) -> dict[str, Any]:
    return next(line for line in lines if line["event"].startswith(event))


def test_every_line_is_an_event_with_its_level_and_time(lines: list[dict[str, Any]]) -> None:
    assert all({"event", "level", "timestamp"} <= line.keys() for line in lines)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ("two\nlines of a library", None),
        ("caught", "ValueError"),
        ("thread.failed", "ValueError"),
        ("error.ignored", "ValueError"),
        ("log.unwritable", None),
        ("Task exception was never retrieved", "ValueError"),
    ],
)
def test_what_others_write_is_an_event_too(
    lines: list[dict[str, Any]], event: str, text: str | None
) -> None:
    found = _of(lines, event)

    assert text is None or found["exception"][0]["exc_type"] == text


def test_a_warning_is_an_event(lines: list[dict[str, Any]]) -> None:
    (found,) = {line["event"] for line in lines if "this is odd" in line["event"]}

    assert "UserWarning" in found


def test_no_traceback_has_a_secret(lines: list[dict[str, Any]]) -> None:
    assert "api_key=[redacted]" in json.dumps(lines)
    assert "sk-live-" not in json.dumps(lines)


def test_values_keep_their_types(lines: list[dict[str, Any]]) -> None:
    found = _of(lines, "typed")

    assert found["at"].startswith("20")
    assert (found["took"], found["where"], found["some"]) == (1.5, "/x", ["a"])


@pytest.mark.parametrize("event", ["two\nlines", "typed", "tool.raised"])
def test_what_a_call_writes_names_the_call(lines: list[dict[str, Any]], event: str) -> None:
    found = _of(lines, event)

    assert found["tool"] == "act"
    assert found["action_key"] == f"{found['run_key']}:{found['position']}"
    assert found["attempt"] == 1

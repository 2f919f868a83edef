"""What a worker counts is served for Prometheus, by option."""

from __future__ import annotations

import asyncio
import re
import socket
import urllib.request

from commitline.metrics import METRICS
from commitline.tests.crash.stage import Scene


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


Labels = frozenset[tuple[str, str]]


def served(text: str) -> dict[str, dict[Labels, float]]:
    """Return our series by name and by the labels that are no worker's."""
    found: dict[str, dict[Labels, float]] = {}
    for name, labels, number in re.findall(r"^(commitline_\w+)\{(.*)\} (\S+)$", text, re.MULTILINE):
        read = re.findall(r'(\w+)="([^"]*)"', labels)
        assert {"namespace", "task_queue"} < {key for key, _ in read}
        of_worker = ("namespace", "task_queue", "service_name")
        own = frozenset((key, value) for key, value in read if key not in of_worker)
        found.setdefault(name, {})[own] = float(number)
    return found


def labels(**given: str) -> Labels:
    return frozenset(given.items())


async def test_what_a_worker_measures_is_served_and_counters_begin_at_zero(scene: Scene) -> None:
    address, relay = f"127.0.0.1:{free_port()}", {"COMMITLINE_RELAY_SECONDS": "30"}
    await scene.start()

    with scene.worker("metrics:app", COMMITLINE_METRICS_ADDRESS=address, **relay):
        await scene.aftermath()
        with await asyncio.to_thread(
            urllib.request.urlopen, f"http://{address}/metrics", timeout=40
        ) as answer:
            series = served(answer.read().decode())

    counted = {
        (name, *sorted(value for _, value in own)): number
        for name, found in series.items()
        for own, number in found.items()
        if name.endswith("_total") and number
    }
    assert counted == {
        ("commitline_tool_timeouts_total", "hangs"): 1,
        ("commitline_parks_total", "hangs"): 1,
        ("commitline_tool_errors_total", "raises"): 1,
        ("commitline_parks_total", "raises"): 1,
        ("commitline_tool_errors_total", "has_no_time"): 1,
        ("commitline_node_timeouts_total", "has_no_time"): 1,
        ("commitline_parks_total", "has_no_time"): 1,
        ("commitline_model_tokens_total", "input", "metrics"): 11,
        ("commitline_model_tokens_total", "metrics", "output"): 7,
    }
    # Whatever has not happened is there, at zero.
    counters = {f"{one.name}_total" for one in METRICS if one.kind == "counter"}
    assert counters == {name for name in series if name.endswith("_total")}
    assert series["commitline_takeovers_total"][labels(tool="hangs")] == 0
    assert series["commitline_model_errors_total"][labels(model="metrics")] == 0
    assert series["commitline_undos_total"][labels(state="partly compensated")] == 0
    gauges = {one.name for one in METRICS if one.kind == "gauge"}
    assert gauges == {name for name in series if name in gauges}
    assert set(series["commitline_waiting"]) == {
        labels(kind=kind) for kind in ("unknown", "approval", "question", "relay")
    }
    assert series["commitline_ledger_up"] == {labels(): 1}
    durations = series["commitline_tool_duration_seconds_count"]
    assert durations == {
        labels(tool="hangs", outcome="timeout"): 1,
        labels(tool="raises", outcome="raised"): 1,
        labels(tool="has_no_time", outcome="raised"): 1,
    }
    models = series["commitline_model_duration_seconds_count"]
    assert models == {labels(model="metrics", outcome="returned"): 2}
    calls = series["commitline_ledger_call_duration_seconds_count"]
    assert calls[labels(call="ActionLedger.claim", outcome="answered")] == 3
    assert labels(call="count_waiting", outcome="answered") in calls
    assert {dict(own)["call"].count("<") for own in calls} == {0}


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

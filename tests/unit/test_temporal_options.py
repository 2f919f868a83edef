"""`App(temporal=…)`: what it may return, and what wins."""

import asyncio
from typing import Any

import pytest
from temporalio.client import Client, ClientConnectConfig
from temporalio.runtime import Runtime, TelemetryConfig

from commitline import config
from commitline.activities.app.temporal_options import temporal_options
from commitline.errors import ConfigurationError


def test_a_function_and_a_coroutine_function_give_options_alike() -> None:
    given: ClientConnectConfig = {"identity": "shop"}

    async def fetched() -> ClientConnectConfig:
        return given

    assert asyncio.run(temporal_options(lambda: given)) == given
    assert asyncio.run(temporal_options(fetched)) == given
    assert asyncio.run(temporal_options(None)) == {}


@pytest.mark.parametrize(
    ("given", "reason"),
    [({"codec": object()}, "'codec', which is no option"), (object(), "returned object, not")],
)
def test_what_is_no_option_of_the_client_is_named(given: Any, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        asyncio.run(temporal_options(lambda: given))


async def test_what_the_code_gives_wins_over_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "environment:7233")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "environment")

    client: Client = await config.connect_temporal({"target_host": "code:7233", "lazy": True})

    assert client.service_client.config.target_host == "code:7233"
    assert client.namespace == "environment"


def test_a_runtime_of_the_code_stays_and_takes_no_address_for_metrics() -> None:
    runtime = Runtime(telemetry=TelemetryConfig())

    assert config.with_core_runtime({"runtime": runtime}).get("runtime") is runtime
    with pytest.raises(ConfigurationError, match="COMMITLINE_METRICS_ADDRESS"):
        config.with_core_runtime({"runtime": runtime}, "127.0.0.1:9464")

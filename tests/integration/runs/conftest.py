"""Fixtures of the runs: a bench with a task queue of its own, and a provider that counts."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta

import pytest
from temporalio.client import Client

from commitline.activities.guard import retry
from commitline.config import Settings
from commitline.testing.processes import ProviderProcess

from .bench import Bench
from .playing import Signals


@pytest.fixture
def bench(temporal_client: Client, database_url: str) -> Bench:
    settings = Settings(
        database_url=database_url,
        task_queue=f"runs-{uuid.uuid4()}",
        heartbeat_seconds=1,
        grace_seconds=5,
        relay_seconds=0,  # hundreds of task queues: who needs the relay has it look
    )
    return Bench(temporal_client, settings)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProviderProcess]:
    """A provider, and the shop's tools pointed at it."""
    with ProviderProcess() as started:
        monkeypatch.setenv("SHOP_PROVIDER_URL", started.url)
        yield started


@pytest.fixture
def signals() -> Iterator[Signals]:
    """Cues, which let everything go on that a test leaves waiting."""
    made = Signals()
    yield made
    made.release.set()
    made.go_on.set()


@pytest.fixture(autouse=True)
def _nothing_called(request: pytest.FixtureRequest) -> None:
    """Empty what a module counts the calls of its tools in, which it names ``CALLED``."""
    called = getattr(request.module, "CALLED", None)
    if called is not None:
        called.clear()


@pytest.fixture(autouse=True)
def _tried_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers here wait a tenth of the usual time before a call's second try.

    How the time grows from try to try is `retry`'s and stays as it is.
    """
    monkeypatch.setattr(retry, "_FIRST_RETRY", timedelta(seconds=0.05))

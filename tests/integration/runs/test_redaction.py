"""A tool, or a model, that repeats a key in what it raises: nobody reads the key anywhere."""

from __future__ import annotations

import logging

import pytest
from structlog.testing import capture_logs

from commitline import Agent, App, Effect, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import call, say
from commitline.errors import ModelRejected

from .bench import Bench, fresh_id, one_agent

KEY = "sk-proj-abc123DEF456ghi"


async def test_what_a_tool_raises_is_kept_without_the_key(bench: Bench) -> None:
    @tool(effect=Effect.AT_MOST_ONCE)
    async def pay() -> None:
        """Pay, with a key in the error."""
        raise RuntimeError(f"api_key={KEY} card 4242424242424242")

    @tool(effect=Effect.READ)
    async def look() -> None:
        """Look, with a key in the error."""
        raise RuntimeError(f"401 for {KEY}")

    script = [call(("pay", {}), ("look", {})), say("Done.")]
    with capture_logs() as logs:
        async with bench.serving(one_agent([pay, look], script)) as client:
            ran = await bench.start(client)
            history = (await bench.history(ran.id)).to_json()

    rows = await bench.sql("select row_to_json(a)::text from agent_actions a")
    everything = repr((rows, ran.results, history, logs))
    assert "RuntimeError" in everything
    assert KEY not in everything
    assert "4242424242424242" not in everything


async def test_what_a_provider_says_of_a_key_reaches_no_history_and_no_log(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    class Provider:
        """A model whose provider repeats the key, in an error of an error."""

        name = "provider"

        async def complete(self, request: ModelRequest) -> Completion:
            try:
                raise ValueError(f"Bearer {KEY}")
            except ValueError as err:
                raise RuntimeError(f"401: Incorrect API key provided: {KEY}") from err

    app = App([Agent("agent", Provider(), "Do it.")])
    with caplog.at_level(logging.DEBUG):
        async with bench.serving(app) as client:
            run = await client.start("agent", "go", id=fresh_id())
            with pytest.raises(ModelRejected) as failed:
                await run.result()
            history = (await bench.history(run.id)).to_json()

    everything = repr((history, str(failed.value), caplog.text))
    assert "401: Incorrect API key" in everything
    assert KEY not in everything

"""Failed model requests are counted as configured, over attempts and not by Temporal."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from commitline import Agent, App
from commitline.activities.contract.conversation import Completion
from commitline.activities.model import ModelRequest
from commitline.activities.model.scripted_model import say
from commitline.errors import ModelUnavailable

from .bench import Bench

ASKED: Counter[str] = Counter()


class Flaky:
    """A model that is unavailable for its first requests."""

    def __init__(self, name: str, *, failures: int) -> None:
        self.name = name
        self._failures = failures

    async def complete(self, request: ModelRequest) -> Completion:
        ASKED[self.name] += 1
        if ASKED[self.name] <= self._failures:
            raise ModelUnavailable("503", retry_after=timedelta(milliseconds=50))
        return say("Done.")


def app_of(model: Flaky) -> App:
    return App(agents=[Agent("agent", model=model, instructions="", model_tries=3)])


async def test_a_model_that_stays_unavailable_is_asked_as_often_as_configured(
    bench: Bench,
) -> None:
    async with bench.serving(app_of(Flaky("always", failures=99))) as client:
        run = await client.start("agent", "go", id="always")
        with pytest.raises(ModelUnavailable, match="model request 3 of 3"):
            await run.result()

    assert ASKED["always"] == 3


async def test_a_model_that_comes_back_in_time_answers_the_run(bench: Bench) -> None:
    async with bench.serving(app_of(Flaky("twice", failures=2))) as client:
        run = await client.start("agent", "go", id="twice")
        result = await run.result()

    assert result.output == "Done."
    assert ASKED["twice"] == 3

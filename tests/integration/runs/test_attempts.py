"""What a tool raises decides what follows: both tables of `docs/guarantees.md`, in real runs."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from commitline import (
    NEVER_HAPPENED,
    Effect,
    NotAttempted,
    StillInProgress,
    Tool,
    ToolContext,
    ToolRefused,
    tool,
)
from commitline.activities.model.scripted_model import call, say

from .bench import Bench, Ran, one_agent

CALLED: Counter[str] = Counter()
EFFECTS = [Effect.READ, Effect.IDEMPOTENT, Effect.LOOKUP, Effect.AT_MOST_ONCE]
GUARDED = EFFECTS[1:]

Failing = Callable[[int], BaseException | None]
"""What the n-th call raises, from 1; None returns."""


class Declined(Exception):
    pass


class StatusError(Exception):
    def __init__(self, status_code: int) -> None:
        super().__init__(f"HTTP {status_code}")
        self.status_code = status_code


def failing(effect: Effect, fails: Failing, *, found: Any = NEVER_HAPPENED, **given: Any) -> Tool:
    """Make a tool that raises by a script, and whose downstream system answers ``found``."""

    def lookup(args: dict[str, Any], idempotency_key: str) -> Any:
        CALLED["lookup"] += 1
        return found

    if effect is Effect.LOOKUP:
        given = {"lookup": lookup, "lookup_settles_after": timedelta(), **given}

    @tool(effect=effect, name="act", **given)
    async def act() -> str:
        CALLED["act"] += 1
        error = fails(CALLED["act"])
        if error is not None:
            raise error
        return "acted"

    return act


async def run(bench: Bench, made: Tool) -> Ran:
    return await bench.run(one_agent([made], [call(("act", {})), say("Done.")]))


def always(error: BaseException) -> Failing:
    return lambda _: error


def times(count: int, error: BaseException) -> Failing:
    return lambda number: error if number <= count else None


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("error", [ToolRefused("no"), Declined("no")])
async def test_a_refusal_is_an_error_without_effect_and_is_not_repeated(
    bench: Bench, effect: Effect, error: BaseException
) -> None:
    ran = await run(bench, failing(effect, always(error), refused_on=(Declined,)))

    told = json.loads(ran.results[0].content)["error"]
    assert (told["type"], told["effect"]) == (type(error).__name__, "none")
    assert CALLED["act"] == 1
    assert [a.state for a in ran.actions] == ([] if effect is Effect.READ else ["error"])


@pytest.mark.parametrize("effect", EFFECTS)
async def test_what_was_not_attempted_is_tried_again_whatever_the_effect(
    bench: Bench, effect: Effect
) -> None:
    ran = await run(bench, failing(effect, times(2, NotAttempted("no connection"))))

    assert ran.results[0].status == "ok"
    assert CALLED["act"] == 3
    assert CALLED["lookup"] == 0
    assert [a.state for a in ran.actions] == ([] if effect is Effect.READ else ["ok"])


@pytest.mark.parametrize("effect", EFFECTS)
async def test_what_was_never_attempted_ends_as_an_error_without_effect(
    bench: Bench, effect: Effect
) -> None:
    ran = await run(bench, failing(effect, always(NotAttempted("no connection")), tries=2))

    told = json.loads(ran.results[0].content)["error"]
    assert (told["type"], told["effect"]) == ("NotAttempted", "none")
    assert CALLED["act"] == 2
    for action in ran.actions:
        assert (action.state, action.effect_possible) == ("error", False)


@pytest.mark.parametrize("effect", EFFECTS)
async def test_what_is_in_progress_downstream_is_asked_again_and_never_told(
    bench: Bench, effect: Effect
) -> None:
    # More often than `tries`, which it does not use up.
    ran = await run(
        bench,
        failing(
            effect, times(3, StillInProgress("409", retry_after=timedelta(seconds=0.01))), tries=2
        ),
    )

    assert ran.results[0].status == "ok"
    assert "409" not in ran.results[0].content
    assert CALLED["act"] >= 1


@pytest.mark.parametrize(
    "error", [ConnectionResetError("cut"), TimeoutError(), StatusError(503), StatusError(429)]
)
async def test_a_passing_failure_is_repeated_under_the_same_key(
    bench: Bench, error: BaseException
) -> None:
    ran = await run(bench, failing(Effect.IDEMPOTENT, times(2, error)))

    assert ran.results[0].status == "ok"
    assert CALLED["act"] == 3
    assert [(a.state, a.failures, a.tries) for a in ran.actions] == [("ok", 2, 3)]


@pytest.mark.parametrize(
    ("effect", "calls", "status"),
    [
        (Effect.READ, 3, "error"),
        (Effect.IDEMPOTENT, 3, "unknown"),
        (Effect.LOOKUP, 3, "error"),  # asked after the last one, too: it surely never happened
        (Effect.AT_MOST_ONCE, 1, "unknown"),
    ],
)
async def test_a_lasting_failure_ends_after_the_declared_tries(
    bench: Bench, effect: Effect, calls: int, status: str
) -> None:
    ran = await run(bench, failing(effect, always(ConnectionRefusedError("no"))))

    assert ran.results[0].status == status
    assert CALLED["act"] == calls


async def test_a_read_that_is_in_progress_is_asked_again_as_often_as_it_takes(bench: Bench) -> None:
    ran = await run(bench, failing(Effect.READ, times(2, StillInProgress("409")), tries=1))

    assert (ran.results[0].status, CALLED["act"]) == ("ok", 3)


async def test_a_call_that_is_sent_again_after_a_lookup_knows_that_it_is(bench: Bench) -> None:
    knew: list[bool] = []

    @tool(
        effect=Effect.LOOKUP,
        lookup=lambda args, key: NEVER_HAPPENED,
        lookup_settles_after=timedelta(),
    )
    async def act(ctx: ToolContext) -> str:
        knew.append(ctx.taken_over)
        if len(knew) == 1:
            raise ConnectionResetError("cut")
        return "acted"

    ran = await run(bench, act)

    assert (ran.results[0].status, knew) == ("ok", [False, True])


async def test_a_lookup_denies_nothing_while_the_last_try_goes_on(bench: Bench) -> None:
    release = threading.Event()

    @tool(
        effect=Effect.LOOKUP,
        lookup=lambda args, key: NEVER_HAPPENED,
        lookup_settles_after=timedelta(),
        tool_timeout=0.3,
        tries=1,
    )
    def act() -> str:
        release.wait(30)
        return "acted"

    ran = await run(bench, act)
    release.set()

    assert (ran.results[0].status, ran.actions[0].state) == ("unknown", "unknown")


@pytest.mark.parametrize("effect", EFFECTS)
async def test_any_other_failure_is_not_repeated(bench: Bench, effect: Effect) -> None:
    ran = await run(bench, failing(effect, always(ValueError("status 503 in prose"))))

    assert ran.results[0].status == ("error" if effect is Effect.READ else "unknown")
    assert CALLED["act"] == 1


async def test_a_looked_up_action_that_happened_is_recorded_and_not_sent_again(
    bench: Bench,
) -> None:
    made = failing(Effect.LOOKUP, always(ConnectionResetError("cut")), found="found")

    ran = await run(bench, made)

    assert json.loads(ran.results[0].content) == "found"
    assert CALLED == {"act": 1, "lookup": 1}
    assert [a.state for a in ran.actions] == ["ok"]


async def test_never_happened_counts_only_after_the_downstream_system_has_settled(
    bench: Bench,
) -> None:
    made = failing(
        Effect.LOOKUP,
        times(1, ConnectionResetError("cut")),
        lookup_settles_after=timedelta(seconds=1.5),
    )

    ran = await run(bench, made)

    (action,) = ran.actions
    assert action.state == "ok"
    assert CALLED["act"] == 2
    assert CALLED["lookup"] >= 2
    assert action.dispatched_at is not None
    assert action.done_at is not None
    assert action.done_at - action.dispatched_at >= timedelta(seconds=1.5)

"""What may be local, and what a run makes of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from commitline import Agent, Effect, Tool, ToolContext, tool
from commitline.activities.contract.deadlines import RunLimits
from commitline.errors import DefinitionError
from commitline.testing import ScriptedModel
from commitline.workflows.local_room import LocalRoom

MODEL = ScriptedModel("scripted", [])


def made(**options: Any) -> Tool:
    @tool(effect=Effect.IDEMPOTENT, local=True, **{"tool_timeout": 5, **options})
    async def act(ctx: ToolContext) -> None:
        """Act."""

    return act


@pytest.mark.parametrize("timeout", [30.5, None, 0, timedelta(minutes=5), "unset"])
def test_a_local_tool_says_that_it_is_short(timeout: Any) -> None:
    with pytest.raises(DefinitionError, match="is local: give it a tool_timeout of 30 s at most"):
        made(tool_timeout=timeout)


def test_a_local_tool_runs_in_its_worker_and_not_by_the_relay() -> None:
    with pytest.raises(DefinitionError, match="is local, and cannot run in a process"):
        made(isolation="process")
    with pytest.raises(DefinitionError, match="is local, and cannot be left to the relay"):
        made(detached=True)


def test_a_local_tool_asks_nobody() -> None:
    assert not made().may_interrupt


@pytest.mark.parametrize("timeout", [31, None, "unset"])
def test_a_local_agent_says_that_its_model_answers_soon(timeout: Any) -> None:
    with pytest.raises(DefinitionError, match="is local: give it a model_timeout of 30 s at most"):
        Agent("agent", MODEL, "", local=True, model_timeout=timeout)


def test_a_run_keeps_what_is_local() -> None:
    agent = Agent("agent", MODEL, "", [made()], local=True, model_timeout=30)

    spec = agent.spec(heartbeat_seconds=1, limits=RunLimits())

    assert (spec.local, spec.tools[0].local) == (True, True)


def test_what_a_run_gives_more_time_than_that_is_not_local() -> None:
    agent = Agent("agent", MODEL, "", [made()], local=True, model_timeout=30)

    spec = agent.spec(
        heartbeat_seconds=1, limits=RunLimits(model_timeout=60, tool_timeouts={"act": 60})
    )

    assert (spec.local, spec.tools[0].local) == (False, False)


def test_what_local_activities_return_goes_to_the_server_before_it_is_too_much() -> None:
    room = LocalRoom()
    while room.is_left:
        room.take(100_000)

    room.clear()

    assert room.is_left

"""Deadlines: which setting wins, what is no limit, and where the server's time-outs lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from commitline import Agent, Effect, ScriptedModel, Tool, tool
from commitline.activities.contract.deadlines import (
    DEFAULTS,
    NO_LIMIT,
    UNSET,
    CallLimits,
    RunLimits,
    resolve,
)
from commitline.activities.contract.spec import AgentSpec
from commitline.activities.runs.run import _with_time_left
from commitline.identity import RunKey
from commitline.ledger import Run

SLACK = timedelta(seconds=10)
"""How far the server's time-outs must lie beyond ours at least."""


def acting(**given: Any) -> Tool:
    @tool(effect=Effect.READ, **given)
    def act() -> str:
        return "acted"

    return act


def spec_of(
    limits: RunLimits | None = None,
    *,
    tools: Sequence[Tool] = (),
    **given: Any,
) -> AgentSpec:
    agent = Agent("agent", ScriptedModel("scripted", []), "", tools=tools, **given)
    return agent.spec(heartbeat_seconds=1, limits=limits or RunLimits())


@pytest.mark.parametrize("name", ["tool_timeout", "node_timeout", "model_timeout"])
def test_the_most_specific_setting_wins_and_the_default_comes_last(name: str) -> None:
    assert resolve(name, 1, 2, 3) == 1
    assert resolve(name, UNSET, 2, 3) == 2
    assert resolve(name, UNSET, UNSET, 3) == 3
    assert resolve(name, UNSET, UNSET) == DEFAULTS[name]
    assert resolve(name) == DEFAULTS[name]


def test_the_defaults_are_what_the_documentation_says() -> None:
    assert DEFAULTS == {"tool_timeout": 300.0, "node_timeout": 900.0, "model_timeout": 600.0}
    assert resolve("run_deadline", UNSET, UNSET) is None


@pytest.mark.parametrize(
    "setting", [None, 0, 0.0, -1, -0.5, "0", "-3", timedelta(), -timedelta(seconds=1), math.inf]
)
def test_none_zero_and_less_mean_no_limit_and_win_over_what_is_less_specific(setting: Any) -> None:
    with capture_logs() as logs:
        assert resolve("tool_timeout", setting, 5) is None

    assert logs == []


@pytest.mark.parametrize("setting", ["abc", "", [], {}, True, False, math.nan, "nan", object()])
def test_what_is_no_number_is_logged_and_the_default_used(setting: Any) -> None:
    with capture_logs() as logs:
        assert resolve("tool_timeout", setting, 5) == DEFAULTS["tool_timeout"]
        assert resolve("run_deadline", setting, 5) is None

    assert [(log["event"], log["setting"], log["log_level"]) for log in logs] == [
        ("limits.setting_invalid", "tool_timeout", "warning"),
        ("limits.setting_invalid", "run_deadline", "warning"),
    ]
    assert logs[0]["value"] == repr(setting)[:80]


@pytest.mark.parametrize(
    ("setting", "seconds"),
    [("5", 5), (" 0.5 ", 0.5), (7, 7), (0.25, 0.25), (timedelta(minutes=2), 120)],
)
def test_seconds_may_be_a_number_a_text_or_a_duration(setting: Any, seconds: float) -> None:
    assert resolve("tool_timeout", setting) == seconds


@pytest.mark.parametrize("seconds", [10**12, 1e300, timedelta.max, "1e18"])
def test_what_no_server_takes_is_no_limit(seconds: Any) -> None:
    assert resolve("tool_timeout", seconds) is None


@pytest.mark.parametrize("seconds", [0.001, 1.0, 300.0, 86_400.0])
def test_the_servers_time_outs_lie_well_beyond_ours(seconds: float) -> None:
    slack = CallLimits(seconds, seconds).start_to_close - timedelta(seconds=seconds)

    assert slack >= SLACK


def test_without_a_limit_the_server_gets_years() -> None:
    assert CallLimits(None, None).start_to_close == NO_LIMIT
    assert timedelta(days=3650) <= NO_LIMIT


@pytest.mark.parametrize(
    ("attempt", "node", "nearest"),
    [(1.0, 2.0, 1.0), (2.0, 1.0, 1.0), (None, 2.0, 2.0), (2.0, None, 2.0), (None, None, None)],
)
def test_the_nearest_deadline_ends_an_attempt(
    attempt: float | None, node: float | None, nearest: float | None
) -> None:
    assert CallLimits(attempt, node).nearest == nearest


TOOL_TIMEOUTS = [
    ({"run for it": 1, "tool": 2, "run": 3, "agent": 4}, 1),
    ({"tool": 2, "run": 3, "agent": 4}, 2),
    ({"run": 3, "agent": 4}, 3),
    ({"agent": 4}, 4),
    ({}, 300),
    ({"run for it": None, "tool": 2}, None),
    ({"run for it": 0, "tool": 2}, None),
    ({"tool": None, "run": 3}, None),
    ({"run": None, "agent": 4}, None),
    ({"run for it": "soon", "tool": 2}, 300),
    ({"run for it": "1.5", "tool": 2}, 1.5),
]


@pytest.mark.parametrize(("given", "seconds"), TOOL_TIMEOUTS, ids=str)
def test_a_tools_time_is_the_runs_for_it_then_its_own_the_runs_the_agents(
    given: dict[str, Any], seconds: float | None
) -> None:
    made = acting(tool_timeout=given.get("tool", UNSET))
    limits = RunLimits(
        tool_timeout=given.get("run", UNSET),
        tool_timeouts={"act": given["run for it"]} if "run for it" in given else {"other": 9},
    )

    spec = spec_of(limits, tools=[made], tool_timeout=given.get("agent", UNSET))

    assert spec.tools[0].tool_seconds == seconds
    assert spec.tools[0].limits.attempt_seconds == seconds


@pytest.mark.parametrize(
    ("given", "of_tool", "of_model"),
    [
        ({"tool": 1, "run": 2, "agent": 3}, 1, 2),
        ({"run": 2, "agent": 3}, 2, 2),
        ({"agent": 3}, 3, 3),
        ({}, 900, 900),
        ({"tool": None, "run": 2}, None, 2),
        ({"tool": 1, "run": 0}, 1, None),
    ],
    ids=str,
)
def test_a_nodes_time_is_the_tools_then_the_runs_the_agents(
    given: dict[str, Any], of_tool: float | None, of_model: float | None
) -> None:
    made = acting(node_timeout=given.get("tool", UNSET))

    spec = spec_of(
        RunLimits(node_timeout=given.get("run", UNSET)),
        tools=[made],
        node_timeout=given.get("agent", UNSET),
    )

    assert spec.tools[0].limits.node_seconds == of_tool
    assert spec.model_limits.node_seconds == of_model


def test_a_models_time_is_the_runs_then_the_agents() -> None:
    assert spec_of(RunLimits(model_timeout=1), model_timeout=2).model_seconds == 1
    assert spec_of(model_timeout=2).model_seconds == 2
    assert spec_of().model_limits.attempt_seconds == 600
    assert spec_of(RunLimits(model_timeout=None), model_timeout=2).model_seconds is None


def test_a_runs_deadline_is_the_runs_then_the_agents() -> None:
    minute = timedelta(minutes=1)

    assert spec_of(RunLimits(run_deadline=90), run_deadline=10).deadline_seconds == 90
    assert spec_of(run_deadline=minute).deadline_seconds == 60
    assert spec_of().deadline_seconds is None
    assert spec_of(RunLimits(run_deadline=0), run_deadline=10).deadline_seconds is None


def run_that_began(spent: timedelta) -> Run:
    """Return the row of a run that has been there for some time, by the database's clock."""
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    return Run(
        run_key=RunKey("r/1"),
        workflow_id="r",
        agent="agent",
        input_digest="d",
        state="running",
        epoch=0,
        # The engine's clock, and a retry's: neither counts.
        opened_attempt_at=now + timedelta(hours=1),
        ended_attempt_at=None,
        created_at=now - spent,
        stopped_at=None,
        stop_reason=None,
        thread_id="r/1",
        spec=None,
        fork_step=None,
        input_tokens=0,
        output_tokens=0,
        parent_key=None,
        compensate=False,
        undo_began_at=None,
        undo_ended_at=None,
        undo_owner=None,
        workflow_status=None,
        owner=None,
        namespace=None,
        timeline=None,
        now=now,
    )


def test_a_run_that_opens_again_has_what_is_left_of_its_deadline() -> None:
    run = run_that_began(timedelta(minutes=1))
    kept = spec_of(RunLimits(run_deadline=90), tools=[acting()])

    assert _with_time_left(kept, run) == replace(kept, deadline_seconds=30)
    assert _with_time_left(spec_of(run_deadline=30), run).deadline_seconds == -30
    assert _with_time_left(spec_of(), run).deadline_seconds is None
    assert _with_time_left(kept, run_that_began(timedelta())) == kept


def test_what_a_run_was_given_travels_as_plain_json() -> None:
    limits = RunLimits(
        tool_timeout=timedelta(seconds=2), run_deadline=None, tool_timeouts={"act": timedelta(1)}
    )

    assert RunLimits().given == {}
    assert limits.given == {
        "tool_timeout": 2.0,
        "run_deadline": None,
        "tool_timeouts": {"act": 86_400.0},
    }
    assert RunLimits(**limits.given).given == limits.given


def test_what_has_no_json_form_travels_as_a_text_and_is_invalid_there() -> None:
    wrong: Any = object()
    given = RunLimits(tool_timeout={"a": {1}}, model_timeout=wrong).given  # type: ignore[arg-type]

    with capture_logs() as logs:
        spec = spec_of(RunLimits(**given), tools=[acting()])

    assert spec.tools[0].tool_seconds == 300
    assert spec.model_seconds == 600
    assert {log["event"] for log in logs} == {"limits.setting_invalid"}

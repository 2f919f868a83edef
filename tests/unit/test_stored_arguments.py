"""Stored arguments where no worker of ours binds them: plain activities, isolated processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from temporalio import activity
from temporalio.converter import PayloadConverter

from commitline import Effect, ToolContext, tool
from commitline.activities.app.tool_failure import FailureKind, ToolFailure
from commitline.activities.runner.isolated_call import IsolatedCall
from commitline.activities.runner.isolated_child import _ended
from commitline.errors import ArgumentsChanged
from commitline.identity import ActionKey, Position, RunKey
from commitline.integrations.own_activities import OwnCall

CONTEXT = ToolContext("key", ActionKey("r/1:0.0"), RunKey("r/1"), Position("0.0"), "t", False)


@dataclass
class Parcel:
    number: int
    country: str = "DE"


@activity.defn
async def ship(parcel: Parcel, express: bool = False) -> None: ...


@tool(effect=Effect.AT_MOST_ONCE)
def lend(cents: int, currency: str = "EUR") -> str:
    raise AssertionError("it was called")


def bound(function: Callable[..., Any], stored: list[Any]) -> Any:
    call = OwnCall("lend", [], function, PayloadConverter.default)
    return call.args_with(stored)


def test_an_activity_gets_its_stored_arguments() -> None:
    assert bound(ship, [{"number": 1, "country": "AT"}, True]) == [Parcel(1, "AT"), True]


@pytest.mark.parametrize(
    "stored",
    [
        [{"number": 1, "country": "AT"}],
        [{"number": 1}, True],
        [{"number": 1, "country": "AT"}, True, "a third"],
        [{"country": "AT"}, True],
    ],
    ids=["a new default", "a new default within", "one too many", "one is missing within"],
)
def test_an_activity_that_would_get_others_is_not_called(stored: list[Any]) -> None:
    with pytest.raises(ArgumentsChanged):
        bound(ship, stored)


def test_an_isolated_tool_that_would_get_others_had_surely_no_effect() -> None:
    call = IsolatedCall.of(lend, '{"cents":1}', CONTEXT, None)

    ended = _ended(replace(call, parent=os.getpid()))

    assert isinstance(ended, ToolFailure)
    assert (ended.kind, ended.type) == (FailureKind.REFUSED, "ArgumentsChanged")

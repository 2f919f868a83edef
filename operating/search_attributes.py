"""The search attributes, for `commitline doctor`: whether a namespace has them, and adding them."""

from __future__ import annotations

from typing import Final

from temporalio.service import RPCError

from ..activities.runs.search_attributes import (
    missing_attributes,
    register_attributes,
    register_command,
)
from ..config import Settings
from ..errors import ConfigurationError
from .check import Check
from .command_client import command_temporal

_NAME: Final = "search attributes"


async def search_attributes(*, fix: bool = False) -> Check:
    """Whether Temporal's list can show runs by agent, conversation and state.

    Args:
        fix: Add those that the namespace lacks. Safe to repeat.
    """
    try:
        client = await command_temporal(Settings.load())
        refused = ""
        if fix:
            try:
                await register_attributes(client)
            except RPCError as err:
                refused = f"; the server refuses them: {err.message[:200]}"
        missing = await missing_attributes(client)
    except (ConfigurationError, RPCError):
        return Check(_NAME, "missing", "no Temporal that says which it has", needed=False)
    if not missing:
        return Check(_NAME, "ok", f"namespace {client.namespace} has them", needed=False)
    command = f"`{register_command(client.namespace)}`"
    remedy = command if refused else f"`commitline doctor --fix`, or {command}"
    found = f"namespace {client.namespace} lacks {', '.join(missing)}{refused}"
    return Check(_NAME, "missing", found, remedy, needed=False)

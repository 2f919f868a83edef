"""The client of a command, of which nothing but the command's result goes to stdout."""

from __future__ import annotations

from ..client import AgentClient
from ..config import Settings, check_namespace, connect_temporal, core_runtime
from .connection import leave_out_tries


async def open_client() -> AgentClient:
    """Return a client by the settings; what the SDK's core logs goes to stderr.

    Raises:
        ConfigurationError: No Temporal server answers, it has no such namespace, or a setting is
            unusable.
    """
    settings = Settings.load()
    leave_out_tries()
    temporal = await connect_temporal(runtime=core_runtime())
    # Not later: of a namespace that does not exist, each thing in it is not found.
    await check_namespace(temporal)
    return AgentClient(temporal, settings)

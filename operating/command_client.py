"""The Temporal client of a command, of which nothing but the command's result goes to stdout.

What an application gives the client in code, a codec say, comes from the app that COMMITLINE_APP
names: a command without it could read nothing of a run whose payloads are encoded.
"""

from __future__ import annotations

from temporalio.client import Client

from ..client import AgentClient
from ..config import Settings, check_namespace, connect_temporal, with_core_runtime
from .connection import leave_out_tries


async def open_client() -> AgentClient:
    """Return a client by the settings; what the SDK's core logs goes to stderr.

    Raises:
        ConfigurationError: No Temporal server answers, it has no such namespace, or a setting is
            unusable.
    """
    settings = Settings.load()
    leave_out_tries()
    temporal = await command_temporal(settings)
    # Not later: of a namespace that does not exist, each thing in it is not found.
    await check_namespace(temporal)
    return AgentClient(temporal, settings)


async def command_temporal(settings: Settings) -> Client:
    """Return a Temporal client by the settings, and by the app that they name.

    Raises:
        ConfigurationError: No server answers, or there is no such app.
    """
    if not settings.app:
        return await connect_temporal(with_core_runtime({}))
    # Not for a command that has no app: it takes a second.
    from ..activities.app.load import load_app
    from ..activities.app.temporal_options import temporal_options

    options = await temporal_options(load_app(settings.app).temporal)
    return await connect_temporal(with_core_runtime(options))

"""What an application gives the Temporal client in code: `App(temporal=…)`.

def options() -> ClientConnectConfig:
    return {"data_converter": DataConverter(payload_codec=Encryption())}

app = App([support], temporal=options)

What the environment and a profile say holds for everything that the function leaves out.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, cast

from temporalio.client import ClientConnectConfig

from ...errors import ConfigurationError

TemporalOptions: TypeAlias = Callable[[], ClientConnectConfig | Awaitable[ClientConnectConfig]]
"""Returns arguments of `Client.connect`, those that the environment does not give, or gives
otherwise. It may be a coroutine function: a key may have to be fetched. It is called once for
each client, in every process that makes one, so it is safe to repeat."""


async def temporal_options(give: TemporalOptions | None) -> ClientConnectConfig:
    """Return what an app gives the client; empty where it gives nothing.

    Raises:
        ConfigurationError: It gives something else than options of the client.
    """
    if give is None:
        return {}
    given: Any = give()
    if inspect.isawaitable(given):
        given = await given
    known = ClientConnectConfig.__annotations__
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"App(temporal=…) returned {type(given).__name__}, not the options of Client.connect"
        )
    if unknown := sorted(str(name) for name in given if name not in known):
        raise ConfigurationError(
            f"App(temporal=…) returned {unknown[0]!r}, which is no option of Client.connect"
        )
    return cast("ClientConnectConfig", given)

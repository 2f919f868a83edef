"""Settings: Temporal by its own SDK's configuration, everything else by ``COMMITLINE_…``.

What is not set falls back to the servers of ``commitline dev``, if they run: that command
leaves their addresses in ``.commitline/dev.json``, and every other command looks for that
file in the working directory and the folders above it, and takes no other user's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, ClientConnectConfig
from temporalio.envconfig import ClientConfig
from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    PrometheusConfig,
    Runtime,
    TelemetryConfig,
)
from temporalio.service import RPCError, RPCStatusCode

from .canonical import scrub
from .database_url import check_database_url
from .errors import ConfigurationError
from .logs import core_logger
from .metrics import METRICS, SECONDS
from .private_files import read_trusted, write_private

DATA_DIR: Final = ".commitline"
ADDRESSES_FILE: Final = "dev.json"
PREFIX: Final = "COMMITLINE_"
_NO_SETTINGS: Final = frozenset({"COMMITLINE_CRASH_AT", "COMMITLINE_VERSION"})
"""Variables that are read elsewhere: by the crash points, and by ``docker-compose.yml``."""


@dataclass(frozen=True)
class DevAddresses:
    """Where the servers of ``commitline dev`` listen, and who runs them."""

    temporal_address: str
    """Of the Temporal server, as ``host:port``."""
    ui_url: str
    """Of Temporal's UI; empty where there is none."""
    database_url: str
    """Of the ledger's Postgres."""
    pid: int
    """The process of ``commitline dev``; while it lives, the servers run."""

    def write(self, data_dir: Path) -> None:
        """Write the addresses where the other commands look, as a whole or not at all."""
        target = data_dir / ADDRESSES_FILE
        draft = target.with_suffix(".tmp")
        write_private(draft, json.dumps(asdict(self)))
        draft.replace(target)

    @classmethod
    def find(cls, start: Path | None = None) -> DevAddresses | None:
        """Return the addresses of a *running* ``commitline dev`` at or above ``start``.

        Only where this user, or root, has written them: a password is sent to where they lead.
        """
        start = (start or Path.cwd()).resolve()
        for folder in (start, *start.parents):
            written = read_trusted(folder / DATA_DIR / ADDRESSES_FILE)
            if written is not None:
                try:
                    found = cls(**json.loads(written))
                except (ValueError, TypeError):
                    return None  # left by another version, or cut off
                return found if _is_alive(found.pid) else None
        return None


class Settings(BaseModel):
    """The settings of a worker or a client; each field is set by ``COMMITLINE_<FIELD>``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    database_url: str = Field(default="", repr=False)
    """The ledger's Postgres, as a URL or a libpq connection string."""
    app: str = ""
    """The App, as ``module:attribute``: commands use the Temporal client that its ``temporal``
    describes, and a worker that is told of no other serves it."""
    task_queue: str = Field(default="commitline", min_length=1)
    """Temporal's queue, through which runs and the workers that serve them find each other."""
    pool_size: int = Field(default=10, ge=1)
    """Connections at most. One is held for a statement, never during a tool or model call."""
    prepared_statements: bool | None = None
    """Whether statements are prepared. By default they are on each connection that goes straight to
    Postgres. ``true`` is for a pooler that keeps them: PgBouncer from 1.22 on, with
    ``max_prepared_statements`` above 0, and libpq 17. Behind any other it does nothing."""
    statement_seconds: float = Field(default=10.0, gt=0)
    """The deadline of one ledger call, waiting for a connection included."""
    heartbeat_seconds: float = Field(default=3.0, ge=1)
    """How soon a dead worker is noticed. Read when a run starts, then kept by the run."""
    grace_seconds: float = Field(default=30.0, gt=0)
    """How long a worker may finish what it has begun, after SIGTERM or SIGINT."""
    result_limit: int = Field(default=256 * 1024, ge=1024, le=256 * 1024)
    """Characters of a tool's result that the model reads; the whole stays in the ledger.
    Read when a run starts, then kept by the run."""
    relay_seconds: float = Field(default=30.0, ge=0)
    """How often the relay looks for actions that no run carries on, and for runs that ended
    without closing themselves. After a notification it looks at once. 0 switches the relay off in
    this worker."""
    relay_tries: int = Field(default=30, ge=1)
    """How many times an action that the relay sends may fail before a person has to settle it;
    over some hours."""
    notify_url: str = Field(default="", repr=False)
    """Where to LISTEN for notifications, where ``database_url`` is a pooler in transaction mode.
    By default the ledger's own."""
    max_concurrent_activities: int = Field(default=100, ge=1)
    """How many activities a worker runs at a time: tool calls, model requests, ledger calls."""
    build_id: str = ""
    """Names this build of the worker in Temporal's history, as a commit's hash does; by default
    Commitline's version. It stands six times in the history of a turn."""
    metrics_address: str = ""
    """Where a worker serves its metrics for Prometheus, as ``host:port``; empty is nowhere."""
    traces: Literal["off", "on", "content"] = "off"
    """Whether a worker sends spans by OpenTelemetry (the extra ``otel``).
    ``content``: with arguments, results and messages."""
    deployment: str = Field(default="", pattern=r"^[^.]*$")
    """Names the Worker Deployment of which a worker is a version, by its ``build_id``; empty is
    none."""
    versioning: Literal["auto_upgrade", "pinned"] = "auto_upgrade"
    """What a run under a deployment does when another version becomes current: go on there, or
    stay. Undos and settlements always go on there."""
    health_address: str = ""
    """Where a worker answers ``/live`` and ``/ready``, as ``host:port``; empty is nowhere."""

    @property
    def grace(self) -> timedelta:
        """``grace_seconds`` as the SDK wants it."""
        return timedelta(seconds=self.grace_seconds)

    @classmethod
    def load(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read the environment, then the servers of ``commitline dev``.

        Raises:
            ConfigurationError: A value cannot be used, or there is no such setting; the message
                names the variable.
        """
        environment = os.environ if environment is None else environment
        _check_known(environment, known=[PREFIX + name.upper() for name in cls.model_fields])
        # A value that came from a file, as a secret does, often ends in a newline.
        values = {name: environment.get(PREFIX + name.upper(), "") for name in cls.model_fields}
        given = {name: value.strip() for name, value in values.items() if value.strip()}
        if "database_url" not in given and (dev := DevAddresses.find()):
            given["database_url"] = dev.database_url
        try:
            settings = cls.model_validate(given)
        except ValidationError as err:
            first = err.errors(include_input=False, include_url=False)[0]
            name = PREFIX + str(first["loc"][0]).upper()
            raise ConfigurationError(f"{name}: {first['msg']}") from err
        for name in ("database_url", "notify_url"):
            check_database_url(getattr(settings, name), name=PREFIX + name.upper())
        return settings

    def require_database(self) -> str:
        """Return the database URL.

        Raises:
            ConfigurationError: None is set and no ``commitline dev`` runs here.
        """
        if not self.database_url:
            raise ConfigurationError(
                "no database: set COMMITLINE_DATABASE_URL, or start `commitline dev` in this folder"
            )
        return self.database_url

    def require_app(self) -> str:
        """Return the name of the app.

        Raises:
            ConfigurationError: None is set.
        """
        if not self.app:
            raise ConfigurationError("no app: name it as module:attribute, or set COMMITLINE_APP")
        return self.app


def _check_known(environment: Mapping[str, str], *, known: Sequence[str]) -> None:
    """Refuse a variable of ours that nothing reads: it is a slip, and its default would hold.

    Raises:
        ConfigurationError: The message names it, and what may have been meant.
    """
    for name in environment:
        if name.startswith(PREFIX) and name not in _NO_SETTINGS and name not in known:
            meant = get_close_matches(name, known, n=1, cutoff=0.8)
            raise ConfigurationError(
                f"{scrub(name, limit=100)}: there is no such setting"
                + (f"; {meant[0]} may be meant" if meant else "")
            )


async def connect_temporal(options: ClientConnectConfig | None = None) -> Client:
    """Connect as ``TEMPORAL_ADDRESS``, ``TEMPORAL_PROFILE``, … say, else to ``commitline dev``.

    Args:
        options: What is given in code; wins over the environment.

    Raises:
        ConfigurationError: No server answers at the address.
    """
    try:
        config = ClientConfig.load_client_connect_config()
    except RuntimeError as err:
        # One line of it: the lines below show the file, in which an API key may stand.
        reason = str(err).partition("\n")[0][:200]
        raise ConfigurationError(f"Temporal's configuration cannot be read: {reason}") from None
    connect: ClientConnectConfig = {**config, **(options or {})}
    if "target_host" not in connect and (dev := DevAddresses.find()):
        connect["target_host"] = dev.temporal_address
    address = connect["target_host"] = connect.get("target_host", "localhost:7233").strip()
    try:
        return await Client.connect(**connect)
    except RuntimeError as err:
        # The core's text is a nest of Rust types; what a person needs of it is this.
        refused = "ConnectionRefused" in str(err)
        reason = "connection refused" if refused else str(err).partition("\n")[0][:200]
        raise ConfigurationError(f"no Temporal server at {address}: {reason}") from err


async def check_namespace(client: Client) -> None:
    """Ask the server for the client's namespace. To connect says nothing of it.

    Raises:
        ConfigurationError: The server has none of that name, or does not show it.
    """
    at = f"Temporal at {client.service_client.config.target_host}"
    try:
        await client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=client.namespace), retry=True
        )
    except RPCError as err:
        missing = err.status is RPCStatusCode.NOT_FOUND
        raise ConfigurationError(
            f"{at} has no namespace {client.namespace!r}"
            if missing
            else f"{at} does not show the namespace {client.namespace!r}: {scrub(err.message)}"
        ) from err


def with_core_runtime(
    options: ClientConnectConfig, metrics_address: str = ""
) -> ClientConnectConfig:
    """Return the options with the runtime of a process of ours, unless they have one.

    Raises:
        ConfigurationError: The metrics cannot be served there: the address is taken, or the
            options have a runtime, which knows of no such address.
    """
    if options.get("runtime") is None:
        return {**options, "runtime": core_runtime(metrics_address)}
    if metrics_address:
        raise ConfigurationError(
            "COMMITLINE_METRICS_ADDRESS: the runtime of App(temporal=…) serves its own metrics; "
            "leave the variable out"
        )
    return options


def core_runtime(metrics_address: str = "") -> Runtime:
    """Return what the SDK's core runs on in a process of ours.

    The core logs by `logging`, and so on stderr. By itself it prints on stdout, where a command's
    result goes.

    Args:
        metrics_address: Serve the SDK's and our metrics there for Prometheus (``host:port``).

    Raises:
        ConfigurationError: The metrics cannot be served there.
    """
    core = LogForwardingConfig(
        logger=core_logger(),
        # A line of the log has both in fields of their own.
        prepend_target_on_message=False,
        append_log_fields_to_message=False,
    )
    logs = replace(LoggingConfig.default, forwarding=core)
    try:
        metrics = _prometheus(metrics_address) if metrics_address else None
        return Runtime(telemetry=TelemetryConfig(logging=logs, metrics=metrics))
    except (RuntimeError, ValueError) as err:
        raise ConfigurationError(
            f"COMMITLINE_METRICS_ADDRESS: cannot serve metrics at {metrics_address!r}: "
            f"{str(err).partition(chr(10))[0][:200]}"
        ) from err


def _prometheus(address: str) -> PrometheusConfig:
    """Return how metrics are served, with the names that OpenTelemetry's collector gives them."""
    buckets = {one.name: SECONDS for one in METRICS if one.kind == "histogram"}
    return PrometheusConfig(
        bind_address=address, counters_total_suffix=True, histogram_bucket_overrides=buckets
    )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

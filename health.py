"""Whether a worker lives, and whether it is ready, by HTTP: ``/live`` and ``/ready``.

    /live    200 whenever it answers: the event loop answers, or nothing does
    /ready   200 if all that a worker needs is there, else 503, with the reasons

The server runs on the worker's own event loop, so a loop that stands still answers nothing, and an
orchestrator's time-out says so. It takes GET and HEAD, and reads no more of a request than its
head. What it answers names no address, database or key: anybody may ask.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError

from .errors import CommitlineError, ConfigurationError
from .ledger.pool import Pool
from .ledger.schema import LedgerSchema
from .logs import Log

log = Log()

_CHECK_SECONDS: Final = 2.0
"""For each of the checks; they run side by side."""
_KEPT_SECONDS: Final = 1.0
"""How long an answer serves whoever asks next: the servers see one question a second at most."""
_POLL_SECONDS: Final = 90.0
"""A worker asks for work again after a minute at the latest, and the server notes when."""
_HEAD_SECONDS: Final = 5.0
_HEAD_BYTES: Final = 8 * 1024


@dataclass(frozen=True)
class Finding:
    """What one check has found."""

    name: str
    ok: bool
    reason: str = ""
    """Why not, for everybody; empty where it is."""
    details: str = ""
    """The same for the log; it may name an address."""


Check = Callable[[], Awaitable[None]]
"""Raises where something is not as it has to be: `NotReady`, or an error of ours."""


class NotReady(Exception):
    """A worker cannot do its work; the text says why, and names no address."""


class WorkerHealth:
    """What a worker says of itself.

    Args:
        checks: By name, what it needs besides being at work.
    """

    def __init__(self, checks: dict[str, Check]) -> None:
        self._checks = checks
        self._state = "is starting"
        self._asked_at = -_KEPT_SECONDS
        self._found: Sequence[Finding] = ()
        self._asking = asyncio.Lock()
        self._was_ready: bool | None = None

    def serves(self) -> None:
        """Say that the worker has started."""
        self._state = ""

    def drains(self) -> None:
        """Say that the worker takes nothing new any more."""
        self._state = "finishes what it has begun, and takes nothing new"

    async def ready(self) -> Sequence[Finding]:
        """Look at everything. Safe to repeat; asks the servers once a second at most."""
        async with self._asking:
            if time.monotonic() - self._asked_at >= _KEPT_SECONDS:
                looks = (_look(name, check) for name, check in self._checks.items())
                self._found = await asyncio.gather(*looks)
                self._asked_at = time.monotonic()
        found = [self._own(), *self._found]
        self._tell(found)
        return found

    def _own(self) -> Finding:
        return Finding("worker", not self._state, self._state and f"worker: {self._state}")

    def _tell(self, found: Sequence[Finding]) -> None:
        ready = all(one.ok for one in found)
        if ready is self._was_ready:
            return
        self._was_ready = ready
        if ready:
            log.info("worker.ready")
        else:
            reasons = [one.details or one.reason for one in found if not one.ok]
            log.warning("worker.not_ready", reasons=reasons)


def worker_health(client: Client, task_queue: str, pool: Pool) -> WorkerHealth:
    """Return the health of a worker that polls this queue, with this client and this pool."""
    schema = LedgerSchema(pool, statement_seconds=_CHECK_SECONDS)

    async def ledger() -> None:
        await schema.check()

    return WorkerHealth({"ledger": ledger, "polls": Polls(client, task_queue).check})


class Polls:
    """Whether a client's worker polls a queue, by the server's word.

    It is asked of workflow tasks: a worker that is full asks for no activities. The server names
    a worker for minutes after it has gone, so when it saw it last has to change; by its own clock,
    which is compared with no other.
    """

    def __init__(self, client: Client, task_queue: str) -> None:
        self._client = client
        self._asked = DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
        self._last: tuple[int, float] = (0, 0.0)

    async def check(self) -> None:
        """Ask the server.

        Raises:
            NotReady: The worker has not polled for long, or the server does not say.
        """
        try:
            described = await self._client.workflow_service.describe_task_queue(self._asked)
        except RPCError as err:
            raise NotReady(f"Temporal does not answer ({err.status.name})") from err
        seen = [
            poller.last_access_time.ToNanoseconds()
            for poller in described.pollers
            if poller.identity == self._client.identity
        ]
        now, newest = time.monotonic(), max(seen, default=0)
        if newest != self._last[0]:
            self._last = (newest, now)
        if not newest or now - self._last[1] > _POLL_SECONDS:
            raise NotReady("Temporal does not see this worker ask for work")


async def _look(name: str, check: Check) -> Finding:
    try:
        async with asyncio.timeout(_CHECK_SECONDS + 1):
            await check()
    except NotReady as err:
        return Finding(name, False, f"{name}: {err}")
    except CommitlineError as err:
        reason = f"{name}: {type(err).__name__} [{err.code}]"
        return Finding(name, False, reason, details=f"{name}: {err}")
    except TimeoutError:
        return Finding(name, False, f"{name}: no answer in time")
    except Exception as err:
        return Finding(name, False, f"{name}: {type(err).__name__}", details=f"{name}: {err!r}")
    return Finding(name, True)


# --- by HTTP


@asynccontextmanager
async def serving_health(address: str, health: WorkerHealth) -> AsyncIterator[None]:
    """Answer at an address (``host:port``) while the body runs; empty is nowhere.

    Raises:
        ConfigurationError: It is no address, or it is taken.
    """
    if not address:
        yield
        return
    host, _, port = address.rpartition(":")
    try:
        server = await asyncio.start_server(
            lambda reader, writer: _serve(reader, writer, health),
            host.strip("[]") or None,
            int(port),
            limit=_HEAD_BYTES,
        )
    except (OSError, ValueError, OverflowError) as err:
        reason = err.strerror if isinstance(err, OSError) else "it is host:port"
        raise ConfigurationError(
            f"COMMITLINE_HEALTH_ADDRESS: cannot serve at {address!r}: {reason}"
        ) from err
    try:
        yield
    finally:
        server.close()  # not waited for: a client that is slow to read keeps no worker


async def _serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, health: WorkerHealth
) -> None:
    """Answer one request, and close."""
    with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        async with asyncio.timeout(_HEAD_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
        method, path = (*head.split(b" ", 2), b"", b"")[:2]
        status, body = await _answer(method, path.partition(b"?")[0], health)
        text = json.dumps(body).encode() + b"\n"
        writer.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            "Content-Type: application/json\r\n"
            f"Content-Length: {len(text)}\r\n"
            "Cache-Control: no-store\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        if method != b"HEAD":
            writer.write(text)
        async with asyncio.timeout(_HEAD_SECONDS):
            await writer.drain()
    writer.close()


async def _answer(
    method: bytes, path: bytes, health: WorkerHealth
) -> tuple[HTTPStatus, dict[str, object]]:
    if path not in (b"/live", b"/ready"):
        return HTTPStatus.NOT_FOUND, {"paths": ["/live", "/ready"]}
    if method not in (b"GET", b"HEAD"):
        return HTTPStatus.METHOD_NOT_ALLOWED, {"methods": ["GET", "HEAD"]}
    if path == b"/live":
        return HTTPStatus.OK, {"live": True}
    found = await health.ready()
    reasons = [one.reason for one in found if not one.ok]
    return (
        HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK,
        {"ready": not reasons, "reasons": reasons, "checks": {one.name: one.ok for one in found}},
    )

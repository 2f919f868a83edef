"""A TCP proxy in front of Postgres that cuts, freezes and delays connections.

It stands for a database that restarts, hangs or is far away, and for a network that loses an
answer. The program under test gets ``proxy.url(...)`` as its database URL; nothing else changes:

    with TcpProxy.before(database_url) as proxy:
        worker = WorkerProcess(app, environment={"DATABASE_URL": proxy.url(database_url)}, ...)
        proxy.freeze_answers()
        ...
        proxy.drop()

The proxy runs on a thread and an event loop of its own, so a test may block. Each method may be
called from any thread, and has taken effect when it returns.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, TypeVar
from urllib.parse import urlsplit

from psycopg.conninfo import conninfo_to_dict

T = TypeVar("T")
Upstream: TypeAlias = tuple[str, int] | Path
Held: TypeAlias = asyncio.Queue[tuple[float, bytes]]
"""Bytes that arrived and were not passed on yet, with the time at which to pass them on. No bytes
mean the end of the connection."""

HOST: Final = "127.0.0.1"
CHUNK_BYTES: Final = 65_536
REPLACED: Final = {"host", "hostaddr", "port", "sslmode", "gssencmode"}


class TcpProxy:
    """Passes bytes between its clients and a server; start it with ``with``.

    ``restore`` ends ``cut``, ``thaw`` ends ``freeze``, and a delay of 0 ends ``delay``; none ends
    another one. Held bytes are kept in memory, without a limit.

    Args:
        upstream: The server: host and port (IPv4), or the path of a Unix socket.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._requests = _Gate()
        self._answers = _Gate()
        self._refusing = False
        self._connections: set[_Connection] = set()
        self.port = 0
        """The port on 127.0.0.1; it stays the same inside ``with``."""

    @classmethod
    def before(cls, database_url: str) -> Self:
        """Return a proxy for the server of a database URL.

        Raises:
            ValueError: The URL names no host, or several.
        """
        info = conninfo_to_dict(database_url)
        host = str(info.get("hostaddr") or info.get("host") or "")
        if not host or "," in host:
            raise ValueError("the database URL must name exactly one host")
        port = int(info.get("port") or 5432)
        return cls(Path(host) / f".s.PGSQL.{port}" if host.startswith("/") else (host, port))

    def url(self, database_url: str) -> str:
        """Return the URL of the same database through this proxy, without encryption."""
        parts = urlsplit(database_url)
        login, at, _ = parts.netloc.rpartition("@")
        kept = [p for p in parts.query.split("&") if p and p.partition("=")[0] not in REPLACED]
        return parts._replace(
            netloc=f"{login}{at}{HOST}:{self.port}",
            query="&".join([*kept, "sslmode=disable", "gssencmode=disable"]),
        ).geturl()

    def __enter__(self) -> Self:
        self._listener = socket.create_server((HOST, 0))
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._loop.add_reader(self._listener, self._accept)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._listener.close()

    @property
    def connections(self) -> int:
        """How many connections are open on both sides of the proxy."""
        return self._do(self._count())

    def cut(self) -> None:
        """Reset all connections, and every new one, until ``restore``.

        Held bytes are lost. The server goes on with what it has received already.
        """
        self._do(self._refuse(True))
        self._do(self._reset_all())

    def restore(self) -> None:
        """Accept connections again."""
        self._do(self._refuse(False))

    def drop(self) -> None:
        """Reset all connections, as ``cut`` does, but accept new ones."""
        self._do(self._reset_all())

    def freeze(self) -> None:
        """Pass on nothing, in neither direction, until ``thaw``.

        Connections stay open, and new ones are accepted. The end of a connection is held, too:
        the server sees it after the bytes that were sent before it. If a slow receiver has got a
        part of a chunk, it gets the rest.
        """
        self._do(self._let(requests=False, answers=False))

    def freeze_answers(self) -> None:
        """Pass on what clients send, and hold the server's answers, until ``thaw``."""
        self._do(self._let(requests=True, answers=False))

    def thaw(self) -> None:
        """Pass on held bytes, in order, and then whatever arrives."""
        self._do(self._let(requests=True, answers=True))

    def delay(self, seconds: float) -> None:
        """Hold everything that arrives from now on for that long, in each direction.

        A round trip takes twice as long. Bytes that arrived before keep their time, and the order
        stays.
        """
        self._do(self._slow_down(seconds))

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the proxy's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _count(self) -> int:
        return sum(connection.stands for connection in self._connections)

    async def _refuse(self, refusing: bool) -> None:
        self._refusing = refusing

    async def _let(self, *, requests: bool, answers: bool) -> None:
        self._requests.let(requests)
        self._answers.let(answers)

    async def _slow_down(self, seconds: float) -> None:
        self._requests.delay_seconds = self._answers.delay_seconds = seconds

    async def _reset_all(self) -> None:
        tasks = [connection.reset() for connection in self._connections]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self) -> None:
        with suppress(BlockingIOError):  # the client has closed already
            client, _ = self._listener.accept()
            if self._refusing:
                _reset_at_close(client).close()
            else:
                self._carry(_without_delay(client))

    def _carry(self, client: socket.socket) -> None:
        connection = _Connection(client, self._requests, self._answers)
        self._connections.add(connection)
        connection.start(self._upstream).add_done_callback(
            lambda _: self._connections.discard(connection)
        )


class _Gate:
    """Holds the bytes of one direction, for all connections."""

    def __init__(self) -> None:
        self.delay_seconds = 0.0
        self._open = asyncio.Event()
        self._open.set()

    def let(self, through: bool) -> None:
        if through:
            self._open.set()
        else:
            self._open.clear()

    async def passed(self) -> None:
        """Return when it is open; being opened for a moment is not enough."""
        while not self._open.is_set():
            await self._open.wait()


class _Connection:
    """A client, and the connection to the server that belongs to it."""

    def __init__(self, client: socket.socket, requests: _Gate, answers: _Gate) -> None:
        self._client = client
        self._requests = requests
        self._answers = answers
        self.stands = True

    def start(self, upstream: Upstream) -> asyncio.Task[None]:
        """Begin to pass bytes; the end of the task is the end of the connection."""
        self._task = asyncio.get_running_loop().create_task(self._carry(upstream))
        # Not in a `finally` of the task: cancelled before its first step, the task runs none.
        self._task.add_done_callback(lambda _: self._client.close())
        return self._task

    def reset(self) -> asyncio.Task[None]:
        """End it at once; return its task."""
        self.stands = False
        _reset_at_close(self._client)
        self._task.cancel()
        return self._task

    async def _carry(self, upstream: Upstream) -> None:
        with _socket_for(upstream) as server:
            try:
                address = str(upstream) if isinstance(upstream, Path) else upstream
                await asyncio.get_running_loop().sock_connect(server, address)
            except OSError:
                return  # no server: the client is closed, and may try again
            await self._exchange(server)

    async def _exchange(self, server: socket.socket) -> None:
        """Pass bytes in both directions until the server has closed and the client has seen it."""
        requests: Held = asyncio.Queue()
        answers: Held = asyncio.Queue()
        create_task = asyncio.get_running_loop().create_task
        others = [
            create_task(_take(server, answers, self._answers)),
            create_task(_give(server, requests, self._requests)),
            create_task(self._listen(requests)),
        ]
        try:
            await _give(self._client, answers, self._answers)
        finally:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    async def _listen(self, requests: Held) -> None:
        await _take(self._client, requests, self._requests)
        self.stands = False


async def _take(source: socket.socket, held: Held, gate: _Gate) -> None:
    """Hold what one side sends until it closes, whatever the other side does."""
    loop = asyncio.get_running_loop()
    chunk = b"to begin with"
    while chunk:
        try:
            chunk = await loop.sock_recv(source, CHUNK_BYTES)
        except OSError:
            chunk = b""
        held.put_nowait((loop.time() + gate.delay_seconds, chunk))


async def _give(target: socket.socket, held: Held, gate: _Gate) -> None:
    """Pass on held bytes when they are due and the gate is open, and the end last."""
    loop = asyncio.get_running_loop()
    chunk = b"to begin with"
    while chunk:
        due, chunk = await held.get()
        await asyncio.sleep(due - loop.time())
        await gate.passed()
        with suppress(OSError):  # the receiver has closed; the sender may still send
            if chunk:
                await loop.sock_sendall(target, chunk)
            else:
                target.shutdown(socket.SHUT_WR)


def _socket_for(upstream: Upstream) -> socket.socket:
    if isinstance(upstream, Path):
        return _without_delay(socket.socket(socket.AF_UNIX))
    return _without_delay(socket.socket(socket.AF_INET))


def _without_delay(connection: socket.socket) -> socket.socket:
    """Make it a socket for an event loop that sends without delay."""
    connection.setblocking(False)
    if connection.family == socket.AF_INET:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _reset_at_close(connection: socket.socket) -> socket.socket:
    """When it is closed, its peer sees a reset, and bytes that are not sent yet are lost."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return connection

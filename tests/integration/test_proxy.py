"""The proxy that other tests put before Postgres does what it says."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString, TypeVar
from urllib.parse import urlsplit

import psycopg
import pytest
import pytest_asyncio
from psycopg.conninfo import conninfo_to_dict

from commitline.testing.proxy import TcpProxy

T = TypeVar("T")
Connection = psycopg.AsyncConnection[tuple[Any, ...]]

SILENCE = 0.2
"""Seconds without an answer, after which a client of these tests is convinced."""
PATIENCE = 60
NEVER = 600
A_MEGABYTE = 1_000_000


async def connect(url: str) -> Connection:
    return await psycopg.AsyncConnection.connect(url, autocommit=True)


async def ask(connection: Connection, statement: LiteralString, *values: object) -> list[Any]:
    """Return the first column."""
    cursor = await connection.execute(statement, values)
    return [row[0] for row in await cursor.fetchall()]


async def silent(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Begin it, see that it is not answered, and return it, still waiting."""
    task = asyncio.create_task(work)
    done, _ = await asyncio.wait({task}, timeout=SILENCE)
    assert not done
    return task


async def answer(task: asyncio.Task[T]) -> T:
    """Return its result; a test that waits in vain fails instead of hanging."""
    done, _ = await asyncio.wait({task}, timeout=PATIENCE)
    assert done
    return await task


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def until_connections(proxy: TcpProxy, number: int) -> None:
    async def reached() -> bool:
        return proxy.connections == number

    await until(reached)


@pytest.fixture
def proxy(database_url: str) -> Iterator[TcpProxy]:
    with TcpProxy.before(database_url) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def direct(database_url: str) -> AsyncIterator[Connection]:
    """A connection that knows nothing of the proxy, and a table ``seen``."""
    async with await connect(database_url) as connection:
        await connection.execute("create table seen (n int)")
        yield connection


@pytest_asyncio.fixture
async def through(
    proxy: TcpProxy, database_url: str, direct: Connection
) -> AsyncIterator[Connection]:
    """A connection through the proxy."""
    async with await connect(proxy.url(database_url)) as connection:
        yield connection
        proxy.cut()  # so that nothing waits for an answer after a test that failed


@pytest_asyncio.fixture
async def backend(through: Connection) -> int:
    """The server's process for the connection through the proxy."""
    return through.info.backend_pid


async def until_gone(direct: Connection, backend: int) -> None:
    """Wait until the server has seen the end of that connection."""

    async def gone() -> bool:
        return not await ask(direct, "select 1 from pg_stat_activity where pid = %s", backend)

    await until(gone)


def test_the_url_differs_only_in_the_way_to_the_server() -> None:
    with TcpProxy(("127.0.0.1", 1)) as proxy:
        over_unix = proxy.url("postgresql://me@/shop?host=%2Ftmp%2Fx&port=7&connect_timeout=3")
        over_tcp = proxy.url(
            "postgresql://me:p%40ss@db:5432/shop?sslmode=require&options=-c%20a%3D1"
        )

    assert urlsplit(over_unix).path == urlsplit(over_tcp).path == "/shop"
    way = {
        "host": "127.0.0.1",
        "port": str(proxy.port),
        "sslmode": "disable",
        "gssencmode": "disable",
        "user": "me",
        "dbname": "shop",
    }
    assert conninfo_to_dict(over_unix) == way | {"connect_timeout": "3"}
    assert conninfo_to_dict(over_tcp) == way | {"password": "p@ss", "options": "-c a=1"}


@pytest.mark.parametrize("url", ["postgresql:///shop", "postgresql://one,other/shop"])
def test_a_url_without_the_one_host_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="one host"):
        TcpProxy.before(url)


async def test_statements_and_answers_of_any_size_pass_through(
    proxy: TcpProxy, through: Connection
) -> None:
    text = "0123456789" * (A_MEGABYTE // 10)

    assert await ask(through, "select %s", text) == [text]
    assert await ask(through, "select * from generate_series(1, 1000)") == [*range(1, 1001)]
    assert proxy.connections == 1


async def test_a_server_on_tcp_is_reached_too(database_url: str, proxy: TcpProxy) -> None:
    with TcpProxy.before(proxy.url(database_url)) as outer:
        async with await connect(outer.url(database_url)) as connection:
            assert await ask(connection, "select 42") == [42]


async def test_the_connections_that_stand_are_counted(database_url: str, proxy: TcpProxy) -> None:
    assert proxy.connections == 0
    async with await connect(proxy.url(database_url)):
        async with await connect(proxy.url(database_url)):
            assert proxy.connections == 2
        await until_connections(proxy, 1)
        proxy.drop()
        assert proxy.connections == 0


async def test_a_connection_that_its_client_gave_up_does_not_count_though_its_end_is_held(
    through: Connection, proxy: TcpProxy, direct: Connection, backend: int
) -> None:
    proxy.freeze()
    await through.close()

    await until_connections(proxy, 0)
    assert await ask(direct, "select 1 from pg_stat_activity where pid = %s", backend) == [1]
    proxy.thaw()
    await until_gone(direct, backend)


async def test_a_backend_that_ends_ends_its_client(
    through: Connection, proxy: TcpProxy, direct: Connection, backend: int
) -> None:
    await ask(direct, "select pg_terminate_backend(%s)", backend)

    with pytest.raises(psycopg.errors.AdminShutdown):
        await ask(through, "select 1")
    await until_connections(proxy, 0)


async def test_a_cut_breaks_every_connection_and_refuses_new_ones_until_it_is_restored(
    through: Connection, proxy: TcpProxy, database_url: str, direct: Connection, backend: int
) -> None:
    port = proxy.port

    proxy.cut()

    assert proxy.connections == 0
    with pytest.raises(psycopg.OperationalError):
        await ask(through, "select 1")
    await until_gone(direct, backend)
    for _ in range(3):
        with pytest.raises(psycopg.OperationalError):
            await connect(proxy.url(database_url))
    proxy.drop()  # which is no restore
    with pytest.raises(psycopg.OperationalError):
        await connect(proxy.url(database_url))
    proxy.restore()
    async with await connect(proxy.url(database_url)) as anew:
        assert await ask(anew, "select 42") == [42]
    assert proxy.port == port


async def test_a_statement_under_way_is_broken_by_a_cut(
    through: Connection, proxy: TcpProxy
) -> None:
    statement = await silent(ask(through, "select pg_sleep(5)"))

    proxy.cut()

    with pytest.raises(psycopg.OperationalError):
        await answer(statement)


async def test_a_drop_breaks_every_connection_and_accepts_new_ones(
    through: Connection, proxy: TcpProxy, database_url: str, direct: Connection, backend: int
) -> None:
    port = proxy.port

    proxy.drop()

    assert proxy.connections == 0
    async with await connect(proxy.url(database_url)) as anew:
        assert await ask(anew, "select 42") == [42]
    with pytest.raises(psycopg.OperationalError):
        await ask(through, "select 1")
    await until_gone(direct, backend)
    assert proxy.port == port


async def test_while_frozen_nothing_arrives_and_thawed_everything_does(
    through: Connection, proxy: TcpProxy, direct: Connection
) -> None:
    text = "0123456789" * A_MEGABYTE

    proxy.freeze()
    statement = await silent(
        ask(through, "insert into seen select length(%s) returning repeat('x', n)", text)
    )

    assert await ask(direct, "select n from seen") == []
    assert proxy.connections == 1
    proxy.thaw()
    assert await answer(statement) == ["x" * len(text)]
    assert await ask(direct, "select n from seen") == [len(text)]


async def test_a_new_connection_waits_while_frozen(
    proxy: TcpProxy, database_url: str, direct: Connection
) -> None:
    proxy.freeze()
    connecting = await silent(connect(proxy.url(database_url)))

    assert proxy.connections == 1
    proxy.thaw()
    async with await answer(connecting) as connection:
        assert await ask(connection, "select 42") == [42]


async def test_what_a_client_sent_before_it_left_a_frozen_connection_happens_after_all(
    through: Connection, proxy: TcpProxy, direct: Connection, backend: int
) -> None:
    proxy.freeze()
    statement = await silent(ask(through, "insert into seen values (1) returning n"))
    await through.close()
    with pytest.raises(psycopg.OperationalError):
        await answer(statement)

    proxy.thaw()

    await until_gone(direct, backend)
    assert await ask(direct, "select n from seen") == [1]


@pytest.mark.parametrize("method", [TcpProxy.cut, TcpProxy.drop])
async def test_what_is_held_is_lost_with_its_connection(
    method: Callable[[TcpProxy], None],
    through: Connection,
    proxy: TcpProxy,
    direct: Connection,
    backend: int,
) -> None:
    proxy.freeze()
    statement = await silent(ask(through, "insert into seen values (1) returning n"))

    method(proxy)
    proxy.thaw()

    with pytest.raises(psycopg.OperationalError):
        await answer(statement)
    await until_gone(direct, backend)
    assert await ask(direct, "select n from seen") == []


async def test_a_drop_does_not_thaw(
    through: Connection, proxy: TcpProxy, database_url: str
) -> None:
    proxy.freeze()
    proxy.drop()

    connecting = await silent(connect(proxy.url(database_url)))

    proxy.thaw()
    await (await answer(connecting)).close()


async def test_while_answers_are_frozen_a_statement_is_committed_and_its_client_not_told(
    through: Connection, proxy: TcpProxy, direct: Connection
) -> None:
    async def committed() -> list[Any]:
        return await ask(direct, "select n from seen")

    proxy.freeze_answers()
    statement = await silent(ask(through, "insert into seen values (1) returning n"))

    await until(committed)
    assert not statement.done()
    proxy.thaw()
    assert await answer(statement) == [1]


@pytest.mark.parametrize("method", [TcpProxy.cut, TcpProxy.drop])
async def test_an_answer_that_is_held_is_lost_with_its_connection(
    method: Callable[[TcpProxy], None], through: Connection, proxy: TcpProxy, direct: Connection
) -> None:
    async def committed() -> list[Any]:
        return await ask(direct, "select n from seen")

    proxy.freeze_answers()
    statement = await silent(ask(through, "insert into seen values (1) returning n"))
    await until(committed)

    method(proxy)
    proxy.thaw()

    with pytest.raises(psycopg.OperationalError):
        await answer(statement)
    assert await committed() == [1]


async def test_a_delay_holds_request_and_answer_until_it_is_turned_off(
    through: Connection, proxy: TcpProxy, database_url: str
) -> None:
    proxy.delay(0.2)
    began = time.monotonic()
    assert await ask(through, "select 42") == [42]
    assert time.monotonic() - began >= 0.4

    proxy.delay(NEVER)
    statement = await silent(ask(through, "select 1"))
    proxy.delay(0)
    async with asyncio.timeout(NEVER / 10), await connect(proxy.url(database_url)) as connection:
        assert await ask(connection, "select 42") == [42]
    assert not statement.done()  # it keeps its time
    proxy.drop()
    with pytest.raises(psycopg.OperationalError):
        await answer(statement)


def test_nothing_overtakes_what_is_delayed(tmp_path: Path) -> None:
    with raw(tmp_path) as (proxy, client, server), server.makefile("rb") as received:
        proxy.delay(SILENCE)
        client.sendall(b"first " * A_MEGABYTE)
        time.sleep(SILENCE / 4)  # so that the proxy has some of it
        proxy.delay(0)
        client.sendall(b"second")
        client.shutdown(socket.SHUT_WR)

        assert received.read() == b"first " * A_MEGABYTE + b"second"


async def test_what_a_client_sent_arrives_though_it_is_not_there_for_what_the_server_sent(
    tmp_path: Path,
) -> None:
    with raw(tmp_path) as (proxy, client, server), server.makefile("rb") as received:
        proxy.freeze()
        server.sendall(b"x" * A_MEGABYTE)
        client.sendall(b"y" * A_MEGABYTE)
        client.close()
        # What is still on its way then, the client's system throws away when something comes in.
        await until_connections(proxy, 0)

        proxy.thaw()

        assert received.read() == b"y" * A_MEGABYTE


@contextmanager
def raw(folder: Path) -> Iterator[tuple[TcpProxy, socket.socket, socket.socket]]:
    """A proxy, and the two ends of a connection through it."""
    with (
        listening(folder / "s") as listener,
        TcpProxy(folder / "s") as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), PATIENCE) as client,
        listener.accept()[0] as server,
    ):
        server.settimeout(PATIENCE)
        yield proxy, client, server


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(PATIENCE)
        listener.bind(str(path))
        listener.listen()
        yield listener


def test_without_a_server_a_client_is_closed_and_the_next_one_served(tmp_path: Path) -> None:
    with TcpProxy(tmp_path / "s") as proxy:
        address = ("127.0.0.1", proxy.port)
        with socket.create_connection(address, PATIENCE) as client:
            assert client.recv(1) == b""

        with (
            listening(tmp_path / "s") as listener,
            socket.create_connection(address, PATIENCE) as client,
            listener.accept()[0] as server,
        ):
            server.sendall(b"x")
            assert client.recv(1) == b"x"


async def test_with_the_proxy_its_connections_and_its_port_go(
    database_url: str, direct: Connection
) -> None:
    with TcpProxy.before(database_url) as proxy:
        connection = await connect(proxy.url(database_url))
        backend = connection.info.backend_pid

    with pytest.raises(psycopg.OperationalError):
        await ask(connection, "select 1")
    await until_gone(direct, backend)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port))

"""Plays rounds of the fuzz: a database, twenty actors, a while of chance, the exits, the checks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from random import Random
from typing import Any, Final, LiteralString
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from commitline.ledger import ActionLedger, ledger_pool
from commitline.tests.fuzz.actor import Actor
from commitline.tests.fuzz.application import Application
from commitline.tests.fuzz.checks import Violation, violations
from commitline.tests.fuzz.exits import walk_exits
from commitline.tests.fuzz.faults import NO_FAULTS, Faults
from commitline.tests.fuzz.people import Operator, Person
from commitline.tests.fuzz.provider import Provider
from commitline.tests.fuzz.relay import Relay
from commitline.tests.fuzz.scene import Scene
from commitline.tests.fuzz.slow_commits import slow_commits
from commitline.tests.fuzz.tools import Theme
from commitline.tests.fuzz.worker import Worker
from commitline.tests.fuzz.world_time import Clock, Cutter

ROLES: Final[Sequence[tuple[type[Actor], int]]] = (
    (Worker, 8),
    (Relay, 2),
    (Person, 2),
    (Operator, 3),
    (Application, 3),
    (Clock, 1),
    (Cutter, 1),
)
"""Twenty actors."""
_CONNECTIONS: Final = 2
"""Of each actor: its calls side by side, and what it has left behind."""


@dataclass(frozen=True)
class Round:
    """What a round came to."""

    seed: str
    seconds: float
    counts: Counter[str]
    rows: int
    violations: Sequence[Violation]
    trace: Callable[[Violation], Sequence[str]]
    """What was done to the rows of a violation, in order."""


def play_round(
    server_url: str,
    template: str,
    theme: Theme,
    *,
    seed: str,
    seconds: float,
    broken: LiteralString = "",
) -> Round:
    """Play one round on a database of its own.

    Args:
        server_url: Of any database of the server.
        template: The name of a migrated database to copy.
        theme: What the actors do.
        seed: Decides what each actor does. In which order they meet is decided by chance.
        seconds: How long they play; the exits and the checks come after that.
        broken: Statements that break the database first.
    """
    # The pools see their sessions end, and would warn of it.
    logging.getLogger("psycopg").setLevel(logging.CRITICAL)
    name = sql.Identifier(f"fuzz_{seed}_{time.time_ns()}")
    with psycopg.connect(server_url, autocommit=True) as connection:
        create = sql.SQL("create database {} template {}")
        connection.execute(create.format(name, sql.Identifier(template)))
        # No deadlock is ever resolved: a wrong lock order shows as a call that never comes back.
        forever = sql.SQL("alter database {} set deadlock_timeout = '10min'")
        connection.execute(forever.format(name))
    url = urlsplit(server_url)._replace(path=f"/{name.as_string().strip(chr(34))}").geturl()
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(broken)
        return asyncio.run(_play(url, theme, seed, seconds))
    finally:
        with psycopg.connect(server_url, autocommit=True) as connection:
            connection.execute(sql.SQL("drop database {} with (force)").format(name))


async def _play(url: str, theme: Theme, seed: str, seconds: float) -> Round:
    began = time.monotonic()
    scene = Scene(seed, Provider(Random(f"{seed}:provider")), theme)
    async with AsyncExitStack() as stack:
        actors: list[Actor] = []
        for role, count in ROLES:
            for number in range(1, count + 1):
                name = f"{role.__name__.lower()}-{number}"
                pool = ledger_pool(url, size=_CONNECTIONS)
                if role is Operator:  # from far away
                    chance = Random(f"{seed}:{name}:commits")
                    pool.connection_class = slow_commits(scene.pace, chance)
                await stack.enter_async_context(pool)
                actors.append(role(name, scene, pool, url=url, faults=Faults()))
        await _live(scene, actors, seconds)
    async with ledger_pool(url) as own:  # of the others some sessions were ended
        last: dict[str, Any] = {"url": url, "faults": NO_FAULTS}
        await walk_exits(
            scene,
            Relay("last relay", scene, own, **last),
            Person("last person", scene, own, **last),
            Clock("last clock", scene, own, **last),
        )
        found = await violations(scene, own)
        rows = len(await ActionLedger(own).list(limit=1_000_000))
    return Round(
        seed,
        time.monotonic() - began,
        scene.counts,
        rows,
        found,
        lambda violation: scene.trace.of(violation.keys),
    )


async def _live(scene: Scene, actors: Sequence[Actor], seconds: float) -> None:
    """Have all of them act for a while, and stop."""
    lives = [asyncio.create_task(actor.live()) for actor in actors]
    await asyncio.sleep(seconds)
    scene.over = True
    scene.pace.end()
    done = await asyncio.gather(*lives, return_exceptions=True)
    for actor, error in zip(actors, done, strict=True):
        if isinstance(error, BaseException):
            scene.violation(actor.name, f"raised {type(error).__name__}: {error}")
    while scene.background:
        await asyncio.wait(scene.background)

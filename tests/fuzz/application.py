"""`Application`: commits intents with rows of its own, under any isolation level, or rolls back."""

from __future__ import annotations

from contextlib import suppress

import psycopg
from psycopg import IsolationLevel

from commitline.canonical import parse
from commitline.errors import CommitlineError
from commitline.identity import ActionKey
from commitline.ledger import intend
from commitline.tests.fuzz.actor import Actor
from commitline.tests.fuzz.tools import TOOLS
from commitline.tests.fuzz.witness import now, relied_on

_LEVELS = (
    *[IsolationLevel.READ_COMMITTED] * 3,
    IsolationLevel.REPEATABLE_READ,
    IsolationLevel.SERIALIZABLE,
)


class Application(Actor):
    """An application with an outbox.

    Its connection is its own, and is cut as any other.
    """

    every = 25

    async def act(self) -> None:
        """Play some transactions over one connection."""
        with suppress(psycopg.OperationalError):  # its session was ended
            await self._play()

    async def _play(self) -> None:
        async with await psycopg.AsyncConnection.connect(
            self.url,
            application_name="commitline fuzz",
            # Two intents in one transaction, in any order, are a deadlock of its own making.
            options="-c deadlock_timeout=200ms",
        ) as connection:
            while not self.scene.over and self.chance.random() < 0.9:
                await self.rest()
                await connection.set_isolation_level(self.chance.choice(_LEVELS))
                await self._transact(connection)

    async def _transact(self, connection: psycopg.AsyncConnection) -> None:
        intended: list[ActionKey] = []
        since = now()
        try:
            for _ in range(self.chance.choice([1, 1, 2])):
                tool, args = (
                    TOOLS[self.chance.choice(self.scene.theme.intended)],
                    self.scene.arguments(self.chance),
                )
                order = str(parse(args)["order"]) if self.chance.random() < 0.3 else None
                intended.append(
                    await self.do(
                        f"intend {tool.name}",
                        "outbox",
                        intend(connection, tool, parse(args), order_key=order),
                    )
                )
            if self.chance.random() < 0.2:
                await connection.rollback()
                return
            await connection.commit()
        except CommitlineError as err:
            self.refused(err)
            await connection.rollback()
        except psycopg.OperationalError as err:  # a serialization failure, a deadlock, a cut
            self.scene.counts[f"intend: {type(err).__name__}"] += 1
            await connection.rollback()
        else:
            self.scene.intents.update(intended)
            for key in intended:
                self.scene.trace.note(key, f"{self.name}: relies on it")
                await relied_on(self.scene, self.ledger, self.pool, key, since=since)

"""The soak's application with a database: rows of its own, and intents in the same transaction.

It goes through the same way to Postgres as the workers, so a commit may be lost on its way, or
its answer. Whether it was one is read from the application's own table at the end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Final

import psycopg

from commitline.errors import IdempotencyKeyConflict, IntentRefused
from commitline.identity import ActionKey
from commitline.ledger import intend
from commitline.tests.soak.app import TOOLS
from commitline.tests.soak.promises import Intent
from commitline.tests.soak.script import FIRST_INTENT, IntentScript, intent_script_of
from commitline.tests.soak.unforeseen import Unforeseen

_CONNECT_SECONDS: Final = 5
_CREATE: Final = """
create table soak_intents (
    number     integer primary key,
    action_key text    not null,
    -- Drawn while the order is locked, so in the order of the commits of those that share it.
    seq        bigint  generated always as identity
)"""
_INSERT: Final = "insert into soak_intents (number, action_key) values (%s, %s)"
_READ: Final = "select number, action_key, seq from soak_intents"


class _RolledBack(Exception):
    """Ends a transaction; no error."""


class Outbox:
    """Commits intents, and rolls some back, until it is stopped.

    Args:
        seed: The soak's.
        url: The database, as the application reaches it.
        direct_url: The database, past whatever goes wrong.
        unforeseen: Where it notes what is no answer of the outbox.
    """

    def __init__(self, seed: int, *, url: str, direct_url: str, unforeseen: Unforeseen) -> None:
        self.counts: Counter[str] = Counter()
        """What became of the transactions."""
        self._seed = seed
        self._url = url
        self._direct_url = direct_url
        self._unforeseen = unforeseen
        self._begun = 0
        self._stopped = False

    async def create(self) -> None:
        """Create the application's table."""
        async with await psycopg.AsyncConnection.connect(self._direct_url) as connection:
            await connection.execute(_CREATE)

    async def go_on(self) -> None:
        """Play transactions, one after the other, until `stop`; it may run several times at once.

        It is not to be cancelled: psycopg does not close a connection whose commit is cancelled.
        """
        while not self._stopped:
            number, self._begun = FIRST_INTENT + self._begun, self._begun + 1
            script = intent_script_of(self._seed, number)
            await asyncio.sleep(script.pause)
            with self._unforeseen.noted("outbox"):
                self.counts[await self._end_of(number, script)] += 1

    def stop(self) -> None:
        """Begin no transaction any more."""
        self._stopped = True

    async def _end_of(self, number: int, script: IntentScript) -> str:
        """Play a transaction; return how it ended."""
        try:
            await self._transact(number, script)
        except _RolledBack:
            return "rolled back"
        except IdempotencyKeyConflict:
            return "in conflict"
        except IntentRefused:
            return "refused"  # what it wants is being undone, or perhaps was: its own answer
        except (psycopg.OperationalError, psycopg.InterfaceError, OSError):
            return "lost on the way"
        return "committed"

    async def _transact(self, number: int, script: IntentScript) -> None:
        connection = await psycopg.AsyncConnection.connect(
            self._url, connect_timeout=_CONNECT_SECONDS
        )
        tool, args = script.call
        async with connection:
            key = await intend(connection, TOOLS[tool], args, order_key=script.order_key)
            await connection.execute(_INSERT, (number, key))
            if script.rolled_back:
                raise _RolledBack

    async def intents(self) -> Sequence[Intent]:
        """Return all that was begun, and what the application's own table says of it."""
        async with await psycopg.AsyncConnection.connect(self._direct_url) as connection:
            rows = await (await connection.execute(_READ)).fetchall()
        there = {number: (ActionKey(key), seq) for number, key, seq in rows}
        found = []
        for number in range(FIRST_INTENT, FIRST_INTENT + self._begun):
            script = intent_script_of(self._seed, number)
            tool, args = script.call
            # An order may be somebody else's business fact, too.
            subject = "" if tool == "charge" else str(args.get("order_id") or args.get("to"))
            key, seq = there.get(number, (None, 0))
            found.append(Intent(number, subject, key, script.order_key, seq))
        return found

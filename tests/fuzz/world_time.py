"""Those who are no part of it: `Clock` lets time pass, `Cutter` ends sessions of Postgres."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, LiteralString

import psycopg

from commitline.tests.fuzz.actor import Actor
from commitline.tests.integration.database import sql

_FORGETS: Final = 0.5
"""How often so much time passes that the provider forgets keys."""
_EXPIRES: Final = 0.2
"""How often so much time passes that nobody has decided or answered."""
_PASS: Final[LiteralString] = """
update agent_actions
   set lease_until = least(lease_until, clock_timestamp()),
       sent_until = least(sent_until, clock_timestamp())
 where claim_token = any(%(tokens)s) and status = 'pending' and dispatched_at is not null"""
_PASS_ALL: Final[LiteralString] = """
update agent_actions
   set lease_until = least(lease_until, clock_timestamp()),
       sent_until = least(sent_until, clock_timestamp())
 where status = 'pending' and dispatched_at is not null"""
_AGE: Final[LiteralString] = """
update agent_actions
   set dispatched_at = dispatched_at - key_ttl
 where claim_token = any(%(tokens)s) and status = 'pending' and dispatched_at is not null
   and key_ttl is not null
returning idempotency_key"""
_EXPIRE_APPROVALS: Final[LiteralString] = """
update agent_approvals set expires_at = clock_timestamp()
 where decision is null and args->>'order' = %(order)s"""
_EXPIRE_QUESTIONS: Final[LiteralString] = """
update agent_questions set expires_at = clock_timestamp()
 where answered_at is null and payload->>'order' = %(order)s"""
_QUEUE: Final[LiteralString] = """
update agent_relay set due_at = clock_timestamp() where due_at is not null"""
_SESSIONS: Final[LiteralString] = """
select pid from pg_stat_activity
 where datname = current_database() and application_name like 'commitline%%'
   and pid <> pg_backend_pid() and (state <> 'idle' or %(any)s)
 order by pid"""


class Clock(Actor):
    """Lets the time of attempts pass: first they send nothing more, then their leases are over."""

    every = 50

    async def act(self) -> None:
        """Let the time of all attempts for one order pass."""
        with suppress(psycopg.OperationalError):  # its session was ended: it comes again
            order = str(self.chance.randrange(self.scene.theme.orders))
            await self.pass_time(order)
            if self.chance.random() < _EXPIRES:
                await sql(self.pool, _EXPIRE_APPROVALS, order=order)
                await sql(self.pool, _EXPIRE_QUESTIONS, order=order)
            await sql(self.pool, _QUEUE)

    async def pass_time(self, order: str | None = None) -> None:
        """Let the time of all attempts pass, or of those for one order.

        Of an order all: a row may have been sent by attempts whose claims others have taken over.
        """
        calls = self.scene.calls
        over = [one for one in calls.values() if order in (None, one.order)]
        for one in over:
            one.late = True
        tokens = [one.token for one in over]
        await sql(self.pool, _PASS, tokens=tokens)
        if order is not None and self.chance.random() < _FORGETS:
            aged = await sql(self.pool, _AGE, tokens=tokens)
            self.scene.provider.forget(row["idempotency_key"] for row in aged)
        # A claim that is still on its way may be committed after this: its call is kept.
        for one in [one for one in over if not one.at_work]:
            calls.pop(one.token, None)

    async def pass_all_time(self) -> None:
        """Let the time of everybody pass: nobody is at work any more."""
        await self.pass_time()
        await sql(self.pool, _PASS_ALL)
        await sql(self.pool, _QUEUE)


class Cutter(Actor):
    """Ends sessions of Postgres, also in the middle of a transaction."""

    every = 250

    async def act(self) -> None:
        """End one session."""
        with suppress(psycopg.OperationalError):  # it was its own
            found = await sql(self.pool, _SESSIONS, any=self.chance.random() < 0.3)
            if found:
                pid = self.chance.choice(found)["pid"]
                await sql(self.pool, "select pg_terminate_backend(%(pid)s)", pid=pid)
                self.scene.counts["sessions cut"] += 1

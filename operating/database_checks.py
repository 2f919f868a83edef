"""What `commitline doctor` looks at in Postgres. It only reads."""

from __future__ import annotations

import time
from typing import Final

from ..config import Settings
from ..errors import LedgerUnavailable, SchemaMismatch, StatementRefused
from ..ledger import check_schema, commits_at_risk, keys_without_exit, missing_grants
from ..ledger.session import Session, ledger_session
from .check import START_DEV, Check, clock_check

_NAMED: Final = 5
"""Actions that are named of those without an exit."""


async def database() -> Check:
    """Whether the ledger answers, its schema fits, and the role may do what the ledger does."""
    settings = Settings.load()
    if not settings.database_url:
        remedy = f"set COMMITLINE_DATABASE_URL, or {START_DEV}"
        return Check("database", "missing", "no address", remedy)
    try:
        schema = await check_schema(settings.database_url)
        grants = await missing_grants(settings.database_url)
        session = await ledger_session(settings.database_url)
    except (SchemaMismatch, StatementRefused) as err:
        return Check("database", "wrong", err.message, err.remedy)
    except LedgerUnavailable as err:
        found = " ".join(err.message.split())
        remedy = "start Postgres, or correct COMMITLINE_DATABASE_URL"
        return Check("database", "wrong", found, remedy)
    if grants:
        found = f"the role has no right to {'; '.join(grants)}"
        return Check("database", "wrong", found, "have the tables' owner grant it")
    return Check("database", "ok", f"PostgreSQL {session.version}, schema {schema}")


async def session() -> Check:
    """Whether the database, or the role, has settings with which the ledger could not work."""
    settings = Settings.load()
    try:
        found = await ledger_session(settings.database_url) if settings.database_url else None
    except (LedgerUnavailable, SchemaMismatch):
        found = None
    if found is None:
        return Check("session", "missing", "no database to look at", needed=False)
    if found.standby:
        remedy = "name the primary in COMMITLINE_DATABASE_URL (`target_session_attrs=read-write`)"
        return Check("session", "wrong", "a standby: it takes no writes", remedy)
    if found.read_only:
        remedy = "alter role … set default_transaction_read_only = off"
        return Check("session", "wrong", "default_transaction_read_only is on", remedy)
    return _limits(found, settings)


def _limits(found: Session, settings: Settings) -> Check:
    """Whether what bounds the role's sessions leaves the ledger room."""
    short = [
        f"{name} is {milliseconds} ms"
        for name, milliseconds in found.timeouts.items()
        if 0 < milliseconds < settings.statement_seconds * 1000
    ]
    if short:
        remedy = "alter role … set it to 0, or above COMMITLINE_STATEMENT_SECONDS"
        return Check("session", "wrong", "; ".join(short), remedy, needed=False)
    if found.free < settings.pool_size:
        told = f"{found.free} connections free, a worker takes {settings.pool_size}"
        remedy = "raise max_connections, or lower COMMITLINE_POOL_SIZE"
        return Check("session", "wrong", told, remedy, needed=False)
    return Check("session", "ok", f"writes, {found.free} connections free", needed=False)


async def clock() -> Check:
    """What the database's clock shows."""
    url, began = Settings.load().database_url, time.time()
    try:
        found = await ledger_session(url) if url else None
    except (LedgerUnavailable, SchemaMismatch):
        found = None
    if found is None:
        return Check("database clock", "missing", "no database to look at", needed=False)
    took = time.time() - began
    return clock_check("database clock", found.clock - began - took / 2, took / 2)


async def commits() -> Check:
    """Whether a commit may be lost."""
    url = Settings.load().database_url
    try:
        risks = await commits_at_risk(url) if url else None
    except (LedgerUnavailable, SchemaMismatch):
        risks = None
    if risks is None:
        return Check("commits", "missing", "no database to look at", needed=False)
    if not risks:
        return Check("commits", "ok", "no setting or standby of Postgres loses them", needed=False)
    remedy = "docs/guarantees.md says what may happen; the development servers need not care"
    return Check("commits", "wrong", "; ".join(risks), remedy, needed=False)


async def actions() -> Check:
    """Whether each action comes to an end."""
    url = Settings.load().database_url
    try:
        found = await keys_without_exit(url, limit=_NAMED) if url else None
    except (LedgerUnavailable, SchemaMismatch):
        found = None
    if found is None:
        return Check("actions", "missing", "no ledger to look at", needed=False)
    if not found:
        return Check("actions", "ok", "each one has an exit", needed=False)
    named = f"nobody brings to an end: {', '.join(found)}"
    remedy = "`commitline relay run` with a worker up; if they stay, please report it"
    return Check("actions", "wrong", named, remedy, needed=False)

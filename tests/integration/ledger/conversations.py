"""A conversation of three runs, and one of a fourth: what the tests of conversations begin with.

Races are arranged: a session of the test holds a lock until Postgres shows that the others wait
for it, in the order in which they came, and only then releases it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any, Final

from psycopg import sql as statements

from commitline.canonical import dumps
from commitline.identity import ActionKey, Position, RunKey
from commitline.ledger import (
    Action,
    ActionLedger,
    ActionRequest,
    Effect,
    NewMessage,
    Outcome,
    Run,
    ThreadLedger,
    Turn,
)
from commitline.ledger.pool import Pool
from commitline.tests import builders
from commitline.tests.builders import NOON, action_request, attempt, dispatched
from commitline.tests.integration.database import holding, until_blocked

THREAD: Final = "support-4821"
OTHER: Final = "support-4822"
RUN_A = RunKey("thread:support-4821/a")
RUN_B = RunKey("thread:support-4821/b")
RUN_C = RunKey("thread:support-4821/c")
RUN_D = RunKey("thread:support-4822/d")
DOMAIN_KEY: Final = "order-4821-ship"
RECEIPT = Outcome.ok('{"id":"sh_1"}')
ODD: Final = {
    "nul": "a\x00b",
    "lone": "\ud83d and \udc00",
    "float": 2.561422288066971e16,
    "small": 5e-324,
    "minus": -0.0,
    "big": 10**400,
    "text": 'quotes " and \\ and {braces} and NULL, \n and ☃',
}
_TABLES: Final = (
    "agent_threads",
    "agent_messages",
    "agent_requests",
    "agent_values",
    "agent_states",
    "agent_approvals",
    "agent_relay",
    "agent_sweeps",
    "agent_questions",
    "agent_runs",
    "agent_actions",
    "agent_domain_keys",
)


async def give_up(
    threads: ThreadLedger, run: RunKey, positions: Sequence[Position], *, by: RunKey
) -> dict[Position, Action]:
    """Have a run that goes on from the conversation's newest version give another one up."""
    found = await threads.get(THREAD) or await threads.open(THREAD, agent="support")
    return await threads.close_turn(run, positions, by=by, thread_id=THREAD, version=found.version)


async def open_run(
    ledger: ActionLedger, run: RunKey, *, second: int = 0, thread_id: str | None = THREAD
) -> Run:
    return await builders.open_run(
        ledger, run, second, thread_id=thread_id, spec='{"name":"support"}'
    )


def said(text: str, request_id: str | None = None) -> NewMessage:
    return NewMessage("user", dumps({"role": "user", "text": text}), request_id)


def answered(text: str) -> NewMessage:
    return NewMessage("assistant", dumps({"role": "assistant", "completion": {"text": text}}))


def turn(
    version: int,
    run: RunKey = RUN_A,
    step: int = 0,
    *,
    epoch: int = 0,
    text: str = "",
    thread_id: str = THREAD,
    before: Sequence[NewMessage] | None = None,
    told: Sequence[str] = (),
    replies_to: str | None = None,
    reply: str | None = None,
) -> Turn:
    """A turn that says something and is answered, which took 10 and 2 tokens."""
    name = text or f"{run}, {step}, {epoch}"
    messages = [said(f"{name}?")] if before is None else before
    return Turn(
        thread_id,
        version,
        run,
        step,
        epoch,
        [*messages, answered(f"{name}!")],
        10,
        2,
        notified=told,
        replies_to=replies_to,
        reply=reply,
    )


def action(
    position: str = "0.0",
    *,
    run: RunKey = RUN_A,
    effect: Effect = Effect.AT_MOST_ONCE,
    thread_id: str | None = THREAD,
    **given: Any,
) -> ActionRequest:
    return action_request(run, position, effect=effect, thread_id=thread_id, **given)


async def handed_back(ledger: ActionLedger, request: ActionRequest) -> None:
    """An intent: its attempt has sent nothing."""
    by = attempt()
    await dispatched(ledger, request, by)
    assert await ledger.hand_back(request, by)


async def row(ledger: ActionLedger, request: ActionRequest) -> Action:
    found = await ledger.get(request.key)
    assert found is not None
    return found


async def run_of(ledger: ActionLedger, run: RunKey) -> Run:
    """The run as it is stored, whenever it is read."""
    found = await ledger.runs.get(run)
    assert found is not None
    return replace(found, now=NOON)


async def version(threads: ThreadLedger, thread_id: str = THREAD) -> int:
    found = await threads.get(thread_id)
    assert found is not None
    return found.version


async def texts(threads: ThreadLedger, thread_id: str = THREAD) -> list[str]:
    """What was said, in short."""
    found = []
    for stored in await threads.messages(thread_id):
        message = json.loads(stored.message)
        found.append(message.get("text") or message["completion"]["text"])
    return found


async def everything(pool: Pool, *tables: str) -> dict[str, list[str]]:
    """All rows of these tables; of all that conversations touch, if none is named."""
    found = {}
    async with pool.connection() as connection:
        for table in tables or _TABLES:
            query = statements.SQL("select t::text as row from {} as t")
            cursor = await connection.execute(query.format(statements.Identifier(table)))
            found[table] = sorted(row["row"] for row in await cursor.fetchall())
    return found


def holding_thread(pool: Pool) -> Any:
    return holding(
        pool, "select from agent_threads where thread_id = %(thread)s for update", thread=THREAD
    )


def holding_run(pool: Pool, run: RunKey) -> Any:
    return holding(pool, "select from agent_runs where run_key = %(run)s for update", run=run)


def holding_action(pool: Pool, key: ActionKey) -> Any:
    return holding(pool, "select from agent_actions where key = %(key)s for update", key=key)


async def until_blocked_or_done(pool: Pool, sessions: int, work: asyncio.Future[Any]) -> None:
    """Return when one more session waits for a lock, or its work did not have to."""
    blocked = asyncio.ensure_future(until_blocked(pool, sessions))
    await asyncio.wait({blocked, work}, return_when=asyncio.FIRST_COMPLETED)
    blocked.cancel()


async def in_this_order(pool: Pool, hold: Any, *works: Awaitable[Any]) -> list[Any]:
    """Let each wait behind the one before it, then let all go on; return what became of them."""
    tasks = []
    async with hold:
        for number, work in enumerate(works, 1):
            tasks.append(asyncio.ensure_future(work))
            await until_blocked(pool, number)
    return list(await asyncio.gather(*tasks, return_exceptions=True))


async def three_turns(threads: ThreadLedger) -> None:
    """Three turns of one run, each of which answers a request."""
    for step in range(3):
        request = f"r{step}"
        await threads.receive(THREAD, request, f'"{step}"', agent=None)
        await threads.commit(
            turn(
                step,
                step=step,
                text=f"{step}",
                before=[said(f"{step}?", request)],
                replies_to=request,
                reply=f'"{step}!"',
            )
        )

"""Conversations: list them, show one, say something in one, delete one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from .command_group import CommandGroup
from .terminal import AsJson, wait_for

app = typer.Typer(
    cls=CommandGroup,
    help="Talk to agents in conversations; list, show or delete one.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list")
def list_threads(
    limit: Annotated[int, typer.Option(min=1, help="How many.")] = 20, json: AsJson = False
) -> None:
    """List the newest conversations."""
    from ..operating import console, threads
    from ..operating.connection import with_ledger

    found = wait_for(with_ledger(lambda ledger: ledger.threads.list(limit=limit)))
    if json:
        return console.print_data([vars(thread) | {"messages": count} for thread, count in found])
    return console.print_listing(
        threads.table(found),
        found,
        nothing="No conversations yet.",
        then="What was said: commitline threads show ID",
    )


@app.command("show")
def show_thread(
    thread: Annotated[str, typer.Argument(metavar="ID", help="Its id, or a run's.")],
    json: AsJson = False,
) -> None:
    """Show what was said in a conversation."""
    from ..operating import console, threads
    from ..operating.connection import with_ledger

    found, state = wait_for(with_ledger(lambda one: threads.conversation(one, thread)))
    if json:
        return console.print_data([asdict(one) for one in found])
    for one in found:
        threads.print_message(one)
    return threads.print_state(state)


@app.command("send")
def send(
    thread: Annotated[str, typer.Argument(metavar="ID", help="Its id; chosen by you.")],
    text: Annotated[str, typer.Argument(help="What to say.")],
    agent: Annotated[
        str | None, typer.Option(help="Who answers; needed to begin a conversation.")
    ] = None,
    request_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Sent twice under one id, it counts once.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Say something in a conversation, wait for the answer and print it."""
    from ..operating import console, runs
    from ..operating.command_client import open_client
    from ..workflows import RunResult

    async def work() -> RunResult:
        async with await open_client() as client:
            return await runs.send(
                client, thread, text, console.ERR, agent=agent, request_id=request_id
            )

    result = wait_for(work())
    if json:
        return console.print_data(asdict(result))
    return runs.print_answer(result)


@app.command("delete")
def delete_thread(
    thread: Annotated[str, typer.Argument(metavar="ID", help="Its id, or a run's.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: AsJson = False,
) -> None:
    """Delete what was said in a conversation, for good. What was done stays on record."""
    from ..ledger import ActionLedger
    from ..operating import console, threads
    from ..operating.connection import with_ledger
    from ..shown import one_line

    if not yes:
        asked = f"Delete the conversation {one_line(thread)}? It cannot be undone"
        typer.confirm(asked, abort=True, err=json)

    async def work(ledger: ActionLedger) -> str:
        found = await threads.thread_id(ledger, thread)
        await ledger.threads.delete(found)
        return found

    deleted = wait_for(with_ledger(work))
    if json:
        return console.print_data({"thread": deleted, "deleted": True})
    return console.say(f"{thread}: deleted")

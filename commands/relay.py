"""The relay: what it has to do, and having it look now."""

from __future__ import annotations

from typing import Annotated

import typer

from .command_group import CommandGroup
from .terminal import AsJson, wait_for

app = typer.Typer(
    cls=CommandGroup,
    help="Show what the relay has to do, or have it look now.",
    invoke_without_command=True,
    rich_markup_mode=None,
)


@app.callback()
def show_relay(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    json: AsJson = False,
) -> None:
    """Show what the relay has to do, and the runs that ended without closing themselves.

    Every worker is a relay. It looks for actions that no run carries on, and for runs that were
    terminated or timed out.
    """
    from ..operating import console, relay
    from ..operating.command_client import open_client

    if context.invoked_subcommand is not None:
        return None

    async def work() -> relay.RelayReport:
        async with await open_client() as client:
            return await relay.report(client, limit=limit)

    found = wait_for(work())
    if json:
        return console.print_data(relay.data(found))
    return relay.print_report(found)


@app.command("run")
def run_relay(json: AsJson = False) -> None:
    """Have the relay look now, rather than at its next time."""
    from ..operating import console, relay
    from ..operating.command_client import open_client

    async def work() -> str:
        async with await open_client() as client:
            return await relay.trigger(client)

    workflow_id = wait_for(work())
    if json:
        return console.print_data({"workflow_id": workflow_id})
    print(f"{workflow_id}: started")
    return None

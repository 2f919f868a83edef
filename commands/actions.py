"""Actions: list what runs have done, show one, settle one, have one tried again."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from .command_group import CommandGroup
from .terminal import AsJson, check_call, user, wait_for

State = Literal["intent", "dispatched", "unknown", "ok", "error"]

app = typer.Typer(
    cls=CommandGroup,
    help="List what runs have done, show one action, or settle an unknown one.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list")
def list_actions(
    *,
    run: Annotated[str | None, typer.Option(metavar="ID", help="Of this run only.")] = None,
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of the runs of this agent, or plan, only.")
    ] = None,
    state: Annotated[
        State | None, typer.Option(help="In this state only.", case_sensitive=False)
    ] = None,
    parked: Annotated[bool, typer.Option("--parked", help="Only what needs a person.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    json: AsJson = False,
) -> None:
    """List actions: the newest runs first, or what has waited longest for a person."""
    from ..operating import actions, console
    from ..operating.connection import with_ledger

    if parked and state not in (None, "unknown"):
        raise typer.BadParameter(f"--parked is --state unknown, and not {state}")
    found = wait_for(
        with_ledger(
            lambda ledger: actions.find_actions(
                ledger, run=run, parked=parked, limit=limit, agent=agent, state=state
            )
        )
    )
    if json:
        return console.print_data([actions.data(one) for one in found])
    nothing = "No such actions." if agent or state else "No actions yet."
    nothing = "Nothing waits for a person." if parked else nothing
    return console.print_listing(
        actions.table(found),
        found,
        nothing=nothing,
        then="All about one: commitline actions show RUN:AT",
    )


@app.command("show")
def show_action(
    key: Annotated[str, typer.Argument(help="RUN:AT as listed, or the whole action key.")],
    json: AsJson = False,
) -> None:
    """Show everything about one action; of a read, the result that was too large to travel."""
    from ..ledger import Action
    from ..operating import actions, console
    from ..operating.connection import with_ledger

    check_call(key)
    found = wait_for(with_ledger(lambda ledger: actions.find_record(ledger, key)))
    if not isinstance(found, Action):
        return console.print_data(found)
    if json:
        return console.print_data(actions.data(found))
    return actions.print_details(found)


@app.command("settle")
def settle_action(
    key: Annotated[str, typer.Argument(help="RUN:AT as listed, or the whole action key.")],
    happened: Annotated[
        str | None,
        typer.Option(metavar="RESULT", help="It happened; what it returned, JSON or plain text."),
    ] = None,
    did_not_happen: Annotated[
        bool, typer.Option("--did-not-happen", help="It surely did not; its key is free again.")
    ] = False,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who says so; kept on the row.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Say what became of an unknown action, after a look at the downstream system."""
    from ..operating import actions, console
    from ..operating.connection import with_ledger

    check_call(key)
    if (happened is None) is not did_not_happen:
        raise typer.BadParameter("say either --happened RESULT or --did-not-happen")

    settled = wait_for(
        with_ledger(lambda ledger: actions.settle(ledger, key, happened=happened, by=by or user()))
    )
    if json:
        return console.print_data([actions.data(one) for one in settled])
    return actions.table(settled).print(console.OUT)


@app.command("reopen")
def reopen_action(
    key: Annotated[str, typer.Argument(help="RUN:AT as listed, or the whole action key.")],
    json: AsJson = False,
) -> None:
    """Have the relay try an action again that waits for a person.

    It is sent under the same key as before. Where the tool has a lookup, that comes first. An
    action that must not be sent twice, or that belongs to a stopped run, is refused: settle it.
    """
    from ..operating import actions, console
    from ..operating.connection import with_ledger

    check_call(key)
    found = wait_for(with_ledger(lambda ledger: actions.reopen(ledger, key)))
    if json:
        return console.print_data(actions.data(found))
    return console.say(f"{key}: is tried again")

"""Runs: list them, stop one, undo what it did, take it back to an earlier turn."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import typer

from .command_group import CommandGroup
from .terminal import AsJson, user, wait_for

State = Literal[
    "running",
    "completed",
    "failed",
    "canceled",
    "terminated",
    "timed_out",
    "paused",
    "waiting",
    "gone",
]
Agent = Annotated[str | None, typer.Option(metavar="NAME", help="Of this agent, or plan, only.")]
InState = Annotated[
    State | None,
    typer.Option(
        metavar="STATE",
        help="In this state only: running, completed, failed, canceled, terminated, timed_out, "
        "paused; waiting: for a person; gone: Temporal has forgotten it.",
        case_sensitive=False,
    ),
]
Limit = Annotated[int, typer.Option(min=1, help="How many.")]
_UNDO_NEEDS: Final = (
    "It takes a worker of the run's task queue, or one that is a relay. The undo is ordered: "
    "it goes on, also if this command ends."
)

app = typer.Typer(
    cls=CommandGroup,
    help="List the newest runs, show one, or take one back to an earlier turn.",
    invoke_without_command=True,
    rich_markup_mode=None,
)


@app.callback()
def list_runs(
    context: typer.Context,
    agent: Agent = None,
    state: InState = None,
    limit: Limit = 20,
    json: AsJson = False,
) -> None:
    """List the newest runs: their state, why they failed, what waits for a person, since when."""
    from ..operating import console, run_list
    from ..operating.command_client import open_client

    if context.invoked_subcommand is not None:
        return None

    async def work() -> list[run_list.Listed]:
        async with await open_client() as client:
            return await run_list.newest_runs(client, limit=limit, agent=agent, state=state)

    found = wait_for(work())
    if json:
        return console.print_data([run_list.data(one) for one in found])
    nothing = "No runs yet." if agent is None and state is None else "No such runs."
    return console.print_listing(
        run_list.table(found),
        found,
        nothing=nothing,
        then="All about one: commitline runs show RUN",
    )


@app.command("show")
def show_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id, or its key.")],
    json: AsJson = False,
) -> None:
    """Show everything about one run: its state, why it failed, and what of it waits."""
    from ..operating import console, run_facts, runs
    from ..operating.command_client import open_client

    async def work() -> dict[str, Any]:
        async with await open_client() as client:
            return await run_facts.facts(client, await runs.handle_of(client, run))

    found = wait_for(work())
    return console.print_data(found) if json else run_facts.print_facts_of(found)


@app.command("reset")
def reset_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")],
    to_step: Annotated[
        int, typer.Option(min=0, metavar="N", help="The model turn, or stage, as in positions.")
    ],
    fork: Annotated[
        bool,
        typer.Option(
            "--fork", help="Make new model requests from there; the model reads what took effect."
        ),
    ] = False,
    reason: Annotated[str, typer.Option(help="Why, for people; kept in history.")] = "",
    json: AsJson = False,
) -> None:
    """Take a run back to just before a model turn, and let it go on from there.

    Its plan is replayed: the run reads back what the model said, and does nothing again that is
    done. With --fork it goes another way instead; what is done stands.
    """
    from ..handles.reset import Reset
    from ..operating import console
    from ..operating.command_client import open_client
    from ..operating.reset import print_reset, reset_data

    async def work() -> Reset:
        async with await open_client() as client:
            return await client.run(run).reset(
                to_step=to_step, fork=fork, reason=reason or f"by {user()}"
            )

    done = wait_for(work())
    if json:
        return console.print_data(reset_data(done))
    return print_reset(done, fork=fork)


def top(
    agent: Agent = None,
    state: InState = None,
    limit: Limit = 20,
    interval: Annotated[
        float, typer.Option(min=0.5, metavar="SECONDS", help="How often to look.")
    ] = 2,
    json: AsJson = False,
) -> None:
    """Show the newest runs and what waits for a person, again and again, until Ctrl-C.

    With --json, or where stdout is no terminal, it is shown once.
    """
    from ..operating import console, run_list
    from ..operating import top as view
    from ..operating.command_client import open_client

    async def work() -> view.Snapshot | None:
        async with await open_client() as client:
            shown = view.Top(client, limit=limit, agent=agent, state=state)
            if json or not console.OUT.is_terminal:
                return await shown.look()
            await shown.show(console.OUT, every_seconds=interval)
            return None

    try:
        found = wait_for(work())
    except KeyboardInterrupt:
        return None
    if found is None or json:
        return None if found is None else console.print_data(view.data(found))
    console.OUT.print(view.summary(found))
    return console.print_listing(run_list.table(found.runs), found.runs, nothing="No such runs.")


def stop(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")],
    reason: Annotated[str, typer.Option(help="Why, for people; kept with the run.")] = "",
    wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long to wait for its end.")
    ] = 30,
    undo: Annotated[bool, typer.Option("--undo", help="Undo what it did before it ends.")] = False,
    json: AsJson = False,
) -> None:
    """Stop a run for good; waits until its tools have really ended.

    It starts nothing any more, not even after a reset. What it did stands, unless --undo undoes
    it. Exits 1 while it is still stopping, since no worker is there to finish it or a tool takes
    its time; and with --undo if something stands that should not.
    """
    from ..handles.any_run import RunStatus
    from ..handles.run_workflow import LIVE
    from ..identity import check_any_workflow_id
    from ..ledger import Action, UndoReport
    from ..operating import console, runs
    from ..operating.command_client import open_client
    from ..operating.undo import is_partial, print_what_stands, stop_data

    async def work() -> tuple[RunStatus, Sequence[Action], UndoReport | None, bool]:
        async with await open_client() as client:
            handle = await runs.handle_of(client, run)
            check_any_workflow_id(handle.id)
            ran = (await handle.state()) in LIVE
            with console.ERR.status(console.line(f"{run}: stopping")):
                status = await handle.stop(
                    reason=reason or f"by {user()}", compensate=undo, wait_seconds=wait
                )
            report = await handle.undo_report() if undo else None
            return status, await handle.actions(), report, ran

    status, done, report, ran = wait_for(work())
    unknown, stopping = [one for one in done if one.state == "unknown"], status.state == "stopping"
    if json:
        console.print_data(stop_data(run, status.state, unknown, report))
    else:
        console.say(f"{run}: {_told(status.state, ran=ran)}")
        print_what_stands(run, unknown, None if stopping else report)
        if stopping:
            print("It starts nothing any more, and ends when a worker is there.", file=sys.stderr)
    raise typer.Exit(int(stopping or is_partial(report)))


def _told(state: str, *, ran: bool) -> str:
    if state == "gone":
        return "gone: Temporal has no workflow of it, and nothing of it is begun any more"
    return state if ran else f"had ended before: {state}"


def undo_run(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="The run's id, or its key (one run of a conversation)."),
    ],
    reason: Annotated[str, typer.Option(help="Why, for people; kept with the run.")] = "",
    show: Annotated[
        bool, typer.Option("--show", help="Only say what is undone, and what stands.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Take back what an ended run did, or try again what could not be taken back.

    What is undone already is not undone again, and nothing opens the run any more. Exits 1 if
    something stands that should not, or is unknown.
    """
    from ..ledger import UndoReport
    from ..operating import console, runs
    from ..operating.command_client import open_client
    from ..operating.undo import print_earlier_runs, print_undo_report, undo_data

    async def work() -> tuple[UndoReport, Sequence[str]]:
        async with await open_client() as client:
            handle = await runs.handle_of(client, run)
            others = await runs.earlier_runs(client, run)
            if show:
                return await handle.undo_report(), others
            with console.waiting(f"{run}: undoing what it did", _UNDO_NEEDS):
                return await handle.undo(reason=reason or f"by {user()}"), others

    report, others = wait_for(work())
    if json:
        console.print_data({"id": run, **undo_data(report)})
    else:
        print_undo_report(run, report)
        print_earlier_runs(others)
    raise typer.Exit(int(report.state == "partly compensated"))

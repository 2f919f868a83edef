"""Starting things: the demo, the servers of one machine, a worker, a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .terminal import AsJson, wait_for


def demo(
    scenario: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this one; may be repeated.")
    ] = None,
    integrations: Annotated[
        bool,
        typer.Option(
            "--integrations", help="Agents of other frameworks, without LedgerPlugin and with it."
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Kill workers at the worst moments and count the charges; about a minute.

    Starts servers of its own and leaves nothing running. Exits 1 if a guarded run charged
    other than once, if the baseline on plain Temporal did not charge twice, if a plan that
    failed was not undone, or if a call did not wait for the person who has to approve it.
    With `--integrations`: if an agent with LedgerPlugin charged or mailed other than once, or
    one without it did not do both twice.
    """
    from ..operating import console
    from ..testing.demo import INTEGRATIONS, SCENARIOS, Result, report, run_demo

    scenarios = INTEGRATIONS if integrations else SCENARIOS
    names = [known.name for known in scenarios]
    if unknown := sorted(set(scenario or []) - set(names)):
        raise typer.BadParameter(f"no scenario {unknown[0]!r}; there are: {', '.join(names)}")
    screen = console.ERR if json else console.OUT

    def started() -> None:
        screen.print(report.introduction(len(scenario or names), integrations=integrations))

    def doing(what: str) -> None:
        console.ERR.print(f"{what} …", style="dim")

    def finished(result: Result) -> None:
        screen.print(report.timeline(result))

    results = run_demo(
        scenario or [], of=scenarios, started=started, doing=doing, finished=finished
    )
    report.show(screen, results)
    if json:
        console.print_data([result.as_json() for result in results])
    raise typer.Exit(int(any(result.faults for result in results)))


def dev(json: AsJson = False) -> None:
    """Start Temporal, its UI and Postgres for this folder, until Ctrl-C.

    The data lies in .commitline and stays; the other commands find the servers from here
    and from every folder below.
    """
    from ..activities.contract.search_attributes import ATTRIBUTES
    from ..config import DevAddresses
    from ..devstack.foreground import run_dev_servers
    from ..operating import console
    from ..operating.dev_servers import print_addresses

    def ready(found: DevAddresses) -> None:
        if json:
            console.print_data(vars(found))
        else:
            print_addresses(found)
        sys.stdout.flush()

    run_dev_servers(
        Path.cwd(),
        keywords=[one.name for one in ATTRIBUTES],
        doing=lambda what: console.ERR.print(f"{what} …", style="dim"),
        ready=ready,
    )


def worker(
    app: Annotated[
        str,
        typer.Argument(metavar="APP", help="module:attribute of your App; else COMMITLINE_APP's."),
    ] = "",
    migrate: Annotated[bool, typer.Option("--migrate", help="Migrate the database first.")] = False,
) -> None:
    """Run a worker for an app until SIGTERM or Ctrl-C.

    Then it finishes what it has begun, within COMMITLINE_GRACE_SECONDS.
    """
    from ..worker import serve

    raise typer.Exit(serve(app, migrate_first=migrate))


def run(
    agent: Annotated[str, typer.Argument(help="An agent of the worker's app.")],
    prompt: Annotated[str, typer.Argument(help="What the agent is to do.")],
    id: Annotated[str, typer.Option(help="Choose it from your domain: the same id, the same run.")],
    wait: Annotated[bool, typer.Option(help="Wait for the answer and print it.")] = True,
    json: AsJson = False,
) -> None:
    """Start a run, or join the one that has this id and prompt."""
    from ..operating import console
    from ..operating.actions import print_unknown
    from ..operating.command_client import open_client
    from ..operating.dev_servers import ui_link
    from ..operating.runs import follow, print_answer

    async def work() -> None:
        async with await open_client() as client:
            handle = await client.start(agent, prompt, id=id)
            found = await handle.describe()
            if link := ui_link(client, found):
                console.ERR.print(f"See it at {link}", soft_wrap=True)
            shown = {"id": id, "run_id": found.run_id, "ui": link}
            if not wait:
                return console.print_data(shown) if json else print(f"started {id}")
            result = await follow(handle, console.ERR)
            unknown = [one for one in await handle.actions() if one.state == "unknown"]
            if json:
                return console.print_data(shown | vars(result) | {"unknown": len(unknown)})
            print_answer(result)
            for one in unknown:
                print_unknown(one)
            return None

    try:
        wait_for(work())
    except KeyboardInterrupt:
        print(f"\nNot waiting any more; the run {id} goes on.", file=sys.stderr)
        raise typer.Exit(130) from None

"""`commitline`: the same as the client, for a terminal, and what an operator needs.

Thin: each command asks and prints. What takes long to import is imported by the command that
needs it, so that `--help` is quick. Data goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from .errors import CommitlineError
from .process import leave

if TYPE_CHECKING:
    from .client import AgentClient
    from .ledger import Action, ActionLedger, Approval, Question, UndoReport
    from .operating import RelayReport
    from .resetting import Reset
    from .run_client import RunStatus
    from .testing.demo import Result
    from .workflows import RunResult

_HELP = """
AI agents on Temporal whose side effects survive a crash.

Start with `commitline demo`, which kills workers and counts the charges, or with
`commitline dev`, which starts the servers that the other commands find by themselves.
Elsewhere set TEMPORAL_ADDRESS (and what else the Temporal SDK reads) and
COMMITLINE_DATABASE_URL.
"""

app = typer.Typer(
    help=_HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
actions = typer.Typer(
    help="List what runs have done, show one action, or settle an unknown one.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.add_typer(actions, name="actions", rich_help_panel="Operate")
runs = typer.Typer(
    help="List the newest runs, or take one back to an earlier turn.",
    invoke_without_command=True,
    rich_markup_mode="markdown",
)
app.add_typer(runs, name="runs", rich_help_panel="Operate")
threads = typer.Typer(
    help="Talk to agents in conversations; list, show or delete one.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.add_typer(threads, name="threads", rich_help_panel="Operate")

relay = typer.Typer(
    help="Show what the relay has to do, or have it look now.",
    invoke_without_command=True,
    rich_markup_mode="markdown",
)
app.add_typer(relay, name="relay", rich_help_panel="Operate")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main() -> NoReturn:
    """Be the command. Every way out goes through `leave`."""
    leave(_status())


def _status() -> int:
    try:
        app()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except CommitlineError as err:
        return _fail(err.message, f"[{err.code}] {err.remedy}")
    except Exception as err:
        from temporalio.service import RPCError

        if isinstance(err, RPCError):
            return _fail(f"Temporal answered: {err.message}", "Run `commitline doctor`.")
        traceback.print_exc()
        return 1
    return 0


def _fail(message: str, remedy: str) -> int:
    from .canonical import scrub

    print(f"commitline: {scrub(message, limit=4000)}\n{remedy}", file=sys.stderr)
    return 1


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"commitline {version('commitline')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Say which.")
    ] = False,
) -> None:
    """Take the options before the command."""


@app.command(rich_help_panel="Start")
def demo(
    scenario: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this one; may be repeated.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Kill workers at the worst moments and count the charges; about a minute.

    Starts servers of its own and leaves nothing running. Exits 1 if a guarded run charged
    other than once, if the baseline on plain Temporal did not charge twice, if a plan that
    failed was not undone, or if a call did not wait for the person who has to approve it.
    """
    from . import printing
    from .testing.demo import SCENARIOS, report, run_demo

    names = [known.name for known in SCENARIOS]
    if unknown := sorted(set(scenario or []) - set(names)):
        raise typer.BadParameter(f"no scenario {unknown[0]!r}; there are: {', '.join(names)}")
    console = printing.ERR if json else printing.OUT

    def started() -> None:
        console.print(report.introduction(len(scenario or names)))

    def finished(result: Result) -> None:
        console.print(report.timeline(result))

    console.print("Starting Temporal and Postgres for the demo …")
    results = run_demo(scenario or [], started=started, finished=finished)
    report.show(console, results)
    if json:
        printing.data([result.as_json() for result in results])
    raise typer.Exit(int(any(result.faults for result in results)))


@app.command(rich_help_panel="Start")
def dev(json: AsJson = False) -> None:
    """Start Temporal, its UI and Postgres for this folder, until Ctrl-C.

    The data lies in .commitline and stays; the other commands find the servers from here
    and from every folder below.
    """
    from . import printing
    from .config import DevAddresses
    from .dev import run_dev_servers

    def ready(found: DevAddresses) -> None:
        if json:
            printing.data(vars(found))
        else:
            printing.addresses(found)
        sys.stdout.flush()

    run_dev_servers(
        Path.cwd(), doing=lambda what: printing.ERR.print(f"{what} …", style="dim"), ready=ready
    )


@app.command(rich_help_panel="Start")
def worker(
    app: Annotated[str, typer.Argument(metavar="APP", help="module:attribute of your App.")],
    migrate: Annotated[bool, typer.Option("--migrate", help="Migrate the database first.")] = False,
) -> None:
    """Run a worker for an app until it is told to go.

    On SIGTERM or Ctrl-C it finishes what it has begun, within COMMITLINE_GRACE_SECONDS.
    """
    from .logs import configure_logging
    from .worker import run_worker

    configure_logging()
    asyncio.run(run_worker(app, migrate_first=migrate))


@app.command(rich_help_panel="Start")
def run(
    agent: Annotated[str, typer.Argument(help="An agent of the worker's app.")],
    prompt: Annotated[str, typer.Argument(help="What it is asked to do.")],
    id: Annotated[str, typer.Option(help="Choose it from your domain: the same id, the same run.")],
    wait: Annotated[bool, typer.Option(help="Wait for the answer and print it.")] = True,
    json: AsJson = False,
) -> None:
    """Start a run, or join the one that has this id and prompt."""
    from . import printing
    from .operating import follow, look_up, ui_link

    async def work() -> None:
        async with await _connect() as client:
            handle = await client.start(agent, prompt, id=id)
            found = await look_up(client, id)
            if link := ui_link(client, found):
                printing.ERR.print(f"See it at {link}", soft_wrap=True)
            shown = {"id": id, "run_id": found.run_id, "ui": link}
            if not wait:
                return printing.data(shown) if json else print(f"started {id}")
            result = await follow(handle, printing.ERR)
            unknown = [one for one in await handle.actions() if one.state == "unknown"]
            if json:
                return printing.data(shown | vars(result) | {"unknown": len(unknown)})
            printing.OUT.print(printing.text(result.output), soft_wrap=True)
            for one in unknown:
                printing.unknown(one)
            return None

    try:
        asyncio.run(work())
    except KeyboardInterrupt:
        print(f"\nNot waiting any more; the run {id} goes on.", file=sys.stderr)
        raise typer.Exit(130) from None


@app.command(rich_help_panel="Operate")
def stop(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")],
    reason: Annotated[str, typer.Option(help="Why, for people; kept with the run.")] = "",
    wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long to wait for its end.")
    ] = 30,
    undo: Annotated[
        bool, typer.Option("--undo", help="Have what it did taken back before it ends.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Stop a run for good; waits until its tools have really ended.

    It starts nothing any more, not even after a reset. What it did stands, unless --undo takes
    it back. Exits 1 while it is still stopping: no worker is there to finish it, or a tool takes
    its time; and with --undo if something stands that should not.
    """
    from temporalio.client import WorkflowExecutionStatus

    from . import printing
    from .identity import check_any_workflow_id

    async def work() -> tuple[RunStatus, Sequence[Action], UndoReport | None, bool]:
        async with await _connect() as client:
            handle = client.run(run)
            check_any_workflow_id(run)
            ran = (await handle.describe()).status is WorkflowExecutionStatus.RUNNING
            with printing.ERR.status(f"{run}: stopping"):
                status = await handle.stop(
                    reason=reason or f"by {_user()}", compensate=undo, wait_seconds=wait
                )
            report = await handle.undo_report() if undo else None
            return status, await handle.actions(), report, ran

    status, done, report, ran = asyncio.run(work())
    unknown = [one for one in done if one.state == "unknown"]
    if json:
        told = {"id": run, "state": status.state, "unknown": [one.key for one in unknown]}
        printing.data(told if report is None else told | {"undo": printing.undo_data(report)})
    elif report is not None and status.state != "stopping":
        print(f"{run}: {status.state}" if ran else f"{run}: had ended before: {status.state}")
        printing.undo(run, report)
    else:
        print(f"{run}: {status.state}" if ran else f"{run}: had ended before: {status.state}")
        if status.state == "stopping":
            print("It starts nothing any more, and ends when a worker is there.", file=sys.stderr)
        for one in unknown:
            printing.unknown(one)
    partly = report is not None and report.state == "partly compensated"
    raise typer.Exit(int(status.state == "stopping" or partly))


@app.command("undo", rich_help_panel="Operate")
def undo_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")],
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
    from . import printing

    async def work() -> UndoReport:
        async with await _connect() as client:
            handle = client.run(run)
            if show:
                return await handle.undo_report()
            with printing.ERR.status(f"{run}: undoing what it did"):
                return await handle.undo(reason=reason or f"by {_user()}")

    report = asyncio.run(work())
    if json:
        printing.data({"id": run, **printing.undo_data(report)})
    else:
        printing.undo(run, report)
    raise typer.Exit(int(report.state == "partly compensated"))


@app.command("approvals", rich_help_panel="Operate")
def list_approvals(
    run: Annotated[str | None, typer.Option(metavar="ID", help="Of this run only.")] = None,
    all: Annotated[bool, typer.Option("--all", help="What was decided, too.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    json: AsJson = False,
) -> None:
    """List the calls that wait for a person, the longest waiting first."""
    from . import operating, printing

    async def work(ledger: ActionLedger) -> Sequence[Approval]:
        return await operating.find_approvals(ledger, run=run, all=all, limit=limit)

    found = asyncio.run(operating.with_ledger(work))
    if json:
        return printing.data([printing.approval_data(one) for one in found])
    return printing.listing(
        printing.approvals(found),
        found,
        nothing="Nothing waits for a person.",
        then="Decide: commitline approve RUN:AT, or commitline reject RUN:AT --reason WHY",
    )


Call = Annotated[str, typer.Argument(metavar="RUN:AT", help="The call, as listed.")]
By = Annotated[str | None, typer.Option(metavar="NAME", help="Who decides; kept on the row.")]


@app.command(rich_help_panel="Operate")
def approve(
    call: Call,
    args: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Other arguments than were asked about: all of them."),
    ] = None,
    by: By = None,
) -> None:
    """Approve a call that waits: it is carried out as it was shown, or as you edit it."""
    asyncio.run(_decide(call, approve=True, by=by, reason="", args=args))


@app.command(rich_help_panel="Operate")
def reject(
    call: Call,
    reason: Annotated[str, typer.Option(help="Why; the model is told.")] = "",
    by: By = None,
) -> None:
    """Reject a call that waits: it is not carried out, and the model is told so."""
    asyncio.run(_decide(call, approve=False, by=by, reason=reason, args=None))


async def _decide(
    call: str, *, approve: bool, by: str | None, reason: str, args: str | None
) -> None:
    from .canonical import parse

    run, _, position = call.rpartition(":")
    edited = None if args is None else parse(args)
    if edited is not None and not isinstance(edited, dict):
        raise typer.BadParameter("--args takes a JSON object")
    async with await _connect() as client:
        await client.run(run).decide(
            position, approve=approve, by=by or _user(), reason=reason, args=edited
        )
    print(f"{call}: {'approved' if approve else 'rejected'}")


@app.command("questions", rich_help_panel="Operate")
def list_questions(
    run: Annotated[str | None, typer.Option(metavar="ID", help="Of this run only.")] = None,
    all: Annotated[bool, typer.Option("--all", help="What was answered, too.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    json: AsJson = False,
) -> None:
    """List what calls ask a person midway, the longest waiting first."""
    from . import operating, printing

    async def work(ledger: ActionLedger) -> Sequence[Question]:
        return await operating.find_questions(ledger, run=run, all=all, limit=limit)

    found = asyncio.run(operating.with_ledger(work))
    if json:
        return printing.data([printing.question_data(one) for one in found])
    return printing.listing(
        printing.questions(found),
        found,
        nothing="Nothing waits for an answer.",
        then="Answer: commitline answer RUN:AT/N --value JSON, or plain text",
    )


@app.command(rich_help_panel="Operate")
def answer(
    question: Annotated[
        str, typer.Argument(metavar="RUN:AT/N", help="As listed; without /N what it asks now.")
    ],
    value: Annotated[str, typer.Option(metavar="JSON", help="The answer, JSON or plain text.")],
    by: By = None,
) -> None:
    """Answer what a call asks: it is made again, with the answer."""
    from .operating import answer as answer_question

    async def work() -> None:
        async with await _connect() as client:
            await answer_question(client, question, value, by=by or _user())

    asyncio.run(work())
    print(f"{question}: answered")


@runs.callback()
def list_runs(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="How many.")] = 20,
    json: AsJson = False,
) -> None:
    """List the newest runs with their state, or take one back to an earlier turn."""
    from . import printing
    from .operating import newest_runs

    if context.invoked_subcommand is not None:
        return None

    async def work() -> list[dict[str, Any]]:
        async with await _connect() as client:
            return await newest_runs(client, limit=limit)

    found = asyncio.run(work())
    if json:
        return printing.data(found)
    return printing.listing(printing.runs(found), found, nothing="No runs yet.")


@runs.command("reset")
def reset_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")],
    to_step: Annotated[
        int, typer.Option(min=0, metavar="N", help="The model turn, or stage, as in positions.")
    ],
    fork: Annotated[
        bool, typer.Option("--fork", help="Ask the model anew from there, told what took effect.")
    ] = False,
    reason: Annotated[str, typer.Option(help="Why, for people; kept in history.")] = "",
    json: AsJson = False,
) -> None:
    """Take a run back to just before a model turn, and let it go on from there.

    Its plan is replayed: what the model said is read back without asking it, and what is done
    is not done again. With --fork it goes another way instead; what is done stands.
    """
    from . import printing

    async def work() -> Reset:
        async with await _connect() as client:
            return await client.run(run).reset(
                to_step=to_step, fork=fork, reason=reason or f"by {_user()}"
            )

    done = asyncio.run(work())
    if json:
        return printing.data(printing.reset_data(done))
    return printing.reset(done, fork=fork)


@threads.command("list")
def list_threads(
    limit: Annotated[int, typer.Option(min=1, help="How many.")] = 20, json: AsJson = False
) -> None:
    """List the newest conversations."""
    from . import operating, printing

    found = asyncio.run(operating.with_ledger(lambda ledger: ledger.threads.list(limit=limit)))
    if json:
        return printing.data([vars(thread) | {"messages": count} for thread, count in found])
    return printing.listing(
        printing.threads(found),
        found,
        nothing="No conversations yet.",
        then="What was said: commitline threads show ID",
    )


@threads.command("show")
def show_thread(
    thread: Annotated[str, typer.Argument(metavar="ID", help="Its id, or a run's.")],
    json: AsJson = False,
) -> None:
    """Show what was said in a conversation."""
    from . import operating, printing

    found, state = asyncio.run(
        operating.with_ledger(lambda one: operating.conversation(one, thread))
    )
    if json:
        return printing.data([asdict(one) for one in found])
    for one in found:
        printing.message(one)
    return printing.state(state)


@threads.command("send")
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
    from . import printing

    async def work() -> RunResult:
        async with await _connect() as client:
            with printing.ERR.status(f"{thread}: waiting for the answer"):
                return await client.send(thread, text, agent=agent, request_id=request_id)

    result = asyncio.run(work())
    if json:
        return printing.data(asdict(result))
    return printing.OUT.print(printing.text(result.output), soft_wrap=True)


@threads.command("delete")
def delete_thread(
    thread: Annotated[str, typer.Argument(metavar="ID", help="Its id, or a run's.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete what was said in a conversation, for good. What was done stays on record."""
    from . import operating

    if not yes:
        typer.confirm(f"Delete the conversation {thread}? It cannot be undone", abort=True)

    async def work(ledger: ActionLedger) -> None:
        await ledger.threads.delete(await operating.thread_id(ledger, thread))

    asyncio.run(operating.with_ledger(work))
    print(f"{thread}: deleted")


@app.command(rich_help_panel="Operate")
def doctor(json: AsJson = False) -> None:
    """Say what is there, what is missing, and how to get it.

    Exits 1 when no worker could run here: no usable database, or no usable Temporal.
    """
    from . import printing
    from .doctor import examine, healthy

    checks = asyncio.run(examine())
    if json:
        printing.data([vars(check) for check in checks])
    else:
        printing.OUT.print(printing.checks(checks))
    raise typer.Exit(int(not healthy(checks)))


@app.command(rich_help_panel="Operate")
def migrate(json: AsJson = False) -> None:
    """Bring the database to this version's schema. Safe to repeat."""
    from . import ledger, printing
    from .config import Settings
    from .ledger.sql import migrations

    url = Settings.load().require_database()
    applied = asyncio.run(ledger.migrate(url))
    names = [name for version, name, _ in migrations() if version in applied]
    if json:
        return printing.data({"applied": names, "schema": migrations()[-1][0]})
    return print("\n".join(f"applied {name}" for name in names) or "nothing to do: up to date")


@actions.command("list")
def list_actions(
    run: Annotated[str | None, typer.Option(metavar="ID", help="Of this run only.")] = None,
    parked: Annotated[bool, typer.Option("--parked", help="Only what needs a person.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    json: AsJson = False,
) -> None:
    """List actions: the newest runs first, or what has waited longest for a person."""
    from . import operating, printing

    async def work(ledger: ActionLedger) -> Sequence[Action]:
        return await operating.find_actions(ledger, run=run, parked=parked, limit=limit)

    found = asyncio.run(operating.with_ledger(work))
    if json:
        return printing.data([printing.action_data(one) for one in found])
    return printing.listing(
        printing.actions(found),
        found,
        nothing="Nothing waits for a person." if parked else "No actions yet.",
        then="All about one: commitline actions show RUN:AT",
    )


@actions.command("show")
def show_action(
    key: Annotated[str, typer.Argument(help="RUN:AT as listed, or the whole action key.")],
    json: AsJson = False,
) -> None:
    """Show everything about one action; of a read, the result that was too large to travel."""
    from . import operating, printing
    from .ledger import Action

    found = asyncio.run(operating.with_ledger(lambda ledger: operating.find_record(ledger, key)))
    if not isinstance(found, Action):
        return printing.data(found)
    if json:
        return printing.data(printing.action_data(found))
    return printing.OUT.print(printing.action(found))


@actions.command("settle")
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
    from . import operating, printing

    if (happened is None) is not did_not_happen:
        raise typer.BadParameter("say either --happened RESULT or --did-not-happen")

    async def work(ledger: ActionLedger) -> Sequence[Action]:
        return await operating.settle(ledger, key, happened=happened, by=by or _user())

    settled = asyncio.run(operating.with_ledger(work))
    if json:
        return printing.data([printing.action_data(one) for one in settled])
    return printing.OUT.print(printing.actions(settled))


@actions.command("reopen")
def reopen_action(
    key: Annotated[str, typer.Argument(help="RUN:AT as listed, or the whole action key.")],
    json: AsJson = False,
) -> None:
    """Have the relay try an action again that waits for a person.

    Under the key that it was sent with; what became of it is asked first, where that can be.
    What must not be sent twice, or belongs to a stopped run, is refused: settle it.
    """
    from . import operating, printing

    found = asyncio.run(operating.with_ledger(lambda ledger: operating.reopen(ledger, key)))
    if json:
        return printing.data(printing.action_data(found))
    print(f"{key}: is tried again")
    return None


@relay.callback()
def show_relay(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    json: AsJson = False,
) -> None:
    """Show what the relay has to do, and runs that ended without a word.

    The workers keep its schedule: it looks for actions that nobody sees to, and for runs that
    were terminated or timed out.
    """
    from . import printing
    from .operating import relay_report

    if context.invoked_subcommand is not None:
        return None

    async def work() -> RelayReport:
        async with await _connect() as client:
            return await relay_report(client, limit=limit)

    found = asyncio.run(work())
    if json:
        return printing.data(printing.relay_data(found))
    return printing.relay(found)


@relay.command("run")
def run_relay(json: AsJson = False) -> None:
    """Have the relay look now, rather than at its next time."""
    from . import printing
    from .operating import trigger_relay

    async def work() -> str:
        async with await _connect() as client:
            return await trigger_relay(client)

    schedule = asyncio.run(work())
    if json:
        return printing.data({"schedule": schedule})
    print(f"{schedule}: started")
    return None


def _user() -> str:
    # Not getpass.getuser: it raises for a user without a name, as in many containers.
    return os.environ.get("USER") or f"uid {os.getuid()}"


async def _connect() -> AgentClient:
    from .client import AgentClient

    return await AgentClient.connect()


if __name__ == "__main__":
    main()

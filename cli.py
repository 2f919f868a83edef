"""`commitline`: the same as the client, for a terminal, and what an operator needs.

The commands are in `commands`, by subject. Data goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Annotated, Final, NoReturn

import typer

from .commands import actions, decisions, machine, relay, runs, starting, threads
from .commands.command_group import CommandGroup
from .errors import CommitlineError
from .process import leave

_HELP = """
AI agents on Temporal whose side effects survive a crash.

Start with `commitline demo`, which kills workers and counts the charges, or with
`commitline dev`, which starts the servers that the other commands find by themselves.
Elsewhere set TEMPORAL_ADDRESS (and what else the Temporal SDK reads) and
COMMITLINE_DATABASE_URL.
"""

app = typer.Typer(
    cls=CommandGroup,
    help=_HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_START: Final[Mapping[str, Callable[..., None]]] = {
    "demo": starting.demo,
    "dev": starting.dev,
    "worker": starting.worker,
    "run": starting.run,
}
_OPERATE: Final[Mapping[str, Callable[..., None]]] = {
    "top": runs.top,
    "stop": runs.stop,
    "undo": runs.undo_run,
    "approvals": decisions.list_approvals,
    "approve": decisions.approve,
    "reject": decisions.reject,
    "questions": decisions.list_questions,
    "answer": decisions.answer,
    "doctor": machine.doctor,
    "migrate": machine.migrate,
}
_GROUPS: Final = {
    "actions": actions.app,
    "runs": runs.app,
    "threads": threads.app,
    "relay": relay.app,
}
for _name, _command in _START.items():
    app.command(_name, rich_help_panel="Start")(_command)
for _name, _command in _OPERATE.items():
    app.command(_name, rich_help_panel="Operate")(_command)
for _name, _group in _GROUPS.items():
    app.add_typer(_group, name=_name, rich_help_panel="Operate")


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
        import psycopg

        if isinstance(err, psycopg.Error):
            return _fail(f"Postgres answered: {err}", "Run `commitline doctor`.")
        traceback.print_exc()
        return 1
    return 0


def _fail(message: str, remedy: str) -> int:
    from .shown import block

    told = block(message, limit=4_000).lstrip()
    print(f"commitline: {told}\n{remedy}", file=sys.stderr)
    return 1


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"commitline {version('commitline')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Take the options before the command."""


if __name__ == "__main__":
    main()

"""What waits for a person: calls to approve or reject, and questions to answer."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from .terminal import AsJson, check_call, user, wait_for

Call = Annotated[str, typer.Argument(metavar="RUN:AT", help="The call, as listed.")]
By = Annotated[str | None, typer.Option(metavar="NAME", help="Who decides; kept on the row.")]

_APPROVE: Final = "Decide: commitline approve RUN:AT, or commitline reject RUN:AT --reason WHY"
_NEEDS: Final = "The run records it itself, which takes a worker of the run's task queue."
_ANSWER: Final = "Answer: commitline answer RUN:AT/N --value JSON, or plain text"


def list_approvals(
    run: Annotated[str | None, typer.Option(metavar="ID", help="Of this run only.")] = None,
    all: Annotated[bool, typer.Option("--all", help="What was decided, too.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    json: AsJson = False,
) -> None:
    """List the calls that wait for a person, the longest waiting first."""
    from ..operating import console, decisions
    from ..operating.connection import with_ledger

    found = wait_for(
        with_ledger(lambda ledger: decisions.find_approvals(ledger, run=run, all=all, limit=limit))
    )
    if json:
        return console.print_data([decisions.approval_data(one) for one in found])
    return console.print_listing(
        decisions.approvals_table(found),
        found,
        nothing="Nothing waits for a person.",
        then=_APPROVE if any(one.state == "waiting" for one in found) else "",
    )


def approve(
    call: Call,
    args: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Arguments instead of the model's: all of them."),
    ] = None,
    by: By = None,
    json: AsJson = False,
) -> None:
    """Approve a call that waits: it is carried out as it was shown, or as you edit it."""
    edited = None if args is None else _arguments(args)
    said = wait_for(_decide(call, approve=True, by=by or user(), reason="", args=edited))
    _print_word(said, json)


def reject(
    call: Call,
    reason: Annotated[str, typer.Option(help="Why; the model reads it.")] = "",
    by: By = None,
    json: AsJson = False,
) -> None:
    """Reject a call that waits: it is not carried out, and the model reads why."""
    said = wait_for(_decide(call, approve=False, by=by or user(), reason=reason, args=None))
    _print_word(said, json)


def list_questions(
    run: Annotated[str | None, typer.Option(metavar="ID", help="Of this run only.")] = None,
    all: Annotated[bool, typer.Option("--all", help="What was answered, too.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    json: AsJson = False,
) -> None:
    """List the questions of calls to a person, the longest waiting first."""
    from ..operating import console, decisions
    from ..operating.connection import with_ledger

    found = wait_for(
        with_ledger(lambda ledger: decisions.find_questions(ledger, run=run, all=all, limit=limit))
    )
    if json:
        return console.print_data([decisions.question_data(one) for one in found])
    return console.print_listing(
        decisions.questions_table(found),
        found,
        nothing="Nothing waits for an answer.",
        then=_ANSWER if any(one.state == "waiting" for one in found) else "",
    )


def answer(
    question: Annotated[
        str, typer.Argument(metavar="RUN:AT/N", help="As listed; without /N the open one.")
    ],
    value: Annotated[str, typer.Option(metavar="JSON", help="The answer, JSON or plain text.")],
    by: By = None,
    json: AsJson = False,
) -> None:
    """Answer a question of a call: the call is made again, with the answer."""
    from ..operating import console, decisions
    from ..operating.command_client import open_client

    check_call(question)

    async def work() -> None:
        async with await open_client() as client:
            with console.waiting(f"{question}: answering", _NEEDS):
                await decisions.answer(client, question, value, by=by or user())

    wait_for(work())
    _print_word({"call": question, "decision": "answered", "by": by or user()}, json)


async def _decide(
    call: str, *, approve: bool, by: str, reason: str, args: dict[str, Any] | None
) -> dict[str, str]:
    from ..operating import console
    from ..operating.command_client import open_client
    from ..operating.decisions import call_named

    check_call(call)
    async with await open_client() as client:
        run, position = await call_named(client, call)
        with console.waiting(f"{call}: deciding", _NEEDS):
            await run.decide(position, approve=approve, by=by, reason=reason, args=args)
    return {"call": call, "decision": "approved" if approve else "rejected", "by": by}


def _arguments(typed: str) -> dict[str, Any]:
    from ..canonical import parse
    from ..errors import UnrepresentableValue

    try:
        edited = parse(typed)
    except UnrepresentableValue as err:
        raise typer.BadParameter(f"--args takes a JSON object: {err.message}") from err
    if not isinstance(edited, dict):
        raise typer.BadParameter("--args takes a JSON object")
    return edited


def _print_word(said: dict[str, str], json: bool) -> None:
    """Print what a person's word came to."""
    from ..operating import console

    if json:
        return console.print_data(said)
    return console.say(f"{said['call']}: {said['decision']}")

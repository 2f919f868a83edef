"""What waits for a person: calls to approve or reject, and questions to answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..canonical import parse
from ..client import AgentClient
from ..errors import AnswerRefused, RunNotFound
from ..handles.thread import RunHandle
from ..identity import Position, RunKey, started_workflow_of, within_run
from ..ledger import ActionLedger, Approval, Question
from .console import age, as_json, line, state_text, text
from .listing import Listing
from .run_names import newest_named, run_key_named


async def find_approvals(
    ledger: ActionLedger, *, run: str | None, all: bool, limit: int
) -> Sequence[Approval]:
    """Return what waits for a person, of one run or of all; with ``all`` also what was decided.

    Raises:
        RunNotFound: The ledger knows no run of this id.
    """
    run_key = await run_key_named(ledger, run)
    return await ledger.approvals.list(run_key, only_waiting=not all, limit=limit)


async def find_questions(
    ledger: ActionLedger, *, run: str | None, all: bool, limit: int
) -> Sequence[Question]:
    """Return what waits for an answer, of one run or of all; with ``all`` every question.

    Raises:
        RunNotFound: The ledger knows no run of this id.
    """
    run_key = await run_key_named(ledger, run)
    return await ledger.questions.list(run_key, only_waiting=not all, limit=limit)


async def answer(client: AgentClient, call: str, value: str, *, by: str) -> None:
    """Answer a question of a call, named ``<run id>:<position>``, or that and ``/number``.

    Without a number it is the question that is open now.

    Raises:
        AnswerRefused: It does not count.
    """
    named, _, number = call.rpartition("/")
    if not number.isdigit():
        named, number = call, ""
    if not value.strip():
        raise AnswerRefused("an answer needs a value")
    run, position = await call_named(client, named)
    if not number:
        return await run.answer(position, as_json(value), by=by)
    asked = await run.questions(only_waiting=False)
    if not any(one.position == position for one in asked):
        return await run.answer(position, as_json(value), by=by)  # says why there is none
    for question in asked:
        if (question.position, str(question.number)) == (position, number):
            return await run.answer(question, as_json(value), by=by)
    raise AnswerRefused(f"{named} has asked no question {number}")


async def call_named(client: AgentClient, call: str) -> tuple[RunHandle, str]:
    """Return the run of a call that is named ``<run id>:<position>``, and its position there.

    A sub-agent's is at ``2.0/0.1``, say, of the run that was started.

    Raises:
        RunNotFound: It is named otherwise, or the ledger has no such run.
    """
    run_id, _, within = call.rpartition(":")
    path, _, position = within.rpartition("/")
    if not run_id:
        raise RunNotFound(f"a call is named as RUN:AT, not {call!r}")
    if not path:
        return client.run(run_id), position
    ledger = await client.ledger()
    above = await newest_named(ledger, run_id)
    below = await ledger.runs.get(RunKey(f"{above.run_key}/{path}"))
    if below is None:
        raise RunNotFound(f"the run {run_id!r} has no sub-agent at {path}")
    return client.run(below.workflow_id), position


def approvals_table(found: Sequence[Approval]) -> Listing:
    """Return a list of what waits for a person, with what it would do."""
    listing = Listing("call", "tool", "arguments", "state", "asked", long=("arguments",))
    for one in found:
        listing.add_row(
            line(call_name(one)),
            line(one.tool, limit=24),
            line(one.approved_args, limit=200),
            state_text(one.state),
            f"{age(one.now - one.requested_at)} ago",
        )
    return listing


def approval_data(one: Approval) -> dict[str, Any]:
    """Return an approval as plain data: arguments as JSON, not as text."""
    return {
        **asdict(one),
        "args": parse(one.args),
        "edited_args": None if one.edited_args is None else parse(one.edited_args),
        "state": one.state,
        "at": one.at,
    }


def questions_table(found: Sequence[Question]) -> Listing:
    """Return a list of what waits for an answer."""
    listing = Listing("question", "tool", "asks", "state", "asked", long=("asks",))
    for one in found:
        asks = "\n".join([*([one.message] if one.message else []), one.payload[:200]])
        listing.add_row(
            line(f"{call_name(one)}/{one.number}"),
            line(one.tool, limit=24),
            text(asks),
            state_text(one.state),
            f"{age(one.now - one.raised_at)} ago",
        )
    return listing


def question_data(one: Question) -> dict[str, Any]:
    """Return a question as plain data: payload and answer as JSON, not as text."""
    return {
        **asdict(one),
        "payload": parse(one.payload),
        "answer": None if one.answer is None else parse(one.answer),
        "state": one.state,
    }


def call_name(one: Approval | Question) -> str:
    """Return the name of a call as commands take it; a sub-agent's by the run above all."""
    at = Position(one.at) if isinstance(one, Approval) else one.position
    return f"{started_workflow_of(one.run_key)}:{within_run(one.run_key, at)}"

"""How the command line shows things: tables that fit 80 columns, and JSON for programs.

What came from a model, a person or a tool is scrubbed and never read as markup: it must not
be able to move the cursor or to colour an operator's screen.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..canonical import parse, scrub
from ..config import DevAddresses
from ..handles.reset import Reset
from ..handles.thread_message import ThreadMessage
from ..identity import started_workflow_of, within_run
from ..ledger import Action, Approval, Effect, GoneRun, Question, Thread, UndoReport, Waiting
from ..ledger.threads import NO_STATE
from ..workflows.progress import Progress
from .doctor import Check

if TYPE_CHECKING:
    from .queries import RelayReport

OUT: Final = Console(highlight=False)
ERR: Final = Console(stderr=True, highlight=False)

_STYLES: Final = {
    "ok": "green",
    "completed": "green",
    "running": "cyan",
    "dispatched": "cyan",
    "unknown": "bold yellow",
    "missing": "yellow",
    "wrong": "red",
    "error": "red",
    "failed": "red",
    "undone": "green",
    "stands": "yellow",
    "partly": "bold yellow",
}
_SMALLEST_TO_LARGEST: Final = (("s", 60), ("min", 60), ("h", 24))


def data(value: Any) -> None:
    """Print JSON on stdout; ASCII, so any text survives any terminal.

    Times are ISO 8601, durations are seconds.
    """
    sys.stdout.write(json.dumps(value, indent=2, default=_plain) + "\n")


def _plain(value: object) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return value.total_seconds() if isinstance(value, timedelta) else str(value)


def text(value: str, *, limit: int = 100_000) -> Text:
    """Return foreign text, made safe."""
    return Text(scrub(value, limit=limit))


def listing(table: RenderableType, found: Sequence[Any], *, nothing: str, then: str = "") -> None:
    """Print a table and what to do next, or that there is nothing."""
    if not found:
        ERR.print(nothing)
        return
    OUT.print(table)
    if then:
        ERR.print(f"\n{then}", style="dim")


def unknown(one: Action) -> None:
    """Say on stderr that nobody knows whether an action happened, and where to look."""
    run, at = workflow_id(one), within_run(one.run_key, one.position)
    ERR.print(
        f"Unknown whether it happened: {scrub(one.tool, limit=64)}. "
        f"See: commitline actions show {run}:{at}",
        soft_wrap=True,
        markup=False,
    )


def runs(found: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return a table of runs, as `operating.newest_runs` gathers them."""
    now = datetime.now(tz=UTC)
    table = _table(("run", {"overflow": "fold"}), "agent", "state", "undone", "started")
    for run in found:
        table.add_row(
            text(run["id"]),
            text(run["agent"] or "-", limit=24),
            _state(run["state"]),
            _state(run["undone"] or "-"),
            f"{_age(now - run['started'])} ago",
        )
    return table


def actions(found: Sequence[Action]) -> RenderableType:
    """Return a table of actions; `action` has everything about one."""
    table = _table(("run", {"overflow": "fold"}), "at", "tool", "state", "age")
    for one in found:
        table.add_row(
            text(workflow_id(one)),
            text(within_run(one.run_key, one.position), limit=40),
            text(one.tool, limit=32),
            _state(one.state if one.undone_by is None else "undone"),
            _age(one.now - one.created_at),
        )
    return table


def threads(found: Sequence[tuple[Thread, int]]) -> RenderableType:
    """Return a table of conversations."""
    now = datetime.now(tz=UTC)
    table = _table(("thread", {"overflow": "fold"}), "agent", "messages", "state", "begun")
    for thread, count in found:
        table.add_row(
            text(thread.thread_id),
            text(thread.agent, limit=24),
            str(count),
            Text("deleted" if thread.deleted_at else f"version {thread.version}"),
            f"{_age(now - thread.created_at)} ago",
        )
    return table


def message(one: ThreadMessage) -> None:
    """Print one message of a conversation."""
    who = {"user": "user", "assistant": "model", "tool": "tools"}[one.role]
    OUT.print(Text(f"{who}  (version {one.version}, {_moment(one.created_at)})", style="dim"))
    if one.text:
        OUT.print(text(one.text), soft_wrap=True)
    for call in one.calls:
        OUT.print(text(f"-> {call.name} {call.arguments}", limit=500), soft_wrap=True)
    for result in one.results:
        line = f"<- {result.position} {result.name}: {result.status}: {result.content}"
        OUT.print(text(line, limit=500), soft_wrap=True)
    OUT.print()


def state(text_of_it: str) -> None:
    """Print what a conversation's tools share (JSON text), if that is anything."""
    if text_of_it != NO_STATE:
        OUT.print(text(f"state  {text_of_it}", limit=2_000), soft_wrap=True)


def approvals(found: Sequence[Approval]) -> RenderableType:
    """Return a table of what waits for a person, with what it would do."""
    table = _table(
        ("call", {"overflow": "fold"}),
        "tool",
        ("arguments", {"overflow": "fold"}),
        "state",
        "asked",
    )
    for one in found:
        table.add_row(
            text(_call(one)),
            text(one.tool, limit=24),
            text(one.approved_args, limit=200),
            _state(one.state),
            f"{_age(one.now - one.asked_at)} ago",
        )
    return table


def approval_data(one: Approval) -> dict[str, Any]:
    """Return an approval as plain data: arguments as JSON, not as text."""
    return {
        **asdict(one),
        "args": parse(one.args),
        "edited_args": None if one.edited_args is None else parse(one.edited_args),
        "state": one.state,
    }


def relay(found: RelayReport) -> None:
    """Print what the relay has to do, and runs that ended without a word."""
    now = datetime.now(tz=UTC)
    told = {
        "missing": "No relay: a worker makes its schedule, unless COMMITLINE_RELAY_SECONDS is 0.",
        "paused": f"The schedule {found.schedule} is paused: nothing is looked for.",
        "on": f"Looks by the schedule {found.schedule}"
        + (f"; last {_age(now - found.last)} ago" if found.last else ""),
    }[found.state]
    ERR.print(told, style="dim" if found.state == "on" else "yellow", markup=False)
    if found.waiting:
        OUT.print(_queue(found.waiting))
        _say_what_to_do(found.waiting)
    if found.gone:
        OUT.print(_gone(found.gone, now))
        ERR.print("Take back what they did: commitline undo RUN", style="dim")
    if not found.waiting and not found.gone:
        ERR.print("The relay has nothing to do.")
        ERR.print("What waits for a person: commitline actions list --parked", style="dim")


def relay_data(found: RelayReport) -> dict[str, Any]:
    """Return what `commitline relay` prints, as plain data."""
    return {
        **asdict(found),
        "waiting": [
            {
                **asdict(one.queued),
                "run_key": one.run_key,
                "position": one.position,
                "parked_reason": one.parked_reason,
                "overdue": one.overdue,
            }
            for one in found.waiting
        ],
    }


def _say_what_to_do(waiting: Sequence[Waiting]) -> None:
    if any(one.overdue for one in waiting):
        ERR.print("What nobody takes: no worker that runs serves its tool.", style="yellow")
    if any(one.queued.due_at is None for one in waiting):
        ERR.print(
            "What waits for a person: commitline actions show KEY, then reopen or settle",
            style="dim",
        )


_WHY: Final = {
    "send": "to be sent",
    "ask": "its run is gone",
    "undo": "happened after the undo",
}


def _queue(waiting: Sequence[Waiting]) -> RenderableType:
    table = _table(("action", {"overflow": "fold"}), "tool", "why", "due")
    for one in waiting:
        due = one.queued.due_at
        left = None if due is None else due - one.now
        when = "waits for a person" if left is None else "now"
        if left is not None and left > timedelta():
            when = f"in {_age(left)}"
        if one.overdue:
            when = "now; nobody takes it"
        table.add_row(
            text(one.queued.key), text(one.queued.tool, limit=32), _WHY[one.queued.why], when
        )
    return table


def _gone(runs: Sequence[GoneRun], now: datetime) -> RenderableType:
    table = _table(("run", {"overflow": "fold"}), "ended", "stands", "unknown", "age")
    for one in runs:
        table.add_row(
            text(one.workflow_id),
            one.gone_as.replace("_", " "),
            str(one.stands),
            str(one.unknown),
            _age(now - one.ended_at),
        )
    return table


def questions(found: Sequence[Question]) -> RenderableType:
    """Return a table of what waits for an answer."""
    table = _table(
        ("question", {"overflow": "fold"}),
        "tool",
        ("asks", {"overflow": "fold"}),
        "state",
        "asked",
    )
    for one in found:
        asks = Group(*([text(one.message)] if one.message else []), text(one.payload, limit=200))
        table.add_row(
            text(f"{_call(one)}/{one.number}"),
            text(one.tool, limit=24),
            asks,
            _state(one.state),
            f"{_age(one.now - one.asked_at)} ago",
        )
    return table


def question_data(one: Question) -> dict[str, Any]:
    """Return a question as plain data: payload and answer as JSON, not as text."""
    return {
        **asdict(one),
        "payload": parse(one.payload),
        "answer": None if one.answer is None else parse(one.answer),
        "state": one.state,
    }


def undo(run: str, report: UndoReport) -> None:
    """Print what of a run is undone, and what stands; and in the end what to do about it."""
    if report.actions:
        table = _table("at", "action", "fate", ("why", {"overflow": "fold"}))
        for one in report.actions:
            table.add_row(
                text(one.at, limit=40),
                text(one.tool, limit=24),
                _state(one.fate),
                text(one.why, limit=300),
            )
        OUT.print(table)
        OUT.print()
    undone = len(report.actions) - len(report.standing)
    told = {
        "nothing to undo": "Nothing of it is to be undone.",
        "compensated": f"What can be undone of it is undone: {undone}.",
        "partly compensated": f"Partly undone: {undone} of {len(report.actions)}.",
    }[report.state]
    OUT.print(Text(f"{scrub(run, limit=200)}: {told}"), soft_wrap=True)
    if report.state == "partly compensated":
        ERR.print(
            f"Settle what is unknown: commitline actions settle {scrub(run, limit=200)}:AT\n"
            f"Try again what stands:  commitline undo {scrub(run, limit=200)}",
            style="dim",
            markup=False,
            soft_wrap=True,
        )


def earlier(runs: Sequence[str]) -> None:
    """Name the runs that had an id before the one that was meant by it."""
    if runs:
        named = "\n".join(f"  {scrub(run, limit=300)}" for run in runs[:5])
        ERR.print(
            f"That is its newest run. Earlier ones go by their keys:\n{named}",
            style="dim",
            markup=False,
            soft_wrap=True,
        )


def undo_data(report: UndoReport) -> dict[str, Any]:
    """Return the same as plain data: arguments as JSON, not as text."""
    actions = [{**asdict(one), "args": parse(one.args)} for one in report.actions]
    return {"state": report.state, "actions": actions}


def reset(done: Reset, *, fork: bool) -> None:
    """Print what a reset, or a fork, makes of a run."""
    if fork:
        way = f"{scrub(done.id)}: goes another way from turn {done.step}, epoch {done.epoch}"
        OUT.print(way, markup=False)
        OUT.print(
            "The model is asked anew. What the run did from there on, and is told if it stands:"
        )
    else:
        turns = ", ".join(f"turn {step}" for step in done.read_back) or "none is on record"
        OUT.print(f"{scrub(done.id)}: goes on from turn {done.step}", markup=False)
        OUT.print(f"Read back, without asking the model: {turns}")
        OUT.print("On record from there on, of every way that the run has gone:")
    if done.actions:
        OUT.print(actions(done.actions))
    else:
        OUT.print("no action")
    OUT.print(f"What is said from now on: commitline threads show {done.id}", markup=False)


def reset_data(done: Reset) -> dict[str, Any]:
    """Return the same as plain data."""
    return {**vars(done), "actions": [action_data(one) for one in done.actions]}


def action(one: Action) -> RenderableType:
    """Return everything about one action."""
    facts: dict[str, str | None] = {
        "action": one.key,
        "tool": one.tool,
        "effect": one.effect,
        "state": one.state,
        "why unknown": one.parked_reason,
        "duplicate of": one.duplicate_of,
        "undoes": one.undoes,
        "undone by": one.undone_by,
        # A tool that promises no more than once does not hand a key on.
        "idempotency key": None if one.effect == Effect.AT_MOST_ONCE else one.idempotency_key,
        "settle it with": (
            f"commitline actions settle {one.key} --happened RESULT | --did-not-happen"
            if one.parked and one.duplicate_of is None
            else None
        ),
        "key remembered for": str(one.key_ttl) if one.key_ttl else None,
        "dispatches": str(one.tries),
        "failed tries": str(one.failures) if one.failures else None,
        "intent": _moment(one.created_at),
        "dispatched": _moment(one.dispatched_at),
        "leased until": _moment(one.lease_until) if one.leased and not one.done_at else None,
        "done": _moment(one.done_at),
        "parked": _moment(one.parked_at),
        "settled by": one.decided_by,
        "in the world": _effect_of_error(one),
    }
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        if value is not None:
            grid.add_row(name, _state(value) if name == "state" else text(value))
    grid.add_row("arguments", _pretty(one.args))
    if one.result is not None:
        grid.add_row("result", _pretty(one.result))
    return grid


def action_data(one: Action) -> dict[str, Any]:
    """Return an action as plain data: arguments and result as JSON, not as text."""
    return {
        **asdict(one),
        "args": parse(one.args),
        "result": None if one.result is None else parse(one.result),
        "state": one.state,
    }


def checks(found: Iterable[Check]) -> RenderableType:
    """Return what `commitline doctor` found."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for check in found:
        lines = [text(check.found)]
        if check.remedy:
            lines.append(Text("-> ").append_text(text(check.remedy)))
        grid.add_row(_state(check.state), check.name, Group(*lines))
    return grid


def addresses(dev: DevAddresses) -> None:
    """Print what to know of `commitline dev`, and what to type next; addresses stay whole."""
    lines = [
        "The servers are up.\n",
        f"  Temporal  {dev.temporal_address}",
        f"  UI        {dev.ui_url}",
        f"  Postgres  {dev.database_url}",
        "\nNext, each in a terminal of its own, in this folder or below:",
        "\n  A provider that counts, for the example shop:",
        "  [bold]python -m commitline.testing.provider --port 8900[/]",
        "\n  A worker with the shop's agent; kill it in the middle if you like:",
        "  [bold]commitline worker commitline.examples.shop.app:app[/]",
        "\n  A run, and what it did:",
        "  [bold]commitline run support --id support-4821 \\\\[/]",
        '  [bold]  "Please charge order 4821 and mail me the receipt."[/]',
        "  [bold]commitline actions list[/]",
        "\nCtrl-C stops the servers; the data stays in .commitline.",
    ]
    OUT.print("\n".join(lines), soft_wrap=True)


def progress(id: str, now: Progress | None) -> RenderableType:
    """Return where a run is, in a few lines."""
    if now is None:
        return Text(f"{id}: no worker answers. Start one: commitline worker MODULE:APP")
    lines = Text(f"{id}: {scrub(now.state, limit=60)}")
    for call in now.calls[-8:]:
        lines.append(f"\n    {call.position}  {scrub(call.summary, limit=56)}  ")
        lines.append(call.state, style=_STYLES.get(call.state, ""))
    return lines


def workflow_id(one: Action) -> str:
    """Return the id under which the run was started, a sub-agent's by the one above all."""
    return started_workflow_of(one.run_key)


def _call(one: Approval | Question) -> str:
    """Return the name of a call as commands take it; a sub-agent's by the run above all."""
    return f"{started_workflow_of(one.run_key)}:{within_run(one.run_key, one.position)}"


def _table(*columns: str | tuple[str, Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), show_edge=False, pad_edge=False)
    for column in columns:
        if isinstance(column, str):
            table.add_column(column, no_wrap=True)
        else:
            table.add_column(column[0], **column[1])
    return table


def _state(state: str) -> Text:
    return Text(state, style=_STYLES.get(state, ""))


def _pretty(json_text: str) -> Text:
    return text(json.dumps(parse(json_text), indent=2), limit=4_000)


def _effect_of_error(one: Action) -> str | None:
    if one.state != "error":
        return None
    if one.effect_possible:
        return "it happened"
    if one.duplicate_of is not None:
        return f"nothing by this call; {one.duplicate_of} holds the key"
    return "nothing happened" + ("; its key is free again" if one.domain_key else "")


def _moment(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(sep=" ", timespec="milliseconds")


def _age(age: timedelta) -> str:
    amount = max(age.total_seconds(), 0.0)
    for unit, size in _SMALLEST_TO_LARGEST:
        if amount < size:
            return f"{amount:.0f} {unit}"
        amount /= size
    return f"{amount:.0f} d"

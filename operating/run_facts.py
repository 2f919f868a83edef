"""One run, for an operator: its state, why it failed, what of it waits, and what to type next.

Temporal says where a run is and how it ended, the ledger what it did. Where Temporal has forgotten
the run, the ledger alone answers; where the ledger has nothing of it, that is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from ..client import AgentClient
from ..errors import CommitlineError, RunGone
from ..handles.run_workflow import LIVE, RunState, run_key_of, state_of
from ..handles.thread import RunHandle
from ..identity import RunKey, started_workflow_of, within_run
from ..ledger import Action, ActionLedger, Approval, Question, Run
from ..shown import one_line
from .console import ERR, moment, print_facts
from .decisions import call_name

LOST: Final = "it has nothing of this run, which has begun: it was restored to before that"

FORGOTTEN: Final = "Temporal has no workflow of it: its retention, a deleted history, a new cluster"


async def facts(client: AgentClient, handle: RunHandle) -> dict[str, Any]:
    """Return everything about one run; why it failed, where it did.

    Raises:
        RunNotFound: Neither Temporal nor the ledger has it.
    """
    ledger = await client.ledger()
    state: RunState = "gone"
    seen: dict[str, Any] = {}
    try:
        described = await handle.describe()
    except RunGone:
        run_key = (await handle.status()).run_key
    else:
        run_key, state = await run_key_of(described), state_of(described)
        seen = {"started": described.start_time, "ended": described.close_time}
        seen["run_id"] = described.run_id
    run = await ledger.runs.get(run_key)
    return {
        "id": handle.id,
        "run_key": run_key,
        "agent": None if run is None else run.agent,
        "state": state,
        "in_ledger": await _in_ledger(handle, run),
        "stop_reason": None if run is None else run.stop_reason,
        "thread": None if run is None else run.thread_id,
        "why": await _why(handle, state),
        **await _of_ledger(ledger, run_key, run, state),
        "started": None if run is None else run.created_at,
        **seen,
    }


async def _in_ledger(handle: RunHandle, run: Run | None) -> str:
    if run is None:
        return LOST if await handle.is_unrecorded() else "not begun"
    return run.workflow_status or run.state


async def _of_ledger(
    ledger: ActionLedger, run_key: RunKey, run: Run | None, state: RunState
) -> dict[str, Any]:
    """Return what the ledger says a run did, what of it waits, and what to type next."""
    actions = await ledger.sub_runs.actions(run_key)
    unknown = [one for one in actions if one.state == "unknown"]
    approvals = await ledger.approvals.list(run_key)
    questions = await ledger.questions.list(run_key)
    return {
        "undone": await undone(ledger, run),
        "actions": len(actions),
        "unknown": [one.key for one in unknown],
        "approvals": [call_name(one) for one in approvals],
        "questions": [call_name(one) for one in questions],
        "waits_since": _oldest(unknown, approvals, questions),
        "next": _commands(run, state, actions, [*approvals, *questions]),
    }


async def undone(ledger: ActionLedger, run: Run | None) -> str | None:
    """Say in a word whether what a run did was undone; None where no undo began."""
    if run is None or run.undo_began_at is None:
        return None
    if run.state == "undoing":
        return "under way"
    report = await ledger.undo.report(run.run_key)
    return {"nothing to undo": None, "compensated": "yes", "partly compensated": "partly"}[
        report.state
    ]


async def _why(handle: RunHandle, state: RunState) -> str | None:
    """Say why a run failed: what happened, the error's code, and what to do."""
    if state in (*LIVE, "completed"):
        return None
    if state == "gone":
        return FORGOTTEN
    try:
        await handle.result()
    except CommitlineError as err:
        return str(err)
    return None  # of a run of a conversation: its request had been answered before


def _oldest(
    unknown: Sequence[Action], approvals: Sequence[Approval], questions: Sequence[Question]
) -> datetime | None:
    """Return since when something has waited for a person."""
    times = [one.parked_at for one in unknown if one.parked_at is not None]
    times += [one.requested_at for one in approvals]
    times += [one.raised_at for one in questions]
    return min(times, default=None)


def _commands(
    run: Run | None,
    state: RunState,
    actions: Sequence[Action],
    waits: Sequence[Approval | Question],
) -> list[str]:
    """Return what to type next, in this order."""
    if run is None:
        return []  # nothing of it is on record
    if state == "gone" and run.state != "ended":
        return [f"commitline stop {run.workflow_id}", f"commitline stop {run.workflow_id} --undo"]
    found = [
        f"commitline actions settle {_name(one)} --happened RESULT | --did-not-happen"
        for one in actions
        if one.parked and one.duplicate_of is None
    ]
    if state != "gone":
        found += [
            f"commitline approve {call_name(one)}"
            if isinstance(one, Approval)
            else f"commitline answer {call_name(one)}/{one.number} --value JSON"
            for one in waits
        ]
    stands = [one for one in actions if one.compensator and one.state == "ok"]
    if run.state == "ended" and state != "completed" and any(not one.undone_by for one in stands):
        found.append(f"commitline undo {run.workflow_id}")
    return found


def _name(one: Action) -> str:
    return f"{started_workflow_of(one.run_key)}:{within_run(one.run_key, one.position)}"


def print_facts_of(run: Mapping[str, Any]) -> None:
    """Print everything about one run, as `facts` gathers it; to stderr what to type next."""
    shown: dict[str, str | None] = {}
    for name, value in run.items():
        if isinstance(value, datetime):
            shown[name] = moment(value)
        elif isinstance(value, list):
            shown[name] = ", ".join(value) or None
        else:
            shown[name] = None if value is None else str(value)
    shown.pop("next")
    print_facts(shown)
    for command in run["next"]:
        ERR.print(one_line(command), style="dim", markup=False, soft_wrap=True)

"""Actions, for an operator: find them, show them, settle an unknown one, have one tried again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from ..canonical import Json, dumps, parse
from ..errors import AmbiguousAction, RunNotFound
from ..identity import (
    OUTBOX,
    ActionKey,
    RunKey,
    action_key_within,
    started_run_of,
    started_workflow_of,
    within_run,
)
from ..ledger import Action, ActionLedger, Effect, Outcome, Run
from ..ledger.action_records import ActionState
from ..shown import one_line
from .console import ERR, age, as_json, line, moment, print_facts, print_json, state_text
from .listing import Listing
from .run_names import runs_named

_NAMED: Final = 5
"""How many actions an error names of those that may be meant."""


async def find_actions(
    ledger: ActionLedger,
    *,
    run: str | None,
    parked: bool,
    limit: int,
    agent: str | None = None,
    state: ActionState | None = None,
) -> Sequence[Action]:
    """Return actions of one run; else the parked, longest waiting first; else the newest.

    Those of a run's sub-agents are among its own, and by its id those of all runs that had it.
    By agent or state, always the newest first.

    Raises:
        RunNotFound: The ledger knows no run of this id.
    """
    runs = None if run is None else await runs_named(ledger, run)
    if agent is not None or state is not None:
        keys = None if runs is None else [key for one in runs for key in await _tree(ledger, one)]
        state = state or ("unknown" if parked else None)
        return await ledger.find(run_keys=keys, agent=agent, state=state, limit=limit)
    if runs is None:
        return await ledger.list(only_parked=parked, newest_first=not parked, limit=limit)
    found: list[Action] = []
    for one in runs:
        left = limit - len(found)
        if left == 0:
            break
        found += await ledger.sub_runs.actions(one.run_key, only_parked=parked, limit=left)
    return found


async def _tree(ledger: ActionLedger, run: Run) -> list[RunKey]:
    below = await ledger.sub_runs.below(run.run_key)
    return [run.run_key, *(one.run_key for one in below)]


async def find_action(ledger: ActionLedger, key: str) -> Action:
    """Return the action of a whole key, or of ``<run id>:<position>``.

    A sub-agent's is at ``2.0/0.1``, say, of the run that was started.

    Raises:
        RunNotFound: There is none; the message says what was looked for.
    """
    found = await find_record(ledger, key)
    if not isinstance(found, Action):
        raise RunNotFound(f"{key!r} is a read: the ledger has its result, and no action")
    return found


async def find_record(ledger: ActionLedger, key: str) -> Action | Json:
    """Return an action; or of a read, which has no row, the large result that was kept (JSON).

    Raises:
        RunNotFound: There is neither; the message says what was looked for.
        AmbiguousAction: Several runs have had that id, and more than one of them such a call.
    """
    found = await _record(ledger, ActionKey(key))
    if found is not None:
        return found
    run_id, _, at = key.rpartition(":")
    meant: dict[ActionKey, Action | Json] = {}
    for run in await runs_named(ledger, run_id or key):
        one = action_key_within(run.run_key, at)
        record = await _record(ledger, one)
        if record is not None:
            meant[one] = record
        if len(meant) > _NAMED:
            break
    if not meant:
        raise RunNotFound(f"the ledger has no action {key!r}")
    if len(meant) > 1:
        # A person may settle what this returns, for good: it must not be the wrong one.
        named = [*meant][:_NAMED]
        more = ", or another" if len(meant) > _NAMED else ""
        raise AmbiguousAction(f"{key!r} may be {', '.join(named)}{more}")
    return next(iter(meant.values()))


async def _record(ledger: ActionLedger, key: ActionKey) -> Action | Json | None:
    found = await ledger.get(key)
    if found is not None:
        return found
    value = await ledger.get_value(key)
    return None if value is None else parse(value)


async def settle(
    ledger: ActionLedger, key: str, *, happened: str | None, by: str
) -> Sequence[Action]:
    """Record an operator's word about an unknown action; see `ActionLedger.settle`.

    Args:
        ledger: The ledger.
        key: As `find_action` takes it.
        happened: What it returned, as JSON or plain text; None says that it did not happen.
        by: Who says so.

    Raises:
        SettlementRefused: It may not be settled, or not now.
    """
    found = await find_action(ledger, key)
    if happened is None:
        outcome = Outcome.error(
            kind="DidNotHappen",
            message=f"{by} looked at the downstream system: it did not happen",
            effect_possible=False,
        )
    else:
        outcome = Outcome.ok(dumps(as_json(happened)))
    return await ledger.settle(found.key, outcome, by=by)


async def reopen(ledger: ActionLedger, key: str) -> Action:
    """Have an action tried again that waits for a person; see `RelayLedger.reopen`.

    Raises:
        ReopenRefused: It cannot be; the message says why.
    """
    found = await find_action(ledger, key)
    return await ledger.relay.reopen(found.key)


def table(found: Sequence[Action]) -> Listing:
    """Return a list of actions; `print_details` has everything about one."""
    listing = Listing("run", "at", "tool", "state", "age")
    named = _names([started_run_of(one.run_key) for one in found])
    for one in found:
        listing.add_row(
            line(named[started_run_of(one.run_key)]),
            line(within_run(one.run_key, one.position), limit=40),
            line(one.tool, limit=32),
            state_text(_state_of(one)),
            age(one.now - one.created_at),
        )
    return listing


def _names(runs: Sequence[RunKey]) -> Mapping[RunKey, str]:
    """Return what to call each run: by the id of its workflow, if no other one listed has it."""
    ids = {run: started_workflow_of(run) for run in runs}
    times = Counter(ids.values())
    return {run: own if times[own] == 1 and own != OUTBOX else run for run, own in ids.items()}


def _state_of(one: Action) -> str:
    """Return the state for people: whether it was undone, or has the outcome of another action."""
    if one.undone_by is not None:
        return "undone"
    return "receipt" if one.state == "ok" and one.duplicate_of is not None else one.state


def print_details(one: Action) -> None:
    """Print everything about one action."""
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
        "intent": moment(one.created_at),
        "dispatched": moment(one.dispatched_at),
        "leased until": moment(one.lease_until) if one.leased and not one.done_at else None,
        "done": moment(one.done_at),
        "parked": moment(one.parked_at),
        "settled by": one.decided_by,
        "in the world": _effect_of_error(one),
    }
    print_facts(facts)
    print_json("arguments", one.args)
    if one.result is not None:
        print_json("result", one.result)


def _effect_of_error(one: Action) -> str | None:
    if one.state != "error":
        return None
    if one.effect_possible:
        return "it happened"
    if one.duplicate_of is not None:
        return f"nothing by this call; {one.duplicate_of} holds the key"
    return "nothing happened" + ("; its key is free again" if one.domain_key else "")


def data(one: Action) -> dict[str, Any]:
    """Return an action as plain data: arguments and result as JSON, not as text."""
    return {
        **asdict(one),
        "args": parse(one.args),
        "result": None if one.result is None else parse(one.result),
        "state": one.state,
    }


def print_unknown(one: Action) -> None:
    """Print on stderr that an action is unknown, and the command that shows it."""
    run, at = started_workflow_of(one.run_key), within_run(one.run_key, one.position)
    ERR.print(
        f"Unknown whether it happened: {one_line(one.tool, limit=64)}. "
        f"See: commitline actions show {run}:{at}",
        soft_wrap=True,
        markup=False,
    )

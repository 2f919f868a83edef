"""The activities of a run's undo: begin, plan the next steps, say what stands.

Each is safe to repeat: what was begun is begun, and a plan is made of what the ledger has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Final

import structlog
from temporalio import activity
from temporalio.common import RawValue

from ...canonical import digest, dumps, parse, scrub
from ...errors import ActionError, LedgerError, UnrepresentableValue
from ...identity import ActionKey
from ...ledger import Action, ActionFate, DueUndo, UndoLedger, UndoReport
from ...ledger.records import Effect, Purpose
from ..app.app import App
from ..app.tool import Tool
from ..contract.action_header import ActionHeader
from ..contract.activity_failure import as_failure
from ..contract.deadlines import DEFAULTS, CallLimits, resolve
from ..contract.undo import (
    BEGIN_UNDO,
    FINISH_UNDO,
    PLAN_UNDO,
    BeginUndo,
    FinishUndo,
    PlanUndo,
    UndoOutcome,
    UndoPlan,
    UndoStep,
)
from ..contract.wire import pack, to_text, unpack
from .served import let_others_try

log = structlog.get_logger("commitline")

_STEPS: Final = 20
"""How many steps are planned at a time: their arguments travel."""
_MAX_CALL: Final = 1_000_000
"""Characters of their arguments, all together: they escape to twice as many on their way through
Temporal, which refuses a payload over 2 MiB again and again."""
_TOLD: Final = 200
"""How many actions a report tells of where it travels; the ledger has them all."""
_TOLD_CHARACTERS: Final = 300
"""How much of their arguments, and of the reasons: a character escapes to up to twelve."""
_MAX_REPORT: Final = 1_500_000
"""Characters of a report, as it travels."""


class UndoActivities:
    """The activities of a run that takes back what it did."""

    def __init__(self, app: App, undo: UndoLedger, *, heartbeat_seconds: float) -> None:
        self._steps = UndoSteps(app)
        self._undo = undo
        self._heartbeat_seconds = heartbeat_seconds

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers."""
        return (self.begin, self.plan, self.finish)

    @activity.defn(name=BEGIN_UNDO)
    async def begin(self, raw: RawValue) -> RawValue:
        """Commit that the run is being undone, if it is to be; say whether. Safe to repeat."""
        request = unpack(BeginUndo, raw)
        try:
            began = await self._undo.begin(
                request.run_key,
                why=request.why,
                failed=request.failed,
                attempt_at=activity.info().started_time,
                again=request.again,
                unless=request.unless,
            )
        except LedgerError as err:
            raise as_failure(err) from err
        if began:
            log.info("undo.begun", run_key=request.run_key, why=request.why)
        return pack(began)

    @activity.defn(name=PLAN_UNDO)
    async def plan(self, raw: RawValue) -> RawValue:
        """Return the steps that are due now. Safe to repeat; reopens what is to be asked about.

        Where this worker lacks a tool of theirs, others are given the time to do it instead.
        """
        request = unpack(PlanUndo, raw)
        passed, unserved = frozenset(request.passed), frozenset(request.unserved)
        try:
            found = await self._undo.plan(request.run_key, passed=passed)
            steps = _that_travel([await self._step(one) for one in found[:_STEPS]])
        except LedgerError as err:
            raise as_failure(err) from err
        served = list(takewhile(lambda one: not one.lacking or one.tool in unserved, steps))
        if steps and not served:
            let_others_try(steps[0].tool)
            served = steps[:1]
        return pack(UndoPlan(served, self._heartbeat_seconds))

    @activity.defn(name=FINISH_UNDO)
    async def finish(self, raw: RawValue) -> RawValue:
        """Commit that undoing is through; say what stands. Safe to repeat."""
        request = unpack(FinishUndo, raw)
        try:
            finished = await self._undo.finish(
                request.run_key,
                attempt_at=activity.info().started_time,
                passed=frozenset(request.passed),
            )
            told = await self._undo.report(request.run_key)
        except LedgerError as err:
            raise as_failure(err) from err
        if not finished:
            return pack(UndoOutcome(finished=False))
        log.info("undo.finished", run_key=request.run_key, state=told.state)
        return pack(UndoOutcome(finished=True, report=_with_reasons(told, request.reasons)))

    async def _step(self, due: DueUndo) -> UndoStep:
        steps = self._steps
        step = steps.settling(due) if due.at is None else steps.undo_of(due)
        if due.parked and not step.problem and not await self._undo.reopen(due.reopens):
            step = replace(step, header=None, problem="an attempt may be at work on it")
        return replace(step, passes=due.passes)


class UndoSteps:
    """Makes calls of what is due: with which arguments, under which deadlines."""

    def __init__(self, app: App) -> None:
        self._tools = {made.name: made for made in app.tools}

    def settling(self, due: DueUndo) -> UndoStep:
        """Find out what became of an action, without sending it where that can be."""
        found, made = due.action, self._tools.get(due.action.tool)
        if made is None:
            return _lacking(found, found.tool, "could say what became of it")
        asks = (
            made.undo_unknown == "park"
            or made.lookup is not None
            or found.effect is Effect.LOOKUP
            or made.state is not None  # of that moment's state nobody has a copy
        )
        if due.parked and asks and made.lookup is None:
            return UndoStep(found.key, found.tool, problem=f"it is parked: {found.parked_reason}")
        limits = own_limits(made)
        header = replace(own_header(found, limits, "settle"), lookup_only=asks)
        summary = scrub(f"Find out what became of {found.tool} at {found.position}", limit=150)
        return UndoStep(found.key, found.tool, found.args, limits, summary, header)

    def undo_of(self, due: DueUndo) -> UndoStep:
        """Undo an action."""
        found, begun, at = due.action, due.begun, due.at
        assert at is not None, "it is known what became of it"
        name = found.compensator or ""
        made = self._tools.get(name)
        if made is None:
            return _lacking(found, name, "undoes it")
        if begun is None:
            try:
                given = made.undo_arguments(found.args, found.recorded)
                arguments, requested = dumps(given), digest(given)
            except UnrepresentableValue as err:  # a result is one level deeper among arguments
                problem = f"{name} cannot be given what {found.tool} was: {err.message}"
                return UndoStep(found.key, name, problem=scrub(problem, limit=300))
        else:
            arguments, requested = begun.args, begun.requested_digest
        # Of what may have been sent the row counts, whatever newer code makes of its arguments.
        if (begun is None or begun.dispatched_at is None) and (problem := _unfit(made, arguments)):
            return UndoStep(found.key, name, problem=problem)
        limits = own_limits(made)
        header = replace(
            own_header(found, limits, "undo"),
            position=at,
            requested_digest=requested,
            undoes=found.key,
        )
        summary = scrub(f"Undo {found.tool} at {found.position}: {name}", limit=150)
        return UndoStep(found.key, name, arguments, limits, summary, header)


def _lacking(found: Action, tool: str, what: str) -> UndoStep:
    problem = f"no worker of this task queue serves {tool!r}, which {what}"
    return UndoStep(found.key, tool, problem=problem, lacking=True)


def _that_travel(steps: Sequence[UndoStep]) -> list[UndoStep]:
    """Return the first of these steps, as many as travel together."""
    fitting: list[UndoStep] = []
    room = _MAX_CALL
    for step in steps:
        size = len(step.arguments)
        if size > _MAX_CALL:
            problem = f"its arguments have {size} characters, too many to travel"
            fitting.append(UndoStep(step.key, step.tool, problem=problem, passes=step.passes))
        elif size > room:
            break
        else:
            room -= size
            fitting.append(step)
    return fitting


def _unfit(made: Tool, arguments: str) -> str:
    """Say why an undo with these arguments cannot be called; nothing, if it can."""
    try:
        made.domain_key(made.effective(parse(arguments)))
    except ActionError as err:
        return scrub(err.message, limit=300)
    return ""


def own_header(found: Action, limits: CallLimits, purpose: Purpose) -> ActionHeader:
    """Return where a call about an action comes from that no agent asked for."""
    return ActionHeader(
        found.run_key,
        found.position,
        found.requested_digest,
        again=True,
        attempt_seconds=limits.attempt_seconds,
        node_seconds=limits.node_seconds,
        thread_id=found.thread_id,
        purpose=purpose,
    )


def own_limits(made: Tool) -> CallLimits:
    """Return the deadlines of a call that no agent asked for: the tool's own.

    Never none: an unwinding cannot be stopped, so it has to end by itself.
    """
    return CallLimits(
        resolve("tool_timeout", made.tool_timeout) or DEFAULTS["tool_timeout"],
        resolve("node_timeout", made.node_timeout) or DEFAULTS["node_timeout"],
    )


def _with_reasons(told: UndoReport, reasons: Mapping[ActionKey, str]) -> UndoReport:
    """Say of what was passed by why it was; shortened, so that it travels."""
    kept: set[ActionKey] = set()
    room = _MAX_REPORT
    short = [_shortened(fate, reasons) for fate in told.actions]
    for fate in sorted(short, key=lambda fate: fate.fate == "undone")[:_TOLD]:
        room -= len(to_text(fate))
        if room < 0:
            break
        kept.add(fate.key)
    actions = [fate for fate in short if fate.key in kept]
    return replace(told, actions=actions, left_out=len(short) - len(actions))


def _shortened(fate: ActionFate, reasons: Mapping[ActionKey, str]) -> ActionFate:
    why = reasons.get(fate.key, fate.why) if fate.fate == "stands" else fate.why
    args, why = (scrub(text, limit=_TOLD_CHARACTERS) for text in (fate.args, why))
    return replace(fate, args=args, why=why)

"""`PlanRun`: the steps of a plan, as the application gave them, as a Temporal workflow.

    open the run, which checks the plan against the tools that are served
    for each stage: call its steps side by side, until all of them are settled
    close the run

Its calls are those of agents: approved, guarded, recorded, replayed from the ledger. When a step
fails for good, what the plan did is undone, the latest first. The plan has a pivot: the first step
that took effect, or may have, and that nothing undoes (see `plan_check`). After it, nothing is
undone by itself, because half of the plan would stand. The plan can only go forward, and a person
decides what happens if it cannot; they can still have it undone.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import FailureError

from ..activities.contract.encoding import pack, to_text
from ..activities.contract.plans import (
    OPEN_PLAN,
    OpenPlan,
    PlanInput,
    PlannedStep,
    PlanResult,
    PlanSpec,
    StepResult,
)
from ..activities.contract.references import StoredInput, part_of, put_in
from ..activities.contract.reply import Reply
from ..activities.contract.runs import PLAN_RUN
from ..activities.contract.search_attributes import Listing
from ..activities.contract.sizes import MAX_STEP, result_share
from ..activities.contract.spec import ToolSpec
from ..canonical import dumps, parse, scrub
from ..errors import PlanFailed, UnrepresentableValue
from ..identity import ActionKey, Position, position
from ..ledger.action_records import Effect
from ..shown import markdown_line
from .action_headers import Surroundings, surroundings, this_run
from .activity_calls import failure, raise_if_cancelled, run_ledger_activity, side_by_side
from .base_run import BaseRun, handlers_finished, read_input
from .list_state import list_state, show
from .progress import Progress
from .run_end import is_stop, is_undoing
from .tool_calls import ToolCalls

_MAX_ARGUMENTS: Final = 1_000_000
"""Characters of a step's arguments. Temporal wedges a workflow task over 2 MiB."""
_UNTIL_ITS_TIME_IS_UP: Final = 1_000_000
"""Tries of a step that can only go forward; only its `node_timeout` bounds them."""


@workflow.defn(name=PLAN_RUN, sandboxed=False)
class PlanRun(BaseRun):
    """One run of one plan; see the module."""

    def __init__(self) -> None:
        super().__init__()
        self._results: dict[str, StepResult] = {}
        self._tools: dict[str, ToolSpec] = {}
        self._final: list[str] = []
        """The steps that took effect, or may have, and that nothing undoes."""

    @workflow.run
    async def run(self, raw: RawValue) -> RawValue:
        """Run a plan; input `PlanInput`, result `PlanResult`, both as JSON."""
        given = read_input(PlanInput, raw)
        names = [one.name for stage in given.stages for one in stage]
        self._progress = Progress(agent=given.name, prompt=", ".join(names))
        list_state.set(self._list)
        self._show("starting")
        try:
            await self._run(given)
        except (Exception, asyncio.CancelledError) as err:
            error = await self._error_of(err)
            self._show_end(err)
            await handlers_finished()
            if error is err:
                raise
            raise error from err
        await handlers_finished()
        self._show("done")
        self._show_end()
        return pack(self._result(names))

    async def _run(self, given: PlanInput) -> None:
        """Open the run, take its steps, and close it, however that ends."""
        try:
            spec = await self._open(given)
        except (FailureError, asyncio.CancelledError) as err:
            if is_stop(err) or is_undoing(err):  # else its tools would have to be known
                await self._end_unopened(err)
            raise
        self._tools = {found.definition.name: found for found in spec.tools}
        ends_at = None if spec.deadline_seconds is None else workflow.time() + spec.deadline_seconds
        try:
            await self._within_deadline(ends_at, self._take_stages(given, spec))
        except (Exception, asyncio.CancelledError) as err:
            await self._end(
                err,
                may_undo=any(found.compensated for found in spec.tools),
                unless=[name for name, found in self._tools.items() if _is_final(found)],
            )
        await self._close()

    async def _open(self, given: PlanInput) -> PlanSpec:
        request = OpenPlan(this_run(), given, given.digest)
        summary = markdown_line(f"Check the plan {given.name} and open its run")
        spec = await run_ledger_activity(PlanSpec, OPEN_PLAN, request, summary)
        if spec.listed:
            self._list.begin(Listing(given.name))
            show(self._progress)
        self._calls = ToolCalls(
            heartbeat_seconds=spec.heartbeat_seconds, thread_id=None, progress=self._progress
        )
        return spec

    async def _take_stages(self, given: PlanInput, spec: PlanSpec) -> None:
        for number, stage in enumerate(given.stages):
            raise_if_cancelled()
            names = ", ".join(one.name for one in stage)
            self._show(f"stage {number + 1} of {len(given.stages)}: {names}")
            self._progress.steps = number + 1
            share = result_share(len(stage), limit=min(spec.result_limit, MAX_STEP))
            # Nothing is undone any more: a step that fails is tried again while there is time.
            tries = _UNTIL_ITS_TIME_IS_UP if self._final else None
            surroundings.set(Surroundings(None, share, tries=tries, calls_tools=True))
            problems = await side_by_side(
                self._take_step(one, position(number, index)) for index, one in enumerate(stage)
            )
            if failed := [problem for problem in problems if problem]:
                raise failure(PlanFailed(self._in_words(failed)), limit=4_000)

    async def _take_step(self, step: PlannedStep, at: Position) -> str:
        """Take one step; return the problem, or an empty text if it succeeded."""
        tool = self._tools[step.tool]
        try:
            arguments, inputs = self._arguments(step)
        except LookupError as err:
            return f"the step {step.name!r} was not carried out: {err.args[0]}"
        assert self._calls is not None, "opened before"
        surroundings.set(replace(surroundings.get(), inputs=inputs))
        reply = await self._calls.run(tool, at, arguments)
        if _is_final(tool) and reply.effect_possible:
            self._final.append(step.name)
        if reply.status != "ok":
            return f"the step {step.name!r} ({step.tool} at {at}) {_why(reply)}"
        self._results[step.name] = StepResult(
            step.name,
            at,
            step.tool,
            reply.content["result"] if reply.existing else reply.content,
            reply.action_key,
            existing=reply.existing,
            partial=reply.partial,
        )
        return ""

    def _arguments(self, step: PlannedStep) -> tuple[str, list[StoredInput]]:
        """Return a step's arguments as JSON text, and what the ledger adds to them.

        Small results are put in here, so that people see them with the call.

        Raises:
            LookupError: A result is missing, or they are too large; the message says which.
        """
        arguments, room = parse(step.arguments), MAX_STEP
        inputs: list[StoredInput] = []
        for one in step.references:
            result = self._results[one.step]
            size = 0 if result.partial else len(to_text(result.value))
            if result.action_key is not None and (result.partial or size > room):
                inputs.append(StoredInput(one, ActionKey(result.action_key)))
                continue
            assert not result.partial, "the ledger has the whole of it, under its key"
            room -= size
            put_in(arguments, one, part_of(result.value, one))
        try:
            text = dumps(arguments)
        except (TypeError, UnrepresentableValue) as err:
            raise LookupError(f"its arguments cannot be made: {err}") from err
        if len(text) > _MAX_ARGUMENTS:
            raise LookupError(f"its arguments have {len(text)} characters, too many to travel")
        return text, inputs

    def _in_words(self, problems: list[str]) -> str:
        text = scrub("; ".join(problems), limit=2_000)
        if not self._final:
            return text
        names = ", ".join(map(repr, self._final))
        return (
            f"{text}. Nothing was undone by itself, since {names} took effect, or may have, and "
            "cannot be undone: what the plan did stands"
        )

    def _result(self, names: list[str]) -> PlanResult:
        """Return the results of the steps, shortened where they would not travel."""
        share = result_share(len(names))
        return PlanResult([_bounded(self._results[name], share) for name in names])


def _is_final(tool: ToolSpec) -> bool:
    """Whether a call of the tool has an effect that nothing undoes."""
    return tool.effect is not Effect.READ and not tool.compensated


def _why(reply: Reply) -> str:
    """Return, in words, how a step ended that did not succeed."""
    content: Any = reply.content
    if reply.status == "unknown":
        reason = content.get("unknown", {}).get("reason") or "nothing is known of it"
        return f"is unknown, and may have happened: {reason}"
    error = content.get("error", {})
    how = "happened, and its result could not be kept" if reply.effect_possible else "failed"
    return f"{how}: {error.get('type')}: {scrub(str(error.get('message')), limit=500)}"


def _bounded(one: StepResult, limit: int) -> StepResult:
    size = len(to_text(one.value))
    if size <= limit:
        return one
    view = {"truncated": True, "characters": size}
    return StepResult(
        one.name, one.position, one.tool, view, one.action_key, one.existing, partial=True
    )

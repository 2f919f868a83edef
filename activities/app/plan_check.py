"""Whether a plan can work, before anything of it is carried out. Pure functions.

    kind of step     effect, declared                          may stand
    ------------     ----------------                          ---------
    read             READ                                      anywhere
    reversible       with ``compensate``                       before anything that is final
    forward-only     IDEMPOTENT or LOOKUP, without; no person  anywhere after what is reversible
                     has to approve it
    pivot            any other                                 once, after what is reversible,
                                                               before or without what is
                                                               forward-only; reads beside it

The last two kinds are *final*: nothing undoes them. If a step before the first final one fails,
the plan is undone. After it the plan can only go forward. So no step may come there that may have
to be undone, or that may end for good without success: because a person rejects it, or because it
is never sent again. Steps that run side by side may end in either order, so the rule holds for
both orders.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ...canonical import parse, scrub
from ...errors import ActionError, PlanInvalid, UnrepresentableValue
from ...ledger.action_records import Effect
from ..contract.plans import PlannedStep
from .tool import Tool

MAX_STEPS: Final = 500
_MAX_NAME: Final = 64


def check_structure(stages: Sequence[Sequence[PlannedStep]]) -> None:
    """Refuse a plan with two steps of one name, or a step that uses a result before it is there.

    Raises:
        PlanInvalid: The message names the step.
    """
    earlier: set[str] = set()
    everything = [one.name for stage in stages for one in stage]
    if not everything or not all(stages):
        raise PlanInvalid("a plan needs steps, and each of its stages does")
    if len(everything) > MAX_STEPS:
        raise PlanInvalid(f"the plan has {len(everything)} steps, over {MAX_STEPS}")
    for stage in stages:
        beside = {one.name for one in stage}
        for one in stage:
            _check_name(one.name, everything)
            for reference in one.references:
                if reference.step in earlier:
                    continue
                if reference.step in beside:
                    why = "which does not come before it"
                else:
                    known = reference.step in everything
                    why = "which comes after it" if known else "which the plan does not have"
                raise PlanInvalid(f"the step {one.name!r} uses {reference}, {why}")
        earlier |= beside


def _check_name(name: str, everything: Sequence[str]) -> None:
    plain = isinstance(name, str) and name.isascii() and name.isprintable() and name.strip()
    if not plain or len(name) > _MAX_NAME:
        raise PlanInvalid(
            f"a step is named by 1 to {_MAX_NAME} printable ASCII characters, not {name!a}"
        )
    if everything.count(name) > 1:
        raise PlanInvalid(f"two steps are named {name!r}; give one of them another name")


def check_order(stages: Sequence[Sequence[PlannedStep]], tools: Mapping[str, Tool]) -> None:
    """Refuse arguments that do not fit, and an order in which a plan could neither go on nor back.

    Args:
        stages: Stages that `check_structure` let through.
        tools: By name, all that the steps call.

    Raises:
        PlanInvalid: The message names the step.
    """
    for stage in stages:
        for one in stage:
            _check_tool(one, tools[one.tool])
            _check_arguments(one, tools[one.tool])
    for final, other, beside in _pairs(stages, tools):
        why = _why_not_forward(tools[other.tool])
        if is_final(tools[final.tool]) and why:
            how = "stands beside it" if beside else "follows it"
            raise PlanInvalid(
                f"the step {final.name!r} must be undoable: {other.name!r} {how}, {why}. Name a "
                f"tool that undoes {final.tool!r} (compensate=…), or change the order"
            )


def is_final(tool: Tool) -> bool:
    """Whether a call of the tool has an effect that nothing undoes."""
    return tool.effect is not Effect.READ and tool.compensate is None


def _why_not_forward(tool: Tool) -> str:
    """Return why a plan cannot count on a call to succeed in the end; empty if it can."""
    if tool.effect is Effect.READ:
        return ""
    if tool.compensate is not None:
        return f"and may have to be undone by {tool.compensate.name!r}"
    if tool.effect is Effect.AT_MOST_ONCE:
        return "and may end unknown, which is not sent again"
    return "and a person may reject it" if tool.gated else ""


def _pairs(
    stages: Sequence[Sequence[PlannedStep]], tools: Mapping[str, Tool]
) -> Iterator[tuple[PlannedStep, PlannedStep, bool]]:
    """Yield pairs of a step that may have ended, another, and whether they are side by side."""
    earlier: list[PlannedStep] = []
    for stage in stages:
        for other in stage:
            for one in earlier:
                yield one, other, False
            for one in stage:
                if one is not other:
                    yield one, other, True
        # The first final step stands for all: what may not follow it may follow none.
        if not earlier:
            earlier = [one for one in stage if is_final(tools[one.tool])][:1]


def _check_tool(step: PlannedStep, tool: Tool) -> None:
    if tool.detached:
        raise PlanInvalid(
            f"the step {step.name!r}: {tool.name!r} is detached, and a plan waits for its steps"
        )
    if tool.state is not None:
        raise PlanInvalid(f"the step {step.name!r}: {tool.name!r} takes a state; a plan has none")


def _check_arguments(step: PlannedStep, tool: Tool) -> None:
    try:
        given = parse(step.arguments)
    except UnrepresentableValue as err:
        raise PlanInvalid(f"the step {step.name!r}: {err.message}") from err
    fields = {field.alias: field for field in tool.arguments.model_fields.values()}
    lacking = [name for name, field in fields.items() if field.is_required() and name not in given]
    if unknown := [name for name in given if name not in fields]:
        raise PlanInvalid(f"the step {step.name!r}: {tool.name!r} takes no {unknown[0]!a}")
    if lacking:
        raise PlanInvalid(f"the step {step.name!r}: {tool.name!r} needs {lacking[0]!r}")
    if step.references:
        return  # the results that it needs are not there yet
    try:
        tool.domain_key(tool.effective(given))
    except ActionError as err:
        raise PlanInvalid(f"the step {step.name!r}: {scrub(err.message, limit=500)}") from err

"""The spec of a tool: what a run that begins now keeps of it."""

from __future__ import annotations

from ..contract.deadlines import UNSET, Deadline, RunLimits, resolve
from ..contract.local_activity import is_short
from ..contract.spec import ToolSpec
from .tool import Tool


def tool_spec(
    made: Tool, limits: RunLimits, tool_timeout: Deadline = UNSET, node_timeout: Deadline = UNSET
) -> ToolSpec:
    """Return what a run that begins now keeps of a tool.

    Args:
        made: The tool.
        limits: The deadlines that the run was started with.
        tool_timeout: The setting of the agent whose tool it is.
        node_timeout: The same.
    """
    for_it = limits.tool_timeouts.get(made.name, UNSET)
    tool_seconds = resolve(
        "tool_timeout", for_it, made.tool_timeout, limits.tool_timeout, tool_timeout
    )
    return ToolSpec(
        made.definition,
        made.effect,
        made.summary,
        gated=made.gated,
        compensated=made.compensate is not None,
        tool_seconds=tool_seconds,
        node_seconds=resolve("node_timeout", made.node_timeout, limits.node_timeout, node_timeout),
        # The run may have been given a longer time than the tool has.
        local=made.local and is_short(tool_seconds),
    )

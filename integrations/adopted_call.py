"""A call that was scheduled before the plugin came: it has no header, and never will."""

from __future__ import annotations

from temporalio import activity
from temporalio.service import RPCError

from ..activities.contract.action_header import ActionHeader
from ..activities.contract.activity_failure import as_failure
from ..errors import DefinitionError, MissingActionHeader
from ..identity import Position, run_key
from .family import ToolCall


async def header_of_adopted(call: ToolCall) -> ActionHeader:
    """Return the header of a call that came without one, under a position of its own.

    An earlier attempt may have called without a row, so this attempt counts as a later one.

    Raises:
        ApplicationError: The server does not say which run it is; tried again.
        DefinitionError: No workflow has started it.
    """
    info = activity.info()
    if info.workflow_id is None or info.workflow_run_id is None:
        raise DefinitionError(f"{call.tool} has an effect, and is started without a workflow")
    handle = activity.client().get_workflow_handle(info.workflow_id, run_id=info.workflow_run_id)
    try:
        described = await handle.describe()
    except RPCError as err:
        missing = MissingActionHeader(
            f"{call.tool} was scheduled without the plugin, and the server does not say in which "
            f"run ({err.message}); this attempt called nothing"
        )
        raise as_failure(missing, final=False) from err
    first = described.raw_description.workflow_execution_info.first_run_id
    return ActionHeader(
        run_key(info.workflow_id, first or info.workflow_run_id),
        # One activity id may serve for several calls, one after the other.
        Position(
            f"unsigned.{info.workflow_run_id}.{info.activity_id}"
            f"#{info.scheduled_time.timestamp():.6f}"
        ),
        call.requested_digest,
    )

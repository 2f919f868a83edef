"""What Temporal Cloud would bill for a run: its *actions*, counted from the events of its history.

As https://docs.temporal.io/cloud/actions says (read in November 2026). An execution that starts or
goes on as a new one; each attempt of an activity; all local activities of one workflow task
together; timers, signals, updates, upserts; two for a child workflow. What leaves no event is not
counted here: heartbeats, queries, and updates that were refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from temporalio.api.history.v1 import HistoryEvent

ACTIONS: Final = {
    "workflow_execution_started": 1,
    "timer_started": 1,
    "workflow_execution_signaled": 1,
    "signal_external_workflow_execution_initiated": 1,
    "workflow_execution_update_accepted": 1,
    "upsert_workflow_search_attributes": 1,
    "start_child_workflow_execution_initiated": 2,
}
"""By the kind of event. The first event of a child is counted with its parent's."""


def actions_of(events: Iterable[HistoryEvent]) -> int:
    """Return the actions of one execution; of a child without its start, which its parent paid."""
    actions = 0
    tasks = set[int]()
    for event in events:
        kind = (event.WhichOneof("attributes") or "").removesuffix("_event_attributes")
        actions += ACTIONS.get(kind, 0)
        if kind == "activity_task_started":
            actions += event.activity_task_started_event_attributes.attempt
        elif kind == "marker_recorded":
            tasks.add(event.marker_recorded_event_attributes.workflow_task_completed_event_id)
        elif kind == "workflow_execution_started":
            started = event.workflow_execution_started_event_attributes
            actions -= started.HasField("parent_workflow_execution")
    return actions + len(tasks)

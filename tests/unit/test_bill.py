"""What of a history is on Temporal Cloud's bill."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

from commitline.bench.bill import actions_of

HISTORIES = Path(__file__).parents[1] / "replay" / "histories"


def event(kind: str, **attributes: object) -> HistoryEvent:
    made = HistoryEvent()
    found = getattr(made, f"{kind}_event_attributes")
    found.SetInParent()
    for name, value in attributes.items():
        setattr(found, name, value)
    return made


@pytest.mark.parametrize(
    ("events", "actions"),
    [
        ([event("workflow_execution_started"), event("workflow_task_scheduled")], 1),
        ([event("activity_task_scheduled"), event("activity_task_started", attempt=3)], 3),
        ([event("marker_recorded", workflow_task_completed_event_id=4)] * 5, 1),
        ([event("marker_recorded", workflow_task_completed_event_id=task) for task in (4, 9)], 2),
        ([event("start_child_workflow_execution_initiated")], 2),
        ([event("timer_started"), event("workflow_execution_update_accepted")], 2),
    ],
)
def test_each_kind_of_event_costs_what_temporals_page_says(
    events: list[HistoryEvent], actions: int
) -> None:
    assert actions_of(events) == actions


def test_a_run_of_two_turns_and_three_calls_costs_five_actions_and_its_begin_and_end() -> None:
    recorded = (HISTORIES / "three_calls.json").read_text(encoding="utf-8")
    history = WorkflowHistory.from_json("three_calls", recorded)

    assert actions_of(history.events) == 1 + 5 + 2

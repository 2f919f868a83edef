"""What tests read in a workflow's history."""

from __future__ import annotations

import json
from collections.abc import Iterable

from temporalio.api.history.v1 import HistoryEvent


def activities_in(events: Iterable[HistoryEvent]) -> list[str]:
    """Return the types of a run's activities, in the order of history.

    Of a local one history has its end only. Where that is a failure, another one may follow.
    """
    types = (_scheduled(event) or _ended_locally(event) for event in events)
    return [name for name in types if name]


def local_activities_in(events: Iterable[HistoryEvent]) -> list[str]:
    """The same of local activities alone."""
    return [name for event in events if (name := _ended_locally(event))]


def _scheduled(event: HistoryEvent) -> str:
    return event.activity_task_scheduled_event_attributes.activity_type.name


def _ended_locally(event: HistoryEvent) -> str:
    marker = event.marker_recorded_event_attributes
    if marker.marker_name != "core_local_activity":
        return ""
    told = json.loads(marker.details["data"].payloads[0].data)
    return str(told["activity_type"])

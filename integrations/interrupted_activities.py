"""Coarse activities that a framework interrupts: started again, they keep their position.

A node of LangGraph whose `interrupt` waits for an answer *returns*, and is another activity when
it is answered. What it did before is then read back, since its calls have the same positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from ..activities.contract.encoding import pack, unpack

INTERRUPTED_HEADER: Final = "commitline-interrupted"


class InterruptedActivities:
    """The numbers of one workflow's activities that were interrupted, by their type.

    Args:
        headers: Of the workflow: the numbers go on where the execution before it ended.
    """

    def __init__(self, headers: Mapping[str, Payload]) -> None:
        self._numbers: dict[str, list[int]] = {}
        if INTERRUPTED_HEADER in headers:
            self._numbers = unpack(dict[str, list[int]], RawValue(headers[INTERRUPTED_HEADER]))

    def header(self) -> dict[str, Payload]:
        """Return what the next execution has to know."""
        left = {kind: numbers for kind, numbers in self._numbers.items() if numbers}
        return {INTERRUPTED_HEADER: pack(left).payload} if left else {}

    def taken_up(self, activity_type: str) -> int | None:
        """Return the number of the activity that goes on; None if none was interrupted."""
        waiting = self._numbers.get(activity_type)
        return waiting.pop(0) if waiting else None

    def watch(self, handle: workflow.ActivityHandle[Any], activity_type: str, number: int) -> None:
        """Keep the number of an activity if its result is an interrupt."""
        handle.add_done_callback(partial(self._keep, activity_type, number))

    def _keep(self, activity_type: str, number: int, handle: workflow.ActivityHandle[Any]) -> None:
        if handle.cancelled() or handle.exception() is not None:
            return
        result = handle.result()
        read = result.get if isinstance(result, dict) else partial(getattr, result)
        if read("langgraph_interrupts", None) is not None:
            waiting = self._numbers.setdefault(activity_type, [])
            waiting.append(number)
            waiting.sort()

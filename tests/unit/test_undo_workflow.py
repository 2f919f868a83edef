"""An undo cannot be stopped, so nothing may keep it for ever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from temporalio import workflow

from commitline.activities.contract.action_header import ActionHeader
from commitline.activities.contract.deadlines import CallLimits
from commitline.activities.contract.reply import Reply
from commitline.activities.contract.undo import UndoStep
from commitline.activities.replies import call_reply
from commitline.identity import ActionKey, Position, RunKey
from commitline.workflows import finished_call as settled_call
from commitline.workflows.action_headers import surroundings
from commitline.workflows.progress import Progress
from commitline.workflows.undo import Undo
from commitline.workflows.undo_run import undo_in_child

RUN = RunKey("r/1")


async def test_what_cannot_begin_is_skipped_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    headers: list[ActionHeader | None] = []

    async def settled_reply(*args: object, **options: Any) -> Reply:
        headers.append(surroundings.get().header)
        return call_reply.ended_by_operator()  # nothing was dispatched

    monkeypatch.setattr(settled_call, "settled_reply", settled_reply)
    monkeypatch.setattr(workflow, "set_current_details", lambda details: None)
    undo = Undo(RUN, Progress(agent="", prompt=""), elsewhere=undo_in_child)
    header = ActionHeader(
        RUN, Position("undo-0.0"), "d", unplanned="undo", undoes=ActionKey("r/1:0.0")
    )
    step = UndoStep(ActionKey("r/1:0.0"), "refund", CallLimits(1, 1), "Undo", header=header)

    await undo._take_step(step, 1)

    (made,) = headers
    assert made == replace(header, max_waits=60)
    assert undo._passed == ["r/1:0.0"]

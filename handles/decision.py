"""A person's word about a call: a decision before it, an answer midway.

The client checks it, by the ledger and by ``authorize``, and hands it to the run's workflow as
an update; that has it committed in the ledger before the update returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from temporalio.client import WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.service import RPCError, RPCStatusCode

from ..activities.contract.approvals import Decide
from ..activities.contract.encoding import pack
from ..activities.contract.questions import Answer
from ..activities.model.model import over_limit
from ..canonical import dumps, storable
from ..errors import AnswerRefused, ApprovalRefused, InvalidArguments
from ..identity import Position, action_key
from ..ledger import Question
from ..workflows.base_run import ANSWERED, DECISION
from .connection import Connection
from .run_workflow import RunWorkflow, state_of
from .temporal_failure import ended_badly, refused

MAX_ANSWER: Final = 256 * 1024
"""Characters of an answer, as JSON; it travels through Temporal."""


async def decide(
    connection: Connection,
    workflow: RunWorkflow,
    position: Position,
    *,
    approve: bool,
    by: str,
    reason: str,
    args: Mapping[str, Any] | None,
) -> None:
    """Approve a call of a run, or reject it; see `AnyRun.decide`."""
    run_key = await workflow.run_key()
    ledger = await connection.ledger()
    approval = await ledger.approvals.get(action_key(run_key, position))
    if approval is None:
        raise ApprovalRefused(f"nothing was asked about {position} of the run {workflow.id!r}")
    by = storable(by)  # `authorize` sees the very name that is kept
    await connection.check_authorized(by, approval)
    edited = None if args is None else _edited_text(approval.tool, args)
    decision = Decide(run_key, position, approve, by, storable(reason), edited)
    await _send(workflow, DECISION, decision, late=ApprovalRefused)


async def answer(
    connection: Connection, workflow: RunWorkflow, question: str | Question, value: Any, *, by: str
) -> None:
    """Answer a question of a run's call; see `AnyRun.answer`."""
    text = _answer_text(value)
    run_key = await workflow.run_key()
    ledger = await connection.ledger()
    if isinstance(question, Question):
        key, number = question.key, question.number
    else:
        key, number = action_key(run_key, Position(question)), None
    found = await ledger.questions.get(key, number)
    if found is None or found.run_key != run_key:
        where = question if isinstance(question, str) else question.key
        raise AnswerRefused(f"nothing was asked at {where} of the run {workflow.id!r}")
    by = storable(by)  # `authorize` sees the very name that is kept
    await connection.check_authorized(by, found)
    given = Answer(run_key, found.position, found.number, by, text)
    await _send(workflow, ANSWERED, given, late=AnswerRefused)


async def _send(
    workflow: RunWorkflow,
    update: str,
    word: Decide | Answer,
    *,
    late: type[ApprovalRefused | AnswerRefused],
) -> None:
    """Send the run what a person said, and wait until it is committed.

    Raises:
        CommitlineError: What the run refuses it with; ``late``, where the run has ended.
        RunNotFound: No run has this id.
    """
    try:
        own = await workflow.own()
        await own.execute_update(update, pack(word), result_type=RawValue)
    except WorkflowUpdateFailedError as err:
        raise ended_badly(workflow.id, err.cause) from err
    except RPCError as err:
        if err.status is RPCStatusCode.NOT_FOUND:
            state = state_of(await workflow.describe())  # an ended run takes no update, either
            if state not in ("running", "stopping"):
                raise late(f"the run {workflow.id!r} has ended: {state}") from err
        raise refused(workflow.id, err) from err


def _answer_text(value: Any) -> str:
    if value is None:
        raise AnswerRefused("an answer needs a value, and None says nothing")
    text = dumps(value)
    if len(text) > MAX_ANSWER:
        raise AnswerRefused(f"an answer of {len(text)} characters is over {MAX_ANSWER}")
    return text


def _edited_text(tool: str, args: Mapping[str, Any]) -> str:
    text = dumps(args)
    if problem := over_limit(tool, len(text)):
        # The run would refuse it, too, but Temporal may not carry it there.
        raise InvalidArguments(problem)
    return text

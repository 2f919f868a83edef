"""A person's word about a call: a decision before it, an answer midway.

The client checks it, by the ledger and by ``authorize``, and hands it to the run's workflow as
an update; that has it committed in the ledger before the update returns.

Temporal counts the updates of a workflow, and takes 2,000. So the same word is the same update,
by its id, and costs history nothing when it is repeated; and what surely does not count is
refused by the row, or by the workflow before it accepts it. Where the workflow takes no update the
client commits the word itself, and tells the workflow that it is there.

The row has the last word. An update keeps its answer, and the ledger may have been restored since
to a moment before the word.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from temporalio.client import WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from ..activities.contract.approvals import (
    FOREIGN_DECISION,
    FOREIGN_WORD_GIVEN,
    Decide,
    WordGiven,
)
from ..activities.contract.encoding import pack
from ..activities.contract.questions import Answer
from ..activities.model.model import over_limit
from ..canonical import digest, dumps, scrub, storable
from ..errors import AnswerRefused, ApprovalRefused, InvalidArguments, RunNotFound
from ..identity import Position, RunKey, action_key
from ..ledger import ActionLedger, Approval, Question
from ..ledger.approvals import check_generation, refusal_of
from ..ledger.questions import refusal_of as refusal_of_answer
from ..workflows.base_run import ANSWERED, DECISION
from .connection import Connection
from .intervention import about_call
from .run_workflow import LIVE, RunWorkflow, state_of
from .temporal_failure import LEFT_UNANSWERED, ended_badly, raise_if_cancelled, refused
from .word_given import have_it_look, tell, tell_again

MAX_ANSWER: Final = 256 * 1024
"""Characters of an answer, as JSON; it travels through Temporal."""
_AGAIN_SECONDS: Final = 10
"""How long an answer that may be outdated is repeated to who says the same again."""
_PAUSES_SECONDS: Final = (0.1, 0.5, 2.0)
"""Before a word is sent another time, as where a run continues as new."""
_TAKES_NONE: Final = (RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.RESOURCE_EXHAUSTED)
"""The run has had all updates that Temporal allows, or as many at once; its workflow task fails, or
it is paused."""
_ALL_UPDATES: Final = "total number of distinct updates"
"""What Temporal says where the run has had all. Nothing else tells it from the other reasons."""
_MAY_HAVE_ENDED: Final = (
    RPCStatusCode.NOT_FOUND,
    RPCStatusCode.ABORTED,
    RPCStatusCode.FAILED_PRECONDITION,
)
"""An ended run takes no update, and one that is just ending drops it."""


class _TakesNoUpdate(Exception):
    """The run takes no update; the message says why. The word goes by the row."""


class _HasEnded(Exception):
    """The run has ended, with or without the word; the row says which."""


async def decide(
    connection: Connection,
    workflow: RunWorkflow,
    call: str | Approval,
    *,
    approve: bool,
    by: str,
    reason: str,
    args: Mapping[str, Any] | None,
) -> None:
    """Approve a call of a run, or reject it; see `AnyRun.decide`."""
    run_key = await workflow.readable_key()
    ledger = await connection.ledger()
    at = call if isinstance(call, str) else call.at
    position, generation = _named(at)
    key = action_key(run_key, position) if isinstance(call, str) else call.key
    approval = await ledger.approvals.get(key)
    if approval is None or approval.run_key != run_key:
        lost = await have_it_look(ledger, workflow, run_key, position)
        raise ApprovalRefused(f"nothing was asked about {at} of the run {workflow.id!r}{lost}")
    check_generation(approval, generation)
    by = storable(by)  # `authorize` sees the very name that is kept
    edited = None if args is None or not approve else _edited_text(approval.tool, args)
    carried_out = approval.args if edited is None else edited
    wanted = about_call("approve" if approve else "reject", approval, args=carried_out)
    await connection.check_authorized(by, wanted)
    exact = connection.authorizes
    said = (approve, by, storable(reason), edited, exact)
    word = Decide(run_key, position, *said, generation=generation)
    if _is_decided(approval, word):
        await tell_again(ledger, workflow, approval)
        return
    same = [key, generation, str(approval.requested_at), approve, word.arguments, by, exact]
    foreign = await workflow.is_foreign()
    if foreign:  # a child may wait, whatever became of its parent
        workflow = workflow.below(approval.waiting_workflow)
    await _hand_over(ledger, workflow, word, foreign=foreign, same=digest(same))


async def _hand_over(
    ledger: ActionLedger, workflow: RunWorkflow, word: Decide, *, foreign: bool, same: str
) -> None:
    """Have a decision committed, and the workflow told of it.

    Args:
        ledger: Where it is committed.
        workflow: Whose call it is about.
        word: The decision.
        foreign: The workflow is another framework's.
        same: Names the decision: the same one is the same update.
    """
    if foreign and word.arguments is None:
        return await _decide_foreign(ledger, workflow, word)
    update = FOREIGN_DECISION if foreign else DECISION
    key = action_key(word.run_key, word.position)

    async def waits() -> bool:
        found = await ledger.approvals.get(key)
        if found is None or found.generation != word.generation:
            return False
        return found.state == "waiting"

    try:
        await _send(workflow, update, word, id=f"{update}-{same}", waits=waits)
    except _HasEnded as err:
        approval = await ledger.approvals.get(key)
        if approval is None or not _is_decided(approval, word):
            raise ApprovalRefused(f"the run {workflow.id!r} has ended: {err}") from err
    except _TakesNoUpdate as err:
        if word.arguments is not None:
            raise ApprovalRefused(
                f"the run {workflow.id!r} {err}, and only the run can check other arguments: "
                "approve the call as it is, or reject it"
            ) from err
        await _decide_by_row(ledger, workflow, word)


def _named(at: str) -> tuple[Position, int]:
    """Read the name of an approval within its run, as `Approval.at` writes it."""
    position, _, generation = at.partition("~")
    return Position(position), int(generation) if generation.isdecimal() else 1


def _is_decided(found: Approval, word: Decide) -> bool:
    """Whether this very decision stands.

    Raises:
        ApprovalRefused: Another one stands, or the call is not made any more.
    """
    check_generation(found, word.generation)
    if found.state == "withdrawn":
        raise refusal_of(found)
    if found.decision not in ("approved", "rejected"):
        return False
    decision = "approved" if word.approve else "rejected"
    if (found.decision, found.decided_by) != (decision, word.by):
        raise refusal_of(found)
    if word.arguments is None and found.edited_args is None:
        return True
    if word.arguments is None or found.edited_args is None:
        raise refusal_of(found)
    return False  # only the run can say whether the arguments come to the same


async def _decide_by_row(ledger: ActionLedger, workflow: RunWorkflow, word: Decide) -> None:
    await _commit(ledger, word)
    await tell(workflow, WordGiven(word.run_key, word.position))


async def _commit(ledger: ActionLedger, word: Decide) -> Approval:
    key = action_key(word.run_key, word.position)
    reason = word.reason or None
    return await ledger.approvals.decide(
        key, approve=word.approve, by=word.by, generation=word.generation, reason=reason
    )


async def _decide_foreign(ledger: ActionLedger, workflow: RunWorkflow, word: Decide) -> None:
    """Commit a decision about a call of another framework's workflow, and tell that to look.

    No worker is needed for it, and no update is used up. The row says who waits: another workflow
    by now, where a parent has begun its child anew.
    """
    if not await _waits_still(workflow, word.run_key):
        raise ApprovalRefused(
            f"the workflow {workflow.id!r} has ended: the call is not made any more"
        )
    decided = await _commit(ledger, word)
    told = workflow.below(decided.waiting_workflow)
    await tell(told, WordGiven(word.run_key, word.position), signal=FOREIGN_WORD_GIVEN)


async def _waits_still(workflow: RunWorkflow, run_key: RunKey) -> bool:
    """Whether a workflow has not ended that makes calls of a run.

    Of a child, Temporal may have forgotten it, or another run's child may have its id by now.
    """
    try:
        return await workflow.is_live() and await workflow.makes_calls_of(run_key)
    except RunNotFound:
        return False


async def answer(
    connection: Connection, workflow: RunWorkflow, question: str | Question, value: Any, *, by: str
) -> None:
    """Answer a question of a run's call; see `AnyRun.answer`."""
    text = _answer_text(value)
    run_key = await workflow.readable_key()
    ledger = await connection.ledger()
    if isinstance(question, Question):
        key, number = question.key, question.number
    else:
        key, number = action_key(run_key, Position(question)), None
    found = await ledger.questions.get(key, number)
    if found is None or found.run_key != run_key:
        where = question if isinstance(question, str) else question.position
        lost = await have_it_look(ledger, workflow, run_key, Position(where))
        raise AnswerRefused(f"nothing was asked at {where} of the run {workflow.id!r}{lost}")
    by = storable(by)  # `authorize` sees the very name that is kept
    await connection.check_authorized(by, about_call("answer", found, value=text))
    word = Answer(run_key, found.position, found.number, by, text)
    if _is_answered(found, word):
        return
    same = digest([key, found.number, text, by])

    async def waits() -> bool:
        again = await ledger.questions.get(key, found.number)
        return again is not None and again.state == "waiting"

    try:
        await _send(workflow, ANSWERED, word, id=f"{ANSWERED}-{same}", waits=waits)
    except _HasEnded as err:
        again = await ledger.questions.get(key, found.number)
        if again is None or not _is_answered(again, word):
            raise AnswerRefused(f"the run {workflow.id!r} has ended: {err}") from err
    except _TakesNoUpdate:
        await ledger.questions.answer(key, found.number, text, by=by)
        await tell(workflow, WordGiven(run_key, found.position, found.number))


def _is_answered(found: Question, word: Answer) -> bool:
    """Whether this very answer stands.

    Raises:
        AnswerRefused: Another one stands, or the call is not made any more.
    """
    if found.state == "withdrawn":
        raise refusal_of_answer(found)
    if found.answer is None:
        return False
    if (found.answer, found.answered_by) != (word.answer, word.by):
        raise refusal_of_answer(found)
    return True


async def _send(
    workflow: RunWorkflow,
    update: str,
    word: Decide | Answer,
    *,
    id: str,
    waits: Callable[[], Awaitable[bool]],
) -> None:
    """Send the run what a person said, and wait until it is committed.

    The update that has this id keeps its answer for ever. A refusal that is no matter of the row
    came from the code that the workers had. And where the row waits all the same, the ledger was
    restored after that answer. So neither is believed until a fresh update says the same. There
    is a fresh one only now and then, or repetitions would fill the run.

    Args:
        workflow: Of the run.
        update: The update's name.
        word: What they said.
        id: Of the update.
        waits: Says whether the row waits for it still.

    Raises:
        CommitlineError: What the run refuses it with.
        RunNotFound: No run has this id.
    """
    fresh = f"{id}-{time.time() // _AGAIN_SECONDS:.0f}"
    for one in (id, fresh):
        try:
            await _update(workflow, update, word, one)
        except WorkflowUpdateFailedError as err:
            if one == fresh or (_is_final(err) and not await waits()):
                raise ended_badly(workflow.id, err.cause) from err
        else:
            if not await waits():
                return
    raise _TakesNoUpdate("has taken it, and the ledger has lost it since")


async def _update(workflow: RunWorkflow, update: str, word: Decide | Answer, id: str) -> None:
    """Send an update; once more where the run has just gone on in another execution."""
    pauses = iter(_PAUSES_SECONDS)
    while (raised := await _not_taken(workflow, update, word, id)) is not None:
        state = state_of(await workflow.describe())
        if state not in LIVE:
            raise _HasEnded(state) from raised
        if isinstance(raised, RPCError) and raised.status in _TAKES_NONE:
            raise _TakesNoUpdate(_why_none(raised)) from raised
        pause = next(pauses, None)
        if pause is None:
            raise _HasEnded(state) from raised
        await asyncio.sleep(pause)


async def _not_taken(
    workflow: RunWorkflow, update: str, word: Decide | Answer, id: str
) -> Exception | None:
    """Send an update until there is an answer; return why the run does not take it, if it does not.

    Safe to repeat: it is the same update, by its id.
    """
    while True:
        try:
            own = await workflow.own()
            await own.execute_update(update, pack(word), id=id, result_type=RawValue)
            return None
        except WorkflowUpdateFailedError as err:
            if isinstance(err.cause, ApplicationError) and err.cause.type != LEFT_UNANSWERED:
                raise
            return err
        except WorkflowUpdateRPCTimeoutOrCancelledError as err:
            raise_if_cancelled(err)
        except RPCError as err:
            if err.status in _MAY_HAVE_ENDED + _TAKES_NONE:
                return err
            if not await workflow.only_the_wait_ended(err):
                raise refused(workflow.id, err) from err


def _why_none(error: RPCError) -> str:
    """Say why a run takes no update: for ever, or for now, by Temporal's own words."""
    if _ALL_UPDATES in error.message:
        return "has had all updates that Temporal allows"
    return f"takes no update now (Temporal: {scrub(error.message, limit=200)})"


def _is_final(err: WorkflowUpdateFailedError) -> bool:
    """Whether a refusal is the row's or the workflow's own, which is always the same."""
    kind = err.cause.type if isinstance(err.cause, ApplicationError) else None
    return kind in (ApprovalRefused.__name__, AnswerRefused.__name__)


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

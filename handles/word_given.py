"""Tells a run's workflow that a person's word is in the ledger; or that the ledger has lost a call.

A workflow looks by itself only once an hour, later once a day.
"""

from __future__ import annotations

from temporalio.service import RPCError, RPCStatusCode

from ..activities.contract.approvals import FOREIGN_WORD_GIVEN, WordGiven
from ..activities.contract.encoding import pack
from ..activities.contract.runs import LOOK
from ..errors import RunNotFound
from ..identity import Position, RunKey
from ..ledger import ActionLedger, Approval
from ..workflows.base_run import WORD_GIVEN
from .run_workflow import RunWorkflow
from .temporal_failure import refused


async def tell(workflow: RunWorkflow, given: WordGiven, *, signal: str = WORD_GIVEN) -> None:
    """Tell the run that a word about a call of it is in the ledger; it looks by itself, too."""
    await _signal(workflow, signal, given)


async def tell_again(ledger: ActionLedger, workflow: RunWorkflow, decided: Approval) -> None:
    """Tell another framework's workflow of a decision that stands; it goes on where it has not.

    Whoever committed the decision may have died before it told anybody. A run of ours needs no
    telling: it commits its decisions itself.
    """
    try:
        if not await workflow.is_foreign() or await ledger.get(decided.key) is not None:
            return
    except RunNotFound:
        return
    told = workflow.below(decided.waiting_workflow)
    given = WordGiven(decided.run_key, decided.position)
    await tell(told, given, signal=FOREIGN_WORD_GIVEN)


async def _signal(workflow: RunWorkflow, signal: str, given: WordGiven) -> None:
    try:
        await (await workflow.own()).signal(signal, pack(given))
    except RPCError as err:
        if err.status is not RPCStatusCode.NOT_FOUND:  # it has ended meanwhile
            raise refused(workflow.id, err) from err


async def have_it_look(
    ledger: ActionLedger, workflow: RunWorkflow, run_key: RunKey, at: Position
) -> str:
    """Have a run look into the ledger, where it waits for what the ledger does not have.

    Then it asks anew; or it ends, if the ledger has lost the run, too. Nothing is begun. The run of
    another framework's workflow is registered anew, and asks anew.

    Returns:
        What to add to "nothing was asked"; empty where the run waits for nothing there.

    Raises:
        RunNotFound: Temporal has no workflow of it.
    """
    if not await workflow.is_live():
        return ""
    known = await ledger.runs.get(run_key) is not None
    foreign = await workflow.is_foreign()
    if known and not foreign:
        now = await workflow.progress()
        waits = () if now is None else [one for one in now.calls if one.state.startswith("await")]
        if at not in [one.position for one in waits]:
            return ""
    # Of a run of ours all calls look: it ends when each of them has.
    await _signal(workflow, FOREIGN_WORD_GIVEN if foreign else LOOK, WordGiven(run_key, at))
    if not known:
        return ": the ledger has nothing of it (lost by a restore?), and the run is told to look"
    return ": if the run waits for it, the ledger has lost that; the run asks anew now"

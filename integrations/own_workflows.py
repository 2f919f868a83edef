"""Commitline's own workflows beside another framework's: they undo its runs, and settle calls.

A worker with workflows serves `UndoRun`, `SettleAction` and `Relay`, one with activities what those
call. All of that is made when it is called: by then the worker runs, and its ledger is open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from temporalio import activity
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.converter import PayloadConverter

from ..activities.contract.outcomes import RECORD_OUTCOME, SETTLE_ENDED
from ..activities.contract.relay import (
    CLOSE_GONE_RUNS,
    FINISH_SETTLEMENT,
    PLAN_SETTLEMENT,
    START_SETTLEMENTS,
)
from ..activities.contract.undo import BEGIN_UNDO, FINISH_UNDO, PLAN_UNDO
from ..activities.runs.due_actions import DueActions
from ..activities.runs.gone_runs import GoneRuns
from ..activities.runs.left_runs import LeftRuns
from ..activities.runs.left_undos import LeftUndos
from ..activities.runs.outcomes import OutcomeActivities
from ..activities.runs.relay_triggers import relaying
from ..activities.runs.settlement import SettlementActivities
from ..activities.runs.undo import UndoActivities
from ..config import Settings
from ..ledger import ActionLedger
from ..workflows import Relay, SettleAction, UndoRun
from .foreign_tool import ForeignTool
from .rules import Rules

OWN_WORKFLOWS: Final = (UndoRun, SettleAction, Relay)
"""What a worker registers that has workflows."""
_WITH_REQUEST: Final = (
    BEGIN_UNDO,
    PLAN_UNDO,
    FINISH_UNDO,
    PLAN_SETTLEMENT,
    FINISH_SETTLEMENT,
    RECORD_OUTCOME,
    SETTLE_ENDED,
)
_WITHOUT: Final = (CLOSE_GONE_RUNS, START_SETTLEMENTS)


@dataclass(frozen=True)
class OwnTools:
    """The activities of a worker that an undo, or the relay, may call."""

    tools: Sequence[ForeignTool]


class OwnWorkflows:
    """What Commitline's own workflows need of a worker.

    Args:
        rules: Of the worker.
        ledger: Returns the ledger, which is open while a worker runs.
        settings: Heartbeat, the relay's interval and tries.
    """

    def __init__(
        self, rules: Rules, ledger: Callable[[], ActionLedger], settings: Settings
    ) -> None:
        self._rules = rules
        self._ledger = ledger
        self._settings = settings

    @property
    def activities(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers that has activities. Each is safe to repeat."""
        with_request = [self._with_request(name) for name in _WITH_REQUEST]
        return [*with_request, *(self._without(name) for name in _WITHOUT)]

    def relaying(self, client: Client, task_queue: str) -> AbstractAsyncContextManager[None]:
        """Look for what is due, and for runs that are lost, while the body runs."""
        if not self._rules.compensates:
            return nullcontext()
        settings = self._settings.model_copy(update={"task_queue": task_queue})
        due, gone = self._due_actions(client, task_queue), self._gone_runs(client, task_queue)
        return relaying(due, gone, self._ledger(), settings, namespace=client.namespace)

    def _with_request(self, name: str) -> Callable[..., Any]:
        @activity.defn(name=name)
        async def run(raw: RawValue) -> Any:
            return await self._made()[name](raw)

        return run

    def _without(self, name: str) -> Callable[..., Any]:
        @activity.defn(name=name)
        async def run() -> Any:
            return await self._made()[name]()

        return run

    def _made(self) -> Mapping[str, Callable[..., Any]]:
        """Return the activities by name, in the activity that is one of them."""
        ledger, settings, client = self._ledger(), self._settings, activity.client()
        tools, queue = self._tools(), activity.info().task_queue
        beat = settings.heartbeat_seconds
        settles = SettlementActivities(
            tools,
            ledger,
            client,
            tries=settings.relay_tries,
            heartbeat_seconds=beat,
            intents=None,
            bare=True,
        )
        undoes = UndoActivities(tools, ledger.undo, heartbeat_seconds=beat, bare=True)
        every = [
            *settles.all,
            *undoes.all,
            *OutcomeActivities(ledger).all,
            *self._gone_runs(client, queue).all,
            *self._due_actions(client, queue).all,
        ]
        return {_name_of(one): one for one in every}

    def _due_actions(self, client: Client, task_queue: str) -> DueActions:
        return DueActions(self._tools(), self._ledger(), client, task_queue=task_queue)

    def _gone_runs(self, client: Client, task_queue: str) -> GoneRuns:
        ledger, tools = self._ledger(), self._tools()
        left = LeftRuns(tools, ledger, client, task_queue=task_queue)
        undos = LeftUndos(tools, ledger, client, task_queue=task_queue)
        named = [made.name for made in tools.tools]
        return GoneRuns(ledger, client, left, undos, tools=named)

    def _tools(self) -> OwnTools:
        """Return the activities; here nothing of them is called."""
        default, rules = PayloadConverter.default, self._rules
        named = {name: rules.rule_named(name) for name in rules.callable_tools}
        return OwnTools(
            [ForeignTool(name, rule, None, default) for name, rule in named.items() if rule]
        )


def _name_of(method: Callable[..., Any]) -> str:
    defined = activity._Definition.from_callable(method)
    assert defined is not None, "they are activities"
    assert defined.name is not None, "of one name each"
    return defined.name

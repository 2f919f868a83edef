"""`RuledCall`: one call of a foreign tool, as the guard sees it (`protocols.Guarded`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from temporalio import activity

from ..activities.app.tool_failure import FailureKind, ToolFailure
from ..activities.contract.action_header import ActionHeader
from ..activities.contract.deadlines import CallLimits
from ..activities.guard.guarded_tool import ToolReplies, ToRun
from ..activities.guard.protocols import HandOver, Replies
from ..activities.runner.clock import time_left
from ..canonical import digest, dumps, parse
from ..errors import ArgumentsChanged, EffectNotDeclared
from ..ledger import Action, ActionRequest, Effect, Outcome
from ..logs import Log
from .effect_rule import DECLARE_ONE, EffectRule
from .family import ArrivedCall, Interrupted, ReportedFailure, ReportedRefusal, ToolCall
from .foreign_tool import ForeignTool

log = Log()


def not_declared(tool: str) -> EffectNotDeclared:
    """Return why a tool without a rule is not called: only a model reads it, so the log has it."""
    log.warning("tool.effect_not_declared", tool=tool)
    return EffectNotDeclared(f"{tool!r} has no effect, so nothing was called: {DECLARE_ONE}")


class RuledCall:
    """One call, by its rule.

    There is no lookup, no shared state and no question to a person. Deadlines are the workflow's
    own: Temporal's time-outs; and a foreign workflow records no outcome later. A call that no run
    has planned (of an undo, or of the relay) is made by a workflow of ours, which does.

    Args:
        call: The call.
        rule: What repeating it would do.
        arrived: The same call, as its family makes it.
        tool: Its tool.
        undoes: Returns its arguments, as JSON text, where it undoes an action.
        planned: A run has planned it.
    """

    lookup = None
    state = None
    questions = None
    runs_apart = False

    def __init__(
        self,
        call: ToolCall,
        rule: EffectRule,
        arrived: ArrivedCall,
        tool: ForeignTool,
        *,
        undoes: Callable[[Action], str],
        planned: bool,
    ) -> None:
        self.name = call.tool
        self._tool = tool
        self.effect = rule.effect
        self.tries = 1 if rule.effect == Effect.READ else rule.tries
        self.ends_when_cancelled = arrived.ends_when_cancelled
        self.replies: Replies = arrived.replies if planned else ToolReplies()
        self.hand_over: HandOver | None = None if planned else ToRun()
        self._undoes = undoes
        self._rule = rule
        self._arrived = arrived

    def limits(self, header: ActionHeader) -> CallLimits:
        """See `Guarded`: the workflow's own."""
        if header.purpose != "forward":
            return time_left(CallLimits(header.attempt_seconds, header.node_seconds))
        whole = activity.info().schedule_to_close_timeout
        return time_left(CallLimits(None, whole.total_seconds() if whole else None))

    def failure(self, error: BaseException) -> ToolFailure:
        """See `Guarded`."""
        if isinstance(error, Interrupted):
            return ToolFailure(
                FailureKind.NOT_ATTEMPTED, "Interrupted", str(error), interrupts=True
            )
        if isinstance(error, ReportedFailure):
            return ToolFailure(FailureKind.OTHER, "ToolFailed", str(error))
        if isinstance(error, ReportedRefusal):
            return ToolFailure(FailureKind.REFUSED, error.kind, str(error))
        rule = self._rule
        refused_on = rule.refused_on
        if self._arrived.refuses(error):
            refused_on = (*refused_on, type(error))
        return ToolFailure.of(error, refused_on=refused_on, retry_on=rule.retry_on)

    def request(self, args: Sequence[Any], header: ActionHeader) -> ActionRequest:
        """See `Guarded`."""
        rule, undo = self._rule, header.purpose == "undo"
        arguments = self._tool.effective_args(args) if undo else self._arrived.effective()
        if header.judged is not None and digest(self._tool.named(arguments)) != header.judged:
            raise ArgumentsChanged(
                f"{self.name} would be called with other arguments than were approved"
            )
        template, named = rule.template, self._arrived.named(arguments)
        return ActionRequest(
            run_key=header.run_key,
            position=header.position,
            tool=self.name,
            args=dumps(arguments),
            effect=rule.effect,
            requested_digest=header.requested_digest,
            effective_digest=digest(arguments),
            domain_key=None if template is None else template.render(named),
            key_ttl=rule.key_ttl,
            thread_id=header.thread_id or header.run_key,
            compensator=None if undo else rule.compensate,
            undoes=header.undoes,
            purpose=header.purpose,
            lookup_only=header.lookup_only,
            owner=activity.info().workflow_id,
        )

    def undo_args(self, undone: Action) -> str:
        """See `Guarded`."""
        return self._undoes(undone)

    def stored_args(self, request_args: str) -> Sequence[Any]:
        """See `Guarded`."""
        return self._arrived.args_with(parse(request_args))

    def encode(self, value: Any) -> Outcome:
        """See `Guarded`."""
        return self._arrived.outcome(value)

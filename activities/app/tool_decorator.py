"""`@tool`: makes a `Tool` of a function, and says what repeating a call of it would do.

    @tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge")
    async def charge_card(ctx: ToolContext, order_id: str, amount_cents: int) -> Charge: ...

The signature of the function is the schema. What cannot work is refused here, when the tool is
defined.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Any

from ...errors import DefinitionError
from ...idempotency_key import KeyTemplate
from ...ledger.action_records import Effect
from ..contract.deadlines import UNSET, Deadline
from .signature import arguments_of, may_return_none, returns_of
from .tool import Isolation, Relay, Tool, UndoUnknown
from .tool_check import check_effect, check_tool
from .tool_failure import Exceptions, exception_classes


@dataclass(frozen=True)
class ToolDecorator:
    """Makes a tool of an ``async`` or plain function; a plain one runs in a thread of its own.

    Raises:
        DefinitionError: It cannot work as declared; the message says why.
    """

    bare: Callable[..., Any] | None = None
    """Not for use: it catches a bare ``@tool``, which declares no effect."""
    _: KW_ONLY
    effect: Effect | None = None
    """What repeating the call would do. Required."""
    idempotency_key: str | None = None
    """A key from the domain, with parameters in braces. One effect per key, ever, whichever run,
    turn or call asks for it. None: each call has a key of its own."""
    key_ttl: timedelta | None = None
    """How long the downstream system remembers a key; None is for ever."""
    lookup: Callable[..., Any] | None = None
    """``lookup(args, idempotency_key)``, ``async`` or plain, asks the downstream system whether
    the call happened. It returns what the call returned, or `NEVER_HAPPENED`. ``Effect.LOOKUP``
    requires it; an ``IDEMPOTENT`` tool uses it past its ``key_ttl``."""
    lookup_settles_after: timedelta = timedelta(seconds=60)
    """How long after an attempt could last send something its effect may still be invisible to
    ``lookup``; "never happened" counts only after that."""
    same: tuple[str, ...] | None = None
    """The parameters by which two calls with one domain key are the same fact; None is all."""
    refused_on: Exceptions | type[BaseException] = ()
    """Exceptions that mean what `ToolRefused` means: declined, nothing happened."""
    retry_on: Exceptions | type[BaseException] | None = None
    """Exceptions that are worth another try, as far as the effect allows one. None: connection
    errors and time-outs of the well-known clients, `ToolTimeout`, and 408, 409, 429, 5xx (by a
    status in an attribute, never by a number in a text)."""
    tries: int = 3
    """How often the tool may fail a call by ``retry_on`` or `NotAttempted`, in all attempts
    together. Dead workers and outages of the ledger do not count."""
    tool_timeout: Deadline = UNSET
    """Seconds, or a ``timedelta``, for one attempt. None, zero and less are no limit. By default
    the agent's, else 300 s."""
    node_timeout: Deadline = UNSET
    """The same for the call with its retries. By default the agent's, else 900 s."""
    isolation: Isolation = "none"
    """``"process"`` calls it in a process of its own, which is killed at the deadline and dies
    with the worker. Each call then costs the start of an interpreter."""
    approval: bool | Callable[[dict[str, Any]], Any] = False
    """True: a person has to approve each call. Or a function of the effective arguments (a dict,
    as JSON has them) that says whether. It may be called again, so it must only look at them."""
    approval_expires: timedelta | None = timedelta(hours=72)
    """How long a call waits for its approval, and for the answer to a question that it asks
    (`ToolContext.interrupt`): ten years at most; None is for ever."""
    compensate: Tool | None = None
    """The tool that undoes a call of this one, when its run fails or is stopped with
    ``compensate=True``. Its parameters get the arguments of their names, and ``result`` what the
    call returned; ``ctx.undoes`` has all of it."""
    undoes: str | None = None
    """The domain key, with parameters in braces, of the action that a call of this tool undoes: a
    refund that the model may ask for. Its success marks that action as undone."""
    undo_unknown: UndoUnknown = "resend"
    """What becomes of a call that is unknown when its run is undone, where no lookup can tell.
    ``"resend"`` sends an ``IDEMPOTENT`` one again under its key, to learn what became of it, and
    then undoes it; ``"park"`` leaves it to a person."""
    relay: Relay = "lookup"
    """What the relay does about a call whose run is gone (terminated, timed out), and that is not
    known to have ended. ``"lookup"`` asks the downstream system, if there is a ``lookup``, and else
    leaves the call to a person; ``"resend"`` also sends an ``IDEMPOTENT`` one again under its
    key."""
    detached: bool = False
    """True: an agent does not wait for the call. Its turn commits the intent and goes on, and the
    relay carries the call out, whatever becomes of the run. The model reads that the call is
    accepted, and later how it ended; meanwhile it may ask (``action_state``)."""
    local: bool = False
    """True: an agent's run has its call made by the worker that has its workflow, as a Temporal
    *local* activity: without a round trip through the server, and as safe. For short calls: it
    needs a ``tool_timeout`` of 30 s at most, runs in no process of its own and asks no person
    midway. A plan's steps, undos and the relay's calls are made as ever."""
    name: str | None = None
    """By which the model calls it; None is the name of the function."""
    summary: str | None = None
    """What the call does in business words, with parameters in braces, for the Temporal UI:
    ``"Charge {amount_cents} cents for order {order_id}"``."""

    def __post_init__(self) -> None:
        """Refuse a bare ``@tool``."""
        if self.bare is not None:
            check_effect(self.bare.__name__, self.effect)
            raise DefinitionError("use @tool(effect=…), with parentheses")

    def __call__(self, function: Callable[..., Any]) -> Tool:
        """Make the tool."""
        if not inspect.isroutine(function):
            raise DefinitionError(f"{function!r} is no function: define one that calls it")
        name = self.name or function.__name__
        effect = check_effect(name, self.effect)
        arguments, filled_in = arguments_of(function, name)
        made = Tool(
            fn=function,
            name=name,
            description=inspect.getdoc(function) or name,
            effect=effect,
            key_template=_template(self.idempotency_key),
            key_ttl=self.key_ttl,
            lookup=self.lookup,
            same=None if self.same is None else frozenset(self.same),
            summary=self.summary,
            arguments=arguments,
            returns=returns_of(function),
            context_parameter=filled_in.context,
            is_async=inspect.iscoroutinefunction(function),
            settles_after=self.lookup_settles_after,
            tries=self.tries,
            refused_on=_exceptions(name, self.refused_on),
            retry_on=None if self.retry_on is None else _exceptions(name, self.retry_on),
            tool_timeout=self.tool_timeout,
            node_timeout=self.node_timeout,
            isolation=self.isolation,
            returns_nothing=may_return_none(function),
            approval=self.approval,
            approval_expires=self.approval_expires,
            compensate=self.compensate,
            undoes=_template(self.undoes),
            undo_unknown=self.undo_unknown,
            relay=self.relay,
            state_parameter=filled_in.state,
            state=filled_in.state_model,
            detached=self.detached,
            local=self.local,
        )
        return check_tool(made)


tool = ToolDecorator


def _template(text: str | None) -> KeyTemplate | None:
    return None if text is None else KeyTemplate.parse(text)


def _exceptions(name: str, given: Any) -> Exceptions:
    return exception_classes(f"the tool {name!r}", given)

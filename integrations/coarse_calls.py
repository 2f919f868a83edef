"""`act` and `guarded`: a row for each call that is made inside one activity.

receipt = await act(charge_card, order_id="4821", cents=4900)     # in any coarse activity
tools = ToolNode([guarded(charge_card), guarded(send_mail)])      # tools of LangChain
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from typing import Any, Final, NoReturn, TypeVar, cast

from temporalio import activity
from temporalio.exceptions import ApplicationError

from ..activities.guard.attempt import attempt
from ..activities.guard.guarded_call import GuardedCall
from ..canonical import dumps
from ..errors import (
    ApprovalMissing,
    DefinitionError,
    InvalidArguments,
    NoCurrentCall,
)
from ..ledger import Action
from .acted_call import ActedCall, ActedTool, ActReplies, NoResult
from .coarse_activity import CoarseActivity, current_activity
from .effect_rule import EffectRule, rule_of
from .family import Interrupted, ToolCall
from .foreign_tool import ForeignTool
from .ruled_call import RuledCall, not_declared
from .telling import FailureReplies, told_by

T = TypeVar("T")

_INTERRUPTS: Final = ("langgraph.errors", "GraphBubbleUp")
"""What a tool of LangGraph raises to be called again later: nothing has failed."""


def act(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
    """Call a function inside a coarse activity, with a row, a position and a key of its own.

    Calls are counted in the order in which `act` is called, per function. Safe to repeat: when
    the activity runs again, a call that was done is read back and not made.

    Args:
        function: A function under `effect`, or one that ``LedgerPlugin(effects={...})`` names. A
            plain one runs in a thread.
        args: Its arguments.
        kwargs: The same, by name.

    Returns:
        What it returned, as its type says.

    Raises:
        temporalio.exceptions.ApplicationError: There is no result: its ``type`` is the error's
            name, ``OutcomeUnknown`` where it may have happened; `told_by` returns what a model may
            read of it. Or this attempt at the activity ends, and another one goes on.
        NoCurrentCall: No worker with the plugin runs it as a coarse activity.
        TypeError: There are more arguments than parameters, or two for one.
        DefinitionError: The function cannot be guarded, or what its rule names cannot undo a call.
    """
    return _acted(ActedTool(_name_of(function), function, rule_of(function)), args, kwargs)


def guarded(tool: T, rule: EffectRule | None = None) -> T:
    """Return a tool whose calls are made by `act`, for use inside a coarse activity.

    What has no result is told to the model as the tool's result: ``{"status": "unknown", …}``.

    Args:
        tool: A function, or a tool of LangChain that was made of functions (``@tool``).
        rule: What repeating it would do; by default what `effect` said of its function, or the
            plugin's ``effects`` by its name.

    Raises:
        DefinitionError: It is neither, or cannot be guarded: it has parameters without a name, or
            returns a ``Command`` of LangGraph.
    """
    if inspect.isfunction(tool):
        acted = ActedTool(_name_of(tool), tool, rule or rule_of(tool))
        acted.signature  # noqa: B018 - read now, so that a wrong one is refused here
        return cast("T", _wrapped(acted, as_text=False))
    functions = {name: getattr(tool, name, None) for name in ("func", "coroutine")}
    given = {name: one for name, one in functions.items() if inspect.isfunction(one)}
    if not given or not hasattr(tool, "model_copy"):
        raise DefinitionError(f"{tool!r} is no function, and no tool that was made of one")
    seen = set(_shown_to_models(tool))
    wrapped = {}
    for name, one in given.items():
        unseen = frozenset(inspect.signature(one).parameters) - seen
        acted = ActedTool(str(getattr(tool, "name", "")), one, rule or rule_of(one), unseen)
        acted.signature  # noqa: B018 - as above
        wrapped[name] = _wrapped(acted, as_text=True)
    return cast("T", cast("Any", tool).model_copy(update=wrapped))


def _shown_to_models(tool: Any) -> Sequence[str]:
    """Return the parameters that a model fills in; a framework injects the others."""
    schema = tool.tool_call_schema
    fields = schema.get("properties") if isinstance(schema, dict) else schema.model_fields
    return list(fields or ())


def _wrapped(tool: ActedTool, *, as_text: bool) -> Callable[..., Any]:
    async def tell(call: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await call
        except ApplicationError as err:
            told = told_by(err)
            if told is None:
                raise
            return dumps(told) if as_text else told

    @wraps(tool.function)
    async def calls(*args: Any, **kwargs: Any) -> Any:
        return await tell(_acted(tool, args, kwargs))

    @wraps(tool.function)
    def calls_from_thread(*args: Any, **kwargs: Any) -> Any:
        loop = _other_loop(_current(tool.name))
        call = _acted(tool, args, kwargs)
        return asyncio.run_coroutine_threadsafe(tell(call), loop).result()

    return calls if inspect.iscoroutinefunction(tool.function) else calls_from_thread


def _other_loop(here: CoarseActivity) -> asyncio.AbstractEventLoop:
    """Return the worker's loop, for a thread that may wait for it.

    Raises:
        DefinitionError: The running code is on that very loop, and would wait for ever.
    """
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return here.loop
    if running is here.loop:
        raise DefinitionError(
            "a plain function that is guarded was called on the event loop: use `await act(...)`"
        )
    return here.loop


def _acted(
    tool: ActedTool, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Coroutine[Any, Any, Any]:
    """Take the call's number at once, and return the coroutine that makes it."""
    given = tool.by_name(args, kwargs)
    here = _current(tool.name)
    return _call(here, tool, here.next_number(tool.name), given)


async def _call(
    here: CoarseActivity, tool: ActedTool, number: int, given: Mapping[str, Any]
) -> Any:
    arrived = ActedCall(tool, given, activity.payload_converter())
    calling = _Calling(tool)

    async def once() -> Any:
        rule = here.rules.rule_for(tool.name) or tool.rule
        if rule is None:
            return ActReplies().refused(not_declared(tool.name), "")
        if rule.gated:
            reason = (
                f"a person has to approve {tool.name!r}, and nobody is asked inside an activity"
            )
            return ActReplies().refused(ApprovalMissing(f"{reason}: nothing was called"), "")
        here.rules.check_compensator(tool.name, rule, tool.signature.parameters)
        try:
            call = ToolCall(activity.info().activity_type, tool.name, arrived.requested, rule)
        except InvalidArguments as err:
            return ActReplies().refused(err, "")
        header = await here.header_of(tool.name, number, digest=call.requested_digest)
        foreign = ForeignTool(tool.name, rule, None, activity.payload_converter())
        ruled = RuledCall(call, rule, arrived, foreign, undoes=_nothing, planned=True)
        guarded_call = GuardedCall(ruled, header, adopted=here.adopted)
        try:
            ended = await attempt(here.ledger, guarded_call, calling.invoke, ())
        except ApplicationError:
            if calling.interrupt is None:
                raise
            return calling.interrupt
        return calling.interrupt or ended

    ended = await here.call(once)
    if isinstance(ended, NoResult):
        FailureReplies().tell(ended.reply)
    if isinstance(ended, BaseException):
        raise ended
    return arrived.result(ended)


def _nothing(undone: Action) -> NoReturn:
    raise DefinitionError(f"what a coarse activity calls undoes nothing, so not {undone.key}")


class _Calling:
    """Calls a tool; an interrupt hands its row back, and reaches the framework."""

    def __init__(self, tool: ActedTool) -> None:
        self._tool = tool
        self.interrupt: Exception | None = None

    async def invoke(self, args: Sequence[Any]) -> Any:
        try:
            return await self._tool(args[0])
        except Exception as err:
            if not _is_interrupt(err):
                raise
            self.interrupt = err
            raise Interrupted("the tool waits for an answer, and is called again") from err


def _is_interrupt(error: BaseException) -> bool:
    return _INTERRUPTS in {(one.__module__, one.__name__) for one in type(error).__mro__}


def _current(tool: str) -> CoarseActivity:
    here = current_activity()
    if here is None:
        raise NoCurrentCall(
            f"{tool} is called by `act` or `guarded` outside of a coarse activity: name the "
            "activity's type in `LedgerPlugin(coarse=[...])`, on the worker that runs it"
        )
    return here


def _name_of(function: Callable[..., Any]) -> str:
    defined = activity._Definition.from_callable(function)
    if defined is not None and defined.name is not None:
        return defined.name
    return function.__name__

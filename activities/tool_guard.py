"""Tools under the guard: their activity, their arguments, their replies.

An activity of a tool takes the model's arguments as one JSON object, so the Temporal UI shows
what the model asked for, and returns a `Reply`.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from temporalio import activity
from temporalio.common import RawValue

from ..canonical import parse
from ..errors import ActionError, IdempotencyKeyConflict
from ..ledger import Action, ActionRequest, Effect, Outcome
from ..ledger.codec import encode_error, encode_result
from . import replies
from .guard import current_call
from .origin import Origin
from .replies import Reply
from .tool import Tool
from .wire import pack, pack_text, raw_text


class GuardedTool:
    """A tool as the guard sees it (`guard.Guarded`)."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool

    @property
    def name(self) -> str:
        """See `Guarded`."""
        return self._tool.name

    @property
    def effect(self) -> Effect:
        """See `Guarded`."""
        return self._tool.effect

    def prepare(self, args: Sequence[Any], origin: Origin) -> ActionRequest:
        """See `Guarded`."""
        effective = self._tool.effective(parse(raw_text(args[0])))
        return ActionRequest(
            run_key=origin.run_key,
            position=origin.position,
            tool=self._tool.name,
            args=effective,
            effect=self._tool.effect,
            requested_digest=origin.requested_digest,
            effective_digest=self._tool.sameness(effective),
            domain_key=self._tool.domain_key(effective),
            key_ttl=self._tool.key_ttl,
        )

    def stored_args(self, request_args: str) -> Sequence[Any]:
        """See `Guarded`."""
        return [pack_text(request_args)]

    def encode(self, value: Any) -> Outcome:
        """See `Guarded`."""
        return encode_result(self._tool.name, value, self._tool.returns)

    def reply_done(self, key: str, outcome: Outcome, duplicate_of: str | None) -> RawValue:
        """See `Guarded`."""
        return _pack(replies.done(key or None, outcome, duplicate_of=duplicate_of))

    def reply_raised(self, error: BaseException) -> RawValue:
        """See `Guarded`: a READ that failed has had no effect."""
        return _pack(replies.done(None, encode_error(error, effect_possible=False)))

    def reply_unknown(self, action: Action) -> RawValue:
        """See `Guarded`."""
        return _pack(replies.unknown(action))

    def reply_refused(self, error: ActionError | IdempotencyKeyConflict, key: str) -> RawValue:
        """See `Guarded`."""
        return _pack(replies.refused(error, key=key or None))


def tool_activity(tool: Tool, threads: Executor) -> Callable[[RawValue], Any]:
    """Return the activity of a tool; plain functions run on ``threads``.

    It only ever runs under the guard, which gives it the *stored* arguments.
    """

    @activity.defn(name=tool.name)
    async def run(arguments: RawValue) -> Any:
        bound = tool.bind(raw_text(arguments), current_call.get())
        if tool.is_async:
            return await tool.fn(**bound)
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(threads, lambda: context.run(_call, tool, bound))

    return run


def _call(tool: Tool, bound: dict[str, Any]) -> Any:
    try:
        return tool.fn(**bound)
    except StopIteration as err:
        # No future can hold one (the attempt would hang), and no coroutine can raise one.
        raise RuntimeError(f"{tool.name} raised StopIteration") from err


def _pack(reply: Reply) -> RawValue:
    return pack(reply)

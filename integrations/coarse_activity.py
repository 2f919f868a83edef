"""`CoarseActivity`: one attempt at an activity that makes several calls, as a node of LangGraph.

Each call has a row of its own. Its position is the activity's, the tool and a counter: the calls
that were done before a worker died are read back when the activity runs again.

A framework may catch what its tools raise, and tell a model that the call failed. So what ends the
attempt is kept here, and ends it whatever the activity returns.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from temporalio.exceptions import ApplicationError

from ..activities.contract.action_header import ActionHeader
from ..activities.contract.activity_failure import as_failure
from ..errors import CommitlineError
from ..identity import Position
from ..ledger import ActionLedger
from .rules import Rules

T = TypeVar("T")


class CoarseActivity:
    """One attempt at an activity, and the calls that it makes.

    Args:
        rules: Of tools whose code is not the application's.
        ledger: Where the calls are claimed and recorded.
        header: Returns which activity of which run it is; asked once, by the first call.
        adopted: It was scheduled without the plugin, so an earlier attempt may have called.
    """

    def __init__(
        self,
        rules: Rules,
        ledger: ActionLedger,
        header: Callable[[], Awaitable[ActionHeader]],
        *,
        adopted: bool,
    ) -> None:
        self.rules = rules
        self.ledger = ledger
        self.adopted = adopted
        self.loop = asyncio.get_running_loop()
        self._ask_header = header
        self._header: asyncio.Task[ActionHeader] | None = None
        self._counters: Counter[str] = Counter()
        self._calling: set[asyncio.Task[Any]] = set()
        self._ends_with: ApplicationError | None = None

    def next_number(self, tool: str) -> int:
        """Return which call of a tool the next one is, from 0; in the order of the calls."""
        number = self._counters[tool]
        self._counters[tool] += 1
        return number

    async def header_of(self, tool: str, number: int, *, digest: str) -> ActionHeader:
        """Return the header of a call.

        Raises:
            CommitlineError: The run is not known.
        """
        if self._header is None:
            self._header = asyncio.ensure_future(self._ask_header())
        mine = await asyncio.shield(self._header)
        return ActionHeader(mine.run_key, Position(f"{mine.position}.{tool}#{number}"), digest)

    async def call(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Make a call; what it raises ends the activity's attempt.

        Raises:
            ApplicationError: The attempt ends: by this call, or by an earlier one.
        """
        if self._ends_with is not None:
            raise self._ends_with
        task = asyncio.current_task()
        assert task is not None, "calls are made in coroutines"
        self._calling.add(task)
        try:
            return await attempt()
        except ApplicationError as err:
            self._ends_with = self._ends_with or err
            raise
        except CommitlineError as err:
            failure = as_failure(err)
            self._ends_with = self._ends_with or failure
            raise failure from err
        finally:
            self._calling.discard(task)

    async def run(self, activity: Callable[[], Awaitable[T]]) -> T:
        """Run the activity; return what it returns.

        Raises:
            ApplicationError: A call of it ended the attempt.
        """
        token = _current.set(self)
        try:
            result = await activity()
        except Exception as err:
            await self._end_calls()
            if self._ends_with is not None and err is not self._ends_with:
                raise self._ends_with from err
            if isinstance(err, CommitlineError):
                raise as_failure(err) from err
            raise
        finally:
            await self._end_calls()
            _current.reset(token)
        if self._ends_with is not None:
            raise self._ends_with
        return result

    async def _end_calls(self) -> None:
        """Stop the calls that the activity left behind: no attempt goes on unseen."""
        left = {one for one in self._calling if one is not asyncio.current_task()}
        for one in left:
            one.cancel()
        await asyncio.gather(*left, return_exceptions=True)


_current: ContextVar[CoarseActivity] = ContextVar("commitline_coarse_activity")


def current_activity() -> CoarseActivity | None:
    """Return the coarse activity that the running code belongs to; None outside of one."""
    return _current.get(None)

"""What a client and its handles work with: Temporal, the ledger, the settings, who may decide."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Final

from temporalio.client import Client, WorkflowHandle
from temporalio.common import RawValue

from ..config import Settings
from ..errors import NotAuthorized
from ..ledger import ActionLedger, ledger_pool
from ..ledger.pool import Pool
from .intervention import Authorize, Intervention

_CORE_LETS_GO_SECONDS: Final = 0.05
"""Of 30 processes that paused so long none aborted; of 25 that did not, seven did."""


class Connection:
    """The Temporal client and the ledger's pool of one `AgentClient`, for all its handles.

    Args:
        temporal: A connected client.
        settings: Where the ledger is, and the task queue.
        authorize: Who may do what; None allows everybody.
    """

    def __init__(
        self, temporal: Client, settings: Settings, *, authorize: Authorize | None = None
    ) -> None:
        self.temporal: Final = temporal
        self.settings: Final = settings
        self._authorize = authorize
        self._pool: Pool | None = None
        self._closed = False

    async def close(self) -> None:
        """Give the ledger's connections back. A second call does nothing, and takes no time."""
        if self._pool is not None:
            await self._pool.close()
            self._pool = None
        if self._closed:
            return
        self._closed = True
        # With temporalio 1.35 a process that ends right after a request aborts now and then
        # (PyGILState_Release, exit status 134): threads of the SDK's core still let go of the
        # answer. Nothing tells when they have: the SDK neither joins them nor hands them out.
        # Remove when it does.
        await asyncio.sleep(_CORE_LETS_GO_SECONDS)

    async def ledger(self) -> ActionLedger:
        """Return the ledger; connects on first use.

        Raises:
            ConfigurationError: No database is configured.
        """
        if self._pool is None:
            self._closed = False
            self._pool = ledger_pool(
                self.settings.require_database(),
                size=self.settings.pool_size,
                prepared_statements=self.settings.prepared_statements,
            )
        await self._pool.open()  # nothing, if it is open
        return ActionLedger(self._pool, statement_seconds=self.settings.statement_seconds)

    @property
    def authorizes(self) -> bool:
        """Whether the application says who may do what."""
        return self._authorize is not None

    async def check_authorized(self, by: str, what: Intervention) -> None:
        """Raise where a person may not do something.

        Raises:
            NotAuthorized: The client's ``authorize`` says no.
        """
        if self._authorize is None:
            return
        allowed = self._authorize(by, what)
        if inspect.isawaitable(allowed):
            allowed = await allowed
        if not allowed:
            raise NotAuthorized(f"{by!r} may not {what.verb} {what.target}")

    def workflow(self, id: str, *, run_id: str | None = None) -> WorkflowHandle[Any, Any]:
        """Return the handle of a workflow of ours: its newest execution, or the one named."""
        return self.temporal.get_workflow_handle(id, run_id=run_id, result_type=RawValue)

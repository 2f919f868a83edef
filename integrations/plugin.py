"""`LedgerPlugin`: the ledger for agents that other frameworks run on Temporal, by one line.

    client = await Client.connect(address, plugins=[OpenAIAgentsPlugin(...), LedgerPlugin()])

It goes last: then it sees the activities that other plugins add, and only the function is inside
the guard.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Final, Literal

from temporalio.client import ClientConfig, WorkflowHistory
from temporalio.plugin import SimplePlugin
from temporalio.worker import (
    ActivityInboundInterceptor,
    Interceptor,
    Replayer,
    Worker,
    WorkerConfig,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowReplayResult,
    WorkflowRunner,
)
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from ..activities.guard.interceptor import GuardInterceptor
from ..activities.guard.worker_metrics import WorkerMetrics
from ..config import Settings
from ..errors import ConfigurationError
from ..identity import PLUGIN_MARK
from ..ledger import ActionLedger, check_schema, ledger_pool
from ..metrics import reporting_to
from ..traces import begin as begin_traces
from ..traces import tracing_by
from ..workflows import ActionHeaders, SettleAction, UndoRun
from .activity_interceptor import GuardsActivities
from .call_activities import CallActivities
from .effect_rule import EffectRule
from .mcp import MCPEffects
from .own_workflows import OWN_WORKFLOWS, OwnWorkflows
from .rules import Rules
from .workflow_interceptor import FollowsCalls

_PASSED_THROUGH: Final = ("commitline", "psycopg", "psycopg_pool", "structlog", "pydantic_core")
"""Modules that the sandbox of workflows does not load anew: the plugin does no I/O there."""


class LedgerPlugin(SimplePlugin):
    """One effect for each call of a guarded tool, whatever happens to its workers.

    Args:
        database_url: Of the ledger; by default ``COMMITLINE_DATABASE_URL``.
        effects: The rules of tools whose code is not yours, by the tool's name.
        mcp: What the calls of MCP servers do, by the server's name; see `mcp_effects`.
        coarse: The types of activities that make several calls, each by `act` or a tool that is
            `guarded`: ``["clerk.*"]`` for the nodes of a graph of LangGraph. What else they do is
            done again when they run again.
        models: The types of activities that request a model and do nothing else, beside those of
            the frameworks: ``["clerk.model"]`` for such a node.
        record_models: Whether completions of models are recorded by their position, so that a
            reset and a retry of the workflow read them back.
        heartbeat: How soon a dead worker is noticed, for calls whose workflow sets no heartbeat.

    Raises:
        ConfigurationError: There is no database.
    """

    def __init__(
        self,
        database_url: str | None = None,
        *,
        effects: Mapping[str, EffectRule] | None = None,
        mcp: Mapping[str, MCPEffects] | None = None,
        coarse: Collection[str] = (),
        models: Collection[str] = (),
        record_models: bool = True,
        heartbeat: timedelta = timedelta(seconds=3),
    ) -> None:
        self._settings = Settings.load()
        self._database_url = database_url or self._settings.require_database()
        self._rules = Rules(effects or {}, mcp, coarse, models)
        self._opened = _OpenLedger(self._database_url, self._settings)
        self._interceptor = _Interceptor(
            self._rules, self._opened, heartbeat, record_models=record_models
        )
        settings = self._settings.model_copy(update={"database_url": self._database_url})
        self._own_workflows = OwnWorkflows(self._rules, self._opened.ledger, settings)
        self._call_activities = CallActivities(self._rules, self._opened.ledger)
        super().__init__(
            "commitline.LedgerPlugin",
            interceptors=[ActionHeaders(frozenset()), self._interceptor],
            workflow_runner=_passing_through,
        )

    def configure_client(self, config: ClientConfig) -> ClientConfig:
        """See base class.

        Raises:
            ConfigurationError: It is there twice, or not last.
        """
        plugins = list(config.get("plugins") or [])
        mine = [at for at, one in enumerate(plugins) if isinstance(one, LedgerPlugin)]
        if len(mine) > 1:
            raise ConfigurationError("LedgerPlugin is there twice: name it once, as the last one")
        if mine and mine[0] != len(plugins) - 1:
            after = ", ".join(one.name() for one in plugins[mine[0] + 1 :])
            raise ConfigurationError(f"LedgerPlugin is followed by {after}: name it last")
        self._rules.tell_for([one.name() for one in plugins])
        return super().configure_client(config)

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """See base class.

        Raises:
            ConfigurationError: Another `LedgerPlugin` guards the worker already.
        """
        given = config.get("interceptors") or ()
        if any(isinstance(one, _Interceptor) and one is not self._interceptor for one in given):
            raise ConfigurationError("LedgerPlugin is there twice: name it once, on the client")
        config = super().configure_worker(config)
        client = config.get("client")
        assert client is not None, "a worker has one"
        identity = config.get("identity") or client.identity
        config["identity"] = f"{identity.removesuffix(PLUGIN_MARK)}{PLUGIN_MARK}"
        ours = UndoRun in (config.get("workflows") or ())  # a worker of Commitline's own
        if _has(config, "activities"):
            added = [] if ours else [*self._own_workflows.activities]
            theirs = config.get("activities") or ()
            config["activities"] = [*theirs, *self._call_activities.all, *added]
        if _has(config, "workflows") and not ours:
            config["workflows"] = [*(config.get("workflows") or ()), *OWN_WORKFLOWS]
        return config

    @asynccontextmanager
    async def run_replayer(
        self,
        replayer: Replayer,
        histories: AsyncIterator[WorkflowHistory],
        next: Callable[
            [Replayer, AsyncIterator[WorkflowHistory]],
            AbstractAsyncContextManager[AsyncIterator[WorkflowReplayResult]],
        ],
    ) -> AsyncIterator[AsyncIterator[WorkflowReplayResult]]:
        """See base class. A replay needs no database."""
        self._rules.tell_for([one.name() for one in replayer.plugins])
        async with next(replayer, histories) as results:
            yield results

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:
        """See base class. All plugins have added their activities by now.

        Raises:
            DefinitionError: An activity has no rule.
            SchemaMismatch: The database needs `commitline migrate` first.
        """
        config = worker.config(active_config=True)
        activities = config.get("activities") or ()
        self._rules.add(activities)
        metrics = WorkerMetrics.of(worker.client, worker.task_queue)
        if metrics is not None:
            metrics.begin(tools=self._rules.callable_tools)
        async with self._opened.while_running(), AsyncExitStack() as stack:
            stack.enter_context(reporting_to(metrics))  # its tasks inherit it
            stack.enter_context(tracing_by(begin_traces(self._settings.traces)))
            if activities and SettleAction in (config.get("workflows") or ()):
                relaying = self._own_workflows.relaying(worker.client, worker.task_queue)
                await stack.enter_async_context(relaying)
            await next(worker)


class _Interceptor(Interceptor):
    def __init__(
        self, rules: Rules, opened: _OpenLedger, heartbeat: timedelta, *, record_models: bool
    ) -> None:
        self._rules = rules
        self._record_models = record_models
        self._opened = opened
        self._heartbeat = heartbeat

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        ledger = self._opened.ledger
        # Of our own workflows' activities: what they raise has an end.
        ours = GuardInterceptor(ledger(), {}).intercept_activity(next)
        return GuardsActivities(ours, self._rules, ledger)

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor]:
        known, beat, records = self._rules, self._heartbeat, self._record_models

        class Following(FollowsCalls):
            rules = known
            heartbeat = beat
            records_models = records

        return Following


class _OpenLedger:
    """The ledger's pool, open while a worker of the client runs.

    One plugin serves every worker of its client, each of which enters `while_running`.
    """

    def __init__(self, database_url: str, settings: Settings) -> None:
        self._database_url = database_url
        self._settings = settings
        self._running = 0
        self._changing = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._ledger: ActionLedger | None = None

    def ledger(self) -> ActionLedger:
        assert self._ledger is not None, "an activity runs in a worker that runs"
        return self._ledger

    @asynccontextmanager
    async def while_running(self) -> AsyncIterator[None]:
        """Have it open; the last worker closes it.

        Raises:
            SchemaMismatch: The database needs `commitline migrate` first.
        """
        async with self._changing:
            if not self._running:
                await self._open()
            self._running += 1
        try:
            yield
        finally:
            async with self._changing:
                self._running -= 1
                if not self._running:
                    self._ledger = None
                    await self._stack.aclose()

    async def _open(self) -> None:
        settings = self._settings
        await check_schema(self._database_url)
        pool = await self._stack.enter_async_context(
            ledger_pool(
                self._database_url,
                size=settings.pool_size,
                prepared_statements=settings.prepared_statements,
            )
        )
        self._ledger = ActionLedger(pool, statement_seconds=settings.statement_seconds)


def _has(config: WorkerConfig, what: Literal["activities", "workflows"]) -> bool:
    """Whether a worker has some, or gets some by plugins of its own.

    A worker of workflows alone must not poll for activities, which it could not run; and so on.
    """
    later = (one for one in config.get("plugins") or () if not isinstance(one, LedgerPlugin))
    return bool(config.get(what)) or any(getattr(one, what, None) for one in later)


def _passing_through(runner: WorkflowRunner | None) -> WorkflowRunner:
    """Return the runner with our modules passed through its sandbox, if it has one."""
    if isinstance(runner, SandboxedWorkflowRunner):
        restrictions = runner.restrictions.with_passthrough_modules(*_PASSED_THROUGH)
        return SandboxedWorkflowRunner(restrictions=restrictions, runner_class=runner.runner_class)
    return runner or SandboxedWorkflowRunner()

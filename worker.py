"""The worker: wires an app to a Temporal worker, and runs it until it gets a signal.

Three ways to start it: ``commitline worker shop.app:app``, ``python -m commitline.worker
shop.app:app`` and, in a checkout, ``python worker.py shop.app:app``.

This module reads from the outside to the inside: the process (`main`), what it connects to
(`run_worker`), the worker of one app (`app_worker`), and what that worker can do.

On SIGTERM or SIGINT the worker takes nothing new, and finishes what it has begun within the
grace period. What is not finished by then another worker takes over, under the same key.
"""

if __name__ == "__main__":
    # Run as a file this is no package, and the relative imports below would fail. So the
    # installed module takes over here. It is named by a string since, in a clone whose folder is
    # called `commitline`, a linter takes an import statement for a module that imports itself.
    from importlib import import_module

    import_module("commitline.worker").main()

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any, Final

from temporalio.client import Client
from temporalio.worker import Interceptor, Worker

from .activities.app.action_state_tool import ACTION_STATE, action_state
from .activities.app.app import App, Hook
from .activities.app.load import load_app
from .activities.app.temporal_options import temporal_options
from .activities.guard.guarded_tool import GuardedTool, tool_activity
from .activities.guard.interceptor import GuardInterceptor
from .activities.guard.protocols import Guarded
from .activities.guard.worker_metrics import WorkerMetrics
from .activities.runner.bounded_call import Raised, Returned, call_within
from .activities.runner.tool_runner import ToolRunner
from .activities.runs.action_state import action_state_activity
from .activities.runs.approvals import ApprovalActivities
from .activities.runs.due_actions import DueActions
from .activities.runs.gone_runs import GoneRuns
from .activities.runs.intent_check import IntentCheck
from .activities.runs.left_runs import LeftRuns
from .activities.runs.left_undos import LeftUndos
from .activities.runs.missing_runs import MissingRuns
from .activities.runs.outcomes import OutcomeActivities
from .activities.runs.plan import PlanActivities
from .activities.runs.questions import QuestionActivities
from .activities.runs.relay_triggers import relaying
from .activities.runs.run import RunActivities
from .activities.runs.served import unserved_tool
from .activities.runs.settlement import SettlementActivities
from .activities.runs.sub_agents import SubAgentActivities
from .activities.runs.turn import TurnActivities
from .activities.runs.undo import UndoActivities
from .config import Settings, check_namespace, connect_temporal, with_core_runtime
from .deployment import served_workflows, version_options
from .errors import CommitlineError
from .health import WorkerHealth, serving_health, worker_health
from .ledger import (
    ActionLedger,
    check_schema,
    commits_at_risk,
    ledger_pool,
    migrate,
    missing_grants,
)
from .log_output import configure_logging, log_uncaught
from .logs import Log
from .metrics import reporting_to
from .process import UnawaitedThreads, leave, on_stop_signal, run_event_loop
from .redaction import redacting
from .traces import Traces, flush, tracing_by, with_context_plugin
from .traces import begin as begin_traces
from .workflows import ActionHeaders, RunSpans

log = Log()

STICKY_SECONDS: Final = 1.0
"""How long a workflow task waits for a worker that is gone. The SDK's default of 10 s is most
of a recovery; a second costs a rebuilt workflow now and then."""


# --- the process


def main() -> None:
    """Be the process: ``python -m commitline.worker module:attribute [--migrate]``."""
    parser = argparse.ArgumentParser(prog="commitline.worker", description="Run a worker.")
    parser.add_argument(
        "app", nargs="?", default="", help="module:attribute of the App; COMMITLINE_APP without it"
    )
    parser.add_argument("--migrate", action="store_true", help="migrate the database first")
    given = parser.parse_args()
    leave(serve(given.app, migrate_first=given.migrate))


def serve(app_name: str, *, migrate_first: bool = False) -> int:
    """Run a worker as this process's only work; return the process's exit status.

    All that the process writes to stderr are events, also why the worker could not start.
    """
    configure_logging()
    log_uncaught()
    try:
        run_event_loop(run_worker(app_name, migrate_first=migrate_first))
    except CommitlineError as err:
        log.error("worker.failed", code=err.code, reason=str(err))
        return 1
    except Exception as err:
        log.error("worker.failed", code="", reason=type(err).__name__, exc_info=err)
        return 1
    return 0


async def run_worker(app_name: str, *, migrate_first: bool = False) -> None:
    """Run a worker for ``module:attribute`` until SIGTERM or SIGINT.

    Args:
        app_name: The app; empty is the one that COMMITLINE_APP names.
        migrate_first: Migrate the database before.

    Raises:
        ConfigurationError: No such app, no database, no Temporal server, no such namespace.
        SchemaMismatch: The database needs `commitline migrate` first.
        StatementRefused: The role may not read which schema the database has.
    """
    settings = Settings.load()
    database_url = settings.require_database()
    app_name = app_name or settings.require_app()
    app = load_app(app_name)
    if migrate_first:
        await migrate(database_url, tell=lambda by: log.warning("migration.held_back", by=by))
    await check_schema(database_url)
    if grants := await missing_grants(database_url):
        log.error("ledger.grants_missing", grants=grants)
    if risks := await commits_at_risk(database_url):
        log.warning("ledger.commits_at_risk", risks=risks)
    options = with_context_plugin(await temporal_options(app.temporal), settings.traces)
    client = await connect_temporal(with_core_runtime(options, settings.metrics_address))
    await check_namespace(client)
    asyncio.get_running_loop().set_default_executor(UnawaitedThreads())
    async with ledger_pool(
        database_url, size=settings.pool_size, prepared_statements=settings.prepared_statements
    ) as pool:
        ledger = ActionLedger(pool, statement_seconds=settings.statement_seconds)
        health = worker_health(client, settings.task_queue, pool)
        async with (
            serving_health(settings.health_address, health),
            app_worker(app, client=client, ledger=ledger, settings=settings),
        ):
            await _until_stopped(app, app_name, settings, health)
    if settings.traces != "off":
        await asyncio.to_thread(flush)
    log.info("worker.stopped")


async def _until_stopped(app: App, app_name: str, settings: Settings, health: WorkerHealth) -> None:
    """Wait for the signal that ends a worker which has started."""
    # Not before: until there is something to finish, a signal ends the process.
    stop_signal = on_stop_signal()
    health.serves()
    log.info(
        "worker.started",
        app=app_name,
        task_queue=settings.task_queue,
        agents=[agent.name for agent in app.served],
        tools=[found.name for found in app.tools],
        pid=os.getpid(),
    )
    await stop_signal.wait()
    health.drains()
    log.info("worker.stopping", grace_seconds=settings.grace_seconds)


# --- the worker of one app


@asynccontextmanager
async def app_worker(
    app: App,
    *,
    client: Client,
    ledger: ActionLedger,
    settings: Settings,
    max_cached_workflows: int = 1000,
) -> AsyncIterator[Worker]:
    """Run a worker for an app while the body runs; then let it finish what it has begun.

    Args:
        app: Its tools become activity types of their names.
        client: Connected to the cluster; any data converter.
        ledger: Over an open pool.
        settings: Task queue, heartbeat, grace period, concurrency.
        max_cached_workflows: 0 rebuilds every workflow on every task (for tests).
    """
    async with _running(app, settings) as runner:
        guarded, traces = _guarded(app, runner), begin_traces(settings.traces)
        due_actions = DueActions(app, ledger, client, task_queue=settings.task_queue)
        gone_runs = _gone_runs(app, ledger, client, settings)
        worker = Worker(
            client,
            task_queue=settings.task_queue,
            workflows=served_workflows(settings),
            activities=[
                *_run_activities(app, ledger, settings),
                *due_actions.all,
                *gone_runs.all,
                *_settlements(app, ledger, client, settings).all,
                *_tool_activities(app, ledger, runner),
            ],
            interceptors=_interceptors(ledger, guarded, traces),
            max_cached_workflows=max_cached_workflows,
            max_concurrent_activities=settings.max_concurrent_activities,
            max_concurrent_local_activities=settings.max_concurrent_activities,
            **version_options(settings),
            graceful_shutdown_timeout=settings.grace,
            sticky_queue_schedule_to_start_timeout=timedelta(seconds=STICKY_SECONDS),
        )
        metrics = reporting_to(_metrics(app, client, guarded, settings))
        looking = relaying(due_actions, gone_runs, ledger, settings, namespace=client.namespace)
        with metrics, tracing_by(traces):
            async with worker, looking:
                yield worker


def _interceptors(
    ledger: ActionLedger, guarded: Mapping[str, Guarded], traces: Traces | None
) -> list[Interceptor]:
    given: list[Interceptor] = [
        ActionHeaders(frozenset(guarded)),
        GuardInterceptor(ledger, guarded),
    ]
    return given if traces is None else [*given, RunSpans()]


def _metrics(
    app: App, client: Client, guarded: Mapping[str, Guarded], settings: Settings
) -> WorkerMetrics | None:
    """Return where the worker's metrics go, with each counter at zero; None is nowhere."""
    metrics = WorkerMetrics.of(client, settings.task_queue)
    if metrics is not None:
        declared = [agent.model for agent in app.served]
        models = {one if isinstance(one, str) else one.name for one in declared}
        metrics.begin(tools=guarded, models=models)
    return metrics


def _guarded(app: App, runner: ToolRunner) -> dict[str, Guarded]:
    """Return what the guard needs of each tool that it calls, by the tool's name."""
    tools = app.tools if _has_own_action_state(app) else [*app.tools, action_state]
    return {found.name: GuardedTool(found, runner) for found in tools}


def _settlements(
    app: App, ledger: ActionLedger, client: Client, settings: Settings
) -> SettlementActivities:
    return SettlementActivities(
        app,
        ledger,
        client,
        tries=settings.relay_tries,
        heartbeat_seconds=settings.heartbeat_seconds,
        intents=IntentCheck(app, ledger),
    )


def _gone_runs(app: App, ledger: ActionLedger, client: Client, settings: Settings) -> GoneRuns:
    left = LeftRuns(app, ledger, client, task_queue=settings.task_queue)
    undos = LeftUndos(app, ledger, client, task_queue=settings.task_queue)
    missing = MissingRuns(ledger, client, task_queue=settings.task_queue)
    tools = [made.name for made in app.tools]
    return GoneRuns(ledger, client, left, undos, missing, tools=tools)


def _tool_activities(
    app: App, ledger: ActionLedger, runner: ToolRunner
) -> list[Callable[..., Any]]:
    """Return an activity per tool, our own tool, and one for every tool that is not served."""
    own = [] if _has_own_action_state(app) else [action_state_activity(ledger)]
    return [*(tool_activity(found, runner) for found in app.tools), *own, unserved_tool]


def _has_own_action_state(app: App) -> bool:
    """Whether the application has a tool of that name; then none of its agents uses ours."""
    return any(found.name == ACTION_STATE for found in app.tools)


def _run_activities(app: App, ledger: ActionLedger, settings: Settings) -> list[Callable[..., Any]]:
    """Return the activities by which runs use the ledger and the model."""
    heartbeat_seconds, result_limit = settings.heartbeat_seconds, settings.result_limit
    runs = RunActivities(
        app,
        ledger,
        ledger.threads,
        heartbeat_seconds=heartbeat_seconds,
        result_limit=result_limit,
    )
    plans = PlanActivities(
        app, ledger, heartbeat_seconds=heartbeat_seconds, result_limit=result_limit
    )
    return [
        *runs.all,
        *plans.all,
        *OutcomeActivities(ledger).all,
        *TurnActivities(app, ledger, ledger.threads).all,
        *ApprovalActivities(app, ledger, ledger.approvals).all,
        *UndoActivities(app, ledger.undo, heartbeat_seconds=heartbeat_seconds).all,
        *SubAgentActivities(ledger).all,
        *QuestionActivities(ledger.questions).all,
    ]


# --- the app's own start and stop


@asynccontextmanager
async def _running(app: App, settings: Settings) -> AsyncIterator[ToolRunner]:
    """Call the app's ``on_start``, and after the body its ``on_stop``; run its tools meanwhile."""
    async with AsyncExitStack() as stack:
        stack.enter_context(redacting(app.redact))
        stack.push_async_callback(app.aclose)
        runner = stack.enter_context(ToolRunner())
        if app.on_stop is not None:
            stack.push_async_callback(_call_on_stop, runner, app.on_stop, settings.grace_seconds)
        if app.on_start is not None:
            await runner.run_async("on_start", app.on_start)
        yield runner


async def _call_on_stop(runner: ToolRunner, hook: Hook, seconds: float) -> None:
    """Call ``on_stop``; a hook that takes longer does not keep the worker from stopping."""

    async def ignore(end: Returned | Raised) -> None:
        log.info("worker.stop_hook_ended_late")

    end = await call_within(seconds, runner.run_async("on_stop", hook), on_late=ignore)
    if not isinstance(end.how, Returned):
        error = type(end.how.error).__name__ if isinstance(end.how, Raised) else "no end"
        log.error("worker.stop_hook_failed", error=error)

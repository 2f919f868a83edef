"""`AgentClient`: what application code uses to start runs, and to find them again.

async with await AgentClient.connect() as client:
    run = await client.start("support", "Charge order 4821.", id="support-4821")
    print((await run.result()).output)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from temporalio.client import Client
from temporalio.common import RetryPolicy

from .activities.app.app import App
from .activities.app.plan import Plan
from .activities.app.temporal_options import temporal_options
from .activities.contract.deadlines import UNSET, Deadline, RunLimits
from .canonical import storable
from .config import Settings, connect_temporal
from .errors import InvalidRunId, ReopenRefused, SettlementRefused
from .handles.connection import Connection
from .handles.intervention import Authorize, about_call
from .handles.plan import PlanHandle
from .handles.start import start_on_thread, start_options, start_or_join
from .handles.thread import RunHandle, ThreadHandle
from .identity import ActionKey, RunKey, check_run_id, first_execution, thread_workflow
from .ledger import Action, ActionLedger, Outcome, Request
from .workflows import PlanInput, RunInput, RunResult


class AgentClient:
    """Starts runs and finds them again.

    Args:
        temporal: A connected client; any data converter and codec.
        settings: Where the ledger is, and the task queue.
        authorize: Who may do what: called with the person, and the `Intervention` that says
            what would be carried out; False, or what it raises, refuses. By default everybody
            may.
    """

    def __init__(
        self, temporal: Client, settings: Settings, *, authorize: Authorize | None = None
    ) -> None:
        self._connection = Connection(temporal, settings, authorize=authorize)

    @classmethod
    async def connect(
        cls,
        settings: Settings | None = None,
        *,
        app: App | None = None,
        authorize: Authorize | None = None,
    ) -> Self:
        """Connect as the environment says, else to ``commitline dev``.

        Args:
            settings: By default those of the environment.
            app: The workers' app: its ``temporal`` describes the client. By default the
                environment alone does, and no codec is there.
            authorize: As `AgentClient` takes it.

        Raises:
            ConfigurationError: A setting is unusable, or no Temporal server answers.
        """
        settings = settings or Settings.load()
        options = await temporal_options(None if app is None else app.temporal)
        return cls(await connect_temporal(options), settings, authorize=authorize)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give the ledger's connections back; runs go on. A second call changes nothing.

        A script that ends without it may abort at its exit, after all its work (`process.leave`).
        """
        await self._connection.close()

    @property
    def temporal(self) -> Client:
        """The Temporal client that it was made with."""
        return self._connection.temporal

    @property
    def task_queue(self) -> str:
        """The queue of the workers that serve its runs."""
        return self._connection.settings.task_queue

    async def ledger(self) -> ActionLedger:
        """Return the ledger; connects on first use.

        Raises:
            ConfigurationError: No database is configured.
        """
        return await self._connection.ledger()

    async def start(
        self,
        agent: str,
        prompt: str,
        *,
        id: str | None = None,
        thread: str | None = None,
        request_id: str | None = None,
        retry_policy: RetryPolicy | None = None,
        tool_timeout: Deadline = UNSET,
        node_timeout: Deadline = UNSET,
        model_timeout: Deadline = UNSET,
        run_deadline: Deadline = UNSET,
        tool_timeouts: Mapping[str, Deadline] | None = None,
    ) -> RunHandle:
        """Start a run, or join the one that has this id and the same input. Safe to repeat.

        The ledger is asked before Temporal: a run that it has is never begun again, also after
        Temporal has forgotten it (retention, a deleted history). The handle then has the run's
        actions, can be stopped and undone, and what needs its workflow raises `RunGone`.

        Args:
            agent: An agent's name in the worker's app.
            prompt: What the agent is to do.
            id: The workflow id: choose it from your domain, so that a lost reply can be
                answered by starting again. Either this or ``thread``.
            thread: A conversation to go on with, or to begin: the run is the workflow
                ``thread:<thread>``, one at a time.
            request_id: With ``thread``: makes the start safe to repeat. By default a new one.
            retry_policy: The workflow's. A retry is the same run: it does nothing twice.
            tool_timeout: Seconds, or a ``timedelta``, for one attempt of a tool that sets none
                itself; None, zero and less are no limit, here and below. By default the agent's.
            node_timeout: For a model request or a tool call, each with its retries.
            model_timeout: For one model request.
            run_deadline: For the whole run, its retries and resets included.
            tool_timeouts: ``tool_timeout`` by tool; wins over everything.

        Raises:
            InvalidRunId: The id cannot be a run's.
            RunInputConflict: A run with this id was started with other input.
            ThreadBusy: The conversation has another run under way.
            ThreadDeleted: The conversation was deleted.
            RequestConflict: The request's id was used for another text.
            RunFailed: Temporal refuses it (a prompt over its payload limit).
            LedgerUnavailable: The ledger cannot say whether it has the run. Start it again.
            ConfigurationError: No database is configured, no server answers, or the namespace is
                missing.
        """
        limits = RunLimits(
            tool_timeout=tool_timeout,
            node_timeout=node_timeout,
            model_timeout=model_timeout,
            run_deadline=run_deadline,
            tool_timeouts=tool_timeouts or {},
        )
        kept = RunLimits(**limits.given)
        if thread is not None and id is None:
            received = await self.thread(thread).receive(prompt, agent=agent, request_id=request_id)
            given = RunInput(
                agent=agent, limits=kept, thread_id=thread, request_id=received.request_id
            )
            return await self._start_on_thread(given, received, prompt, retry_policy)
        if id is None or thread is not None or request_id is not None:
            raise InvalidRunId(
                "a run needs either an id, or a thread and perhaps a request_id",
                remedy="Give one of them.",
            )
        given = RunInput(agent=agent, prompt=prompt, limits=kept)
        check_run_id(id)
        options = start_options(given, id=id, task=prompt, task_queue=self.task_queue)
        first = await start_or_join(self._connection, options, given.digest, retry_policy)
        return RunHandle(self._connection, id, first=first)

    async def start_plan(
        self,
        plan: Plan,
        *,
        id: str,
        tool_timeout: Deadline = UNSET,
        node_timeout: Deadline = UNSET,
        run_deadline: Deadline = UNSET,
        tool_timeouts: Mapping[str, Deadline] | None = None,
    ) -> PlanHandle:
        """Start a plan, or join the run that has this id and the same plan. Safe to repeat.

        The ledger is asked before Temporal, as in `start`.
        The worker checks it once more, by the tools that it serves, before anything is called.

        Args:
            plan: Its steps.
            id: The workflow id: choose it from your domain, so that a lost reply can be
                answered by starting again.
            tool_timeout: As `start` takes it, and so are those below.
            node_timeout: For a step's call with its retries.
            run_deadline: For the whole run. When it passes, the run stops, and fails.
            tool_timeouts: ``tool_timeout`` by tool.

        Raises:
            InvalidRunId: The id cannot be a run's.
            RunInputConflict: A run with this id was started with another plan.
            LedgerUnavailable: The ledger cannot say whether it has the run. Start it again.
            ConfigurationError: No database is configured, no server answers, or the namespace is
                missing.
        """
        limits = RunLimits(
            tool_timeout=tool_timeout,
            node_timeout=node_timeout,
            run_deadline=run_deadline,
            tool_timeouts=tool_timeouts or {},
        )
        given = PlanInput(plan.name, plan.stages, RunLimits(**limits.given))
        check_run_id(id)
        names = ", ".join(one.name for stage in plan.stages for one in stage)
        task = f"{plan.name}: {names}"
        options = start_options(given, id=id, task=task, task_queue=self.task_queue)
        first = await start_or_join(self._connection, options, given.digest)
        return PlanHandle(self._connection, id, first=first)

    async def _start_on_thread(
        self, given: RunInput, request: Request, prompt: str, retry_policy: RetryPolicy | None
    ) -> RunHandle:
        assert given.thread_id is not None, "the caller has one"
        workflow_id = thread_workflow(given.thread_id)
        options = start_options(given, id=workflow_id, task=prompt, task_queue=self.task_queue)
        first = await start_on_thread(self._connection, options, given, retry_policy)
        return RunHandle(self._connection, workflow_id, request=request, first=first)

    async def send(
        self, thread: str, text: str, *, agent: str | None = None, request_id: str | None = None
    ) -> RunResult:
        """Say something in a conversation, and wait for the answer.

        Starts a run of the conversation, or joins the one under way, which answers its requests
        one after the other. Safe to repeat with the same ``request_id``, at any time: the request
        counts once, and has one reply. Without a ``request_id`` each call is a new request.

        Args:
            thread: The conversation's id.
            text: What to say; 256 KiB at most.
            agent: Who answers. If a run of another agent is under way, this waits for its end. By
                default the agent of the run under way, else the one that began the conversation.
                A new conversation needs an agent.
            request_id: The caller's, unique within the conversation.

        Raises:
            ThreadNotFound: No such conversation, and no agent was named.
            ThreadDeleted: It was deleted.
            RequestConflict: The request's id was used for another text.
            ConversationTooLarge: The text is too large.
            RunError: The run ended without an answer. The same request, sent again, goes on from
                there: nothing that is done is done again.
            StaleThread: The same, because another run wrote the conversation meanwhile.
        """
        return await self.thread(thread).send(text, agent=agent, request_id=request_id)

    def thread(self, id: str) -> ThreadHandle:
        """Return the handle of a conversation, without asking whether it exists."""
        return ThreadHandle(self._connection, id)

    def run(self, id: str, *, run_key: RunKey | None = None) -> RunHandle:
        """Return the handle of a run by its workflow id, without asking whether it exists.

        Args:
            id: The workflow id; of a conversation, ``thread:<id>``.
            run_key: Of runs that have had this id one after the other, as a conversation's do,
                this one (`Action.run_key`); by default the newest, at each call of the handle.
        """
        first = None if run_key is None else first_execution(run_key)
        return RunHandle(self._connection, id, first=first)

    def plan(self, id: str) -> PlanHandle:
        """Return the handle of a plan's run, without asking whether it exists."""
        return PlanHandle(self._connection, id)

    async def settle(self, key: ActionKey, outcome: Outcome, *, by: str) -> Sequence[Action]:
        """Record a person's word about an unknown action; see `ActionLedger.settle`.

        Safe to repeat: the same word by the same person changes nothing; another is refused.

        Args:
            key: Of the action.
            outcome: What the person found: `Outcome.ok` with what it returned (JSON text), or
                `Outcome.error` with ``effect_possible=False``: it did not happen.
            by: Who says so: the client's ``authorize`` gets it, and the row keeps it. In both a
                ``?`` stands for what Postgres cannot hold (a NUL, half a character).

        Returns:
            The rows that were settled: it, and the calls that were answered with it.

        Raises:
            SettlementRefused: No such action, or it may not be settled, or not now.
            NotAuthorized: This person may not settle it; nothing was changed.
            LedgerUnavailable: No answer within the deadline; settle again.
            ConfigurationError: No database is configured.
        """
        ledger = await self.ledger()
        found = await ledger.get(key)
        if found is None:
            raise SettlementRefused(f"there is no action {key}")
        by = storable(by)  # `authorize` sees the very name that is kept
        wanted = about_call("settle", found, args=found.args, outcome=outcome)
        await self._connection.check_authorized(by, wanted)
        return await ledger.settle(key, outcome, by=by)

    async def reopen(self, key: ActionKey, *, by: str) -> Action:
        """Have an action sent again that waits for a person; see `RelayLedger.reopen`.

        Safe to repeat. It may be of a run, of the outbox, or a detached one.

        Args:
            key: Of the action.
            by: Who says so: the client's ``authorize`` gets it.

        Raises:
            ReopenRefused: No such action, or it may not be sent again, or not now.
            NotAuthorized: This person may not reopen it; nothing was changed.
            LedgerUnavailable: No answer within the deadline; reopen it again.
            ConfigurationError: No database is configured.
        """
        ledger = await self.ledger()
        found = await ledger.get(key)
        if found is None:
            raise ReopenRefused(f"there is no action {key}")
        wanted = about_call("reopen", found, args=found.args)
        await self._connection.check_authorized(storable(by), wanted)
        return await ledger.relay.reopen(key)

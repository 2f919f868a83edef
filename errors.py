"""Every error that Commitline raises, each with a stable code and a remedy.

    CommitlineError               CL000
    ├── Unforeseen                CL001  an activity of ours fails, and nobody foresaw how
    ├── DefinitionError           CL101  a tool, agent or app that cannot work
    │   └── PlanInvalid           CL104  a plan that cannot work
    ├── NoCurrentCall             CL105  commitline.current() outside of a guarded call
    ├── InvalidRunId              CL102  an id that no run may have
    ├── ConfigurationError        CL103  a missing or unusable setting
    │   └── PayloadUnreadable       CL106  what Temporal keeps is encoded by another codec
    ├── LedgerError
    │   ├── PlanDivergence          CL201  another call stands at this position
    │   ├── IdempotencyKeyConflict  CL202  the domain key was used for something else
    │   ├── Fenced                  CL203  a later attempt owns the action
    │   ├── RunNotRunning           CL204  the run may start nothing more
    │   ├── RunInputConflict        CL205  the run exists with other input
    │   ├── LedgerUnavailable       CL206  Postgres did not answer in time
    │   ├── SchemaMismatch          CL207  the database and the code differ in version
    │   ├── MissingActionHeader     CL208  a guarded activity was scheduled without its header
    │   ├── SettlementRefused       CL209  a person may not settle this action, or not now
    │   ├── StaleThread             CL210  another run has written the conversation
    │   ├── ThreadDeleted           CL211  the conversation was deleted
    │   ├── ThreadNotFound          CL212  no such conversation
    │   ├── RequestConflict         CL213  the request id was used for another text
    │   ├── ResetRefused            CL214  the run cannot go back to that turn
    │   ├── ApprovalRefused         CL215  the decision does not count
    │   ├── NotAuthorized           CL216  this person may not decide, answer or settle
    │   ├── UndoRefused             CL217  the run has not ended
    │   ├── ActionNotFound          CL218  the ledger has no such action
    │   ├── ReopenRefused           CL219  the action may not be sent again
    │   ├── Unstorable              CL220  Postgres cannot hold a value, now or later
    │   ├── AnswerRefused           CL236  the answer does not count
    │   ├── SubAgentClosed          CL242  the sub-agent's run is over and stays over
    │   ├── IntentRefused           CL247  the call cannot be left in the outbox
    │   ├── NoTransaction           CL248  no transaction for the intent
    │   ├── StatementRefused        CL249  Postgres refuses what the ledger asks of it
    │   └── MigrationHeldBack       CL250  others hold the tables that a migration changes
    ├── ActionError               the model reads it as an error without effect
    │   ├── InvalidArguments        CL301  the arguments do not fit the tool
    │   ├── InvalidIdempotencyKey   CL302  the arguments give no usable key
    │   ├── ArgumentsChanged        CL307  the tool cannot be called with exactly what is stored
    │   ├── EffectNotDeclared       CL308  nobody has said what repeating the tool would do
    │   ├── ApprovalMissing         CL309  nobody was asked about a call that a person approves
    │   ├── StateUnusable           CL230  the tool cannot get the conversation's state
    │   └── ToolRefused             CL303  the tool declined: nothing happened
    ├── ToolSignal                a tool raises it to say how far it got
    │   ├── NotAttempted            CL305  nothing was sent: try again
    │   └── StillInProgress         CL306  the downstream system is at work on it: try again
    ├── CannotInterrupt           CL235  ctx.interrupt, where no person can answer
    ├── DeadlineExceeded
    │   ├── ToolTimeout             NODE_TIMEOUT_002  one attempt of a tool took too long
    │   └── NodeTimeout             NODE_TIMEOUT_001  a call, with its retries, took too long
    ├── UnrepresentableValue      CL304  a value that JSON cannot hold
    ├── ModelError
    │   ├── ModelUnavailable        CL401  worth another try
    │   └── ModelRejected           CL402  final
    │       └── ContextWindowExceeded   CL403  the conversation is too long for the model
    └── RunError
        ├── RunFailed               CL501  the run ended without an answer
        ├── MaxStepsExceeded        CL502  the run used up its model turns
        ├── ScheduleUnsupported     CL503  a cron run: its ticks would share one identity
        ├── RunNotFound             CL504  no such run
        │   ├── RunGone               CL513  only the ledger has the run
        │   └── RunUnrecorded         CL514  only Temporal has the run
        ├── ConversationTooLarge    CL505  a message, or the run's input, is too large
        ├── RunDeadlineExceeded     CL506  the run took longer than its run_deadline
        ├── OutputUnusable          CL507  the model gave nothing usable, turn after turn
        ├── ThreadBusy              CL508  the conversation has a run under way
        ├── ToolNotServed           CL509  no worker serves a tool of the run any more
        ├── PlanFailed              CL510  a step of the plan failed for good
        ├── AmbiguousAction         CL511  several runs have had the id that names the action
        ├── EndedByOperator         CL512  an activity of the run was ended from outside
        ├── AgentsTooDeep           CL240  too many agents called below one another
        └── SubAgentNotEnded        CL241  the sub-agent's earlier workflow has not ended

Codes are public and never renumbered. ``docs/reference/errors.md`` lists them for users.
"""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar


class CommitlineError(Exception):
    """The base of all errors: catch the class you mean, or compare ``code``."""

    code: ClassVar[str] = "CL000"
    """Stable; safe to match on."""
    remedy: str = "Read the message."
    """What to do next, in one sentence or two."""
    retryable: ClassVar[bool] = False
    """Whether the same call may succeed later although nobody changes anything."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        """What happened, with the values involved; without code and remedy."""

    def __str__(self) -> str:
        return f"{self.message} [{self.code}] {self.remedy}"


class Unforeseen(CommitlineError):
    """An activity of ours raised what nobody foresaw, a dozen times; the message names it.

    It is a fault of Commitline, or of what a database or a setting has made of its rows.
    """

    code = "CL001"
    remedy = "What was done stands in the ledger. Report it, with the worker's log."


class DefinitionError(CommitlineError):
    """A tool, agent or app is defined in a way that cannot work."""

    code = "CL101"
    remedy = "Correct the definition; nothing has run."


class NoCurrentCall(CommitlineError):
    """`commitline.current()` was called outside of a guarded call."""

    code = "CL105"
    remedy = "Call it inside a tool, or inside an activity that the plugin guards."


class PlanInvalid(DefinitionError):
    """A step of a plan, its arguments, or the order of the steps cannot work.

    The message names the step.
    """

    code = "CL104"
    remedy = "Correct the plan; nothing of it was carried out."


class InvalidRunId(CommitlineError):
    """A run cannot have this id: it is empty, not ASCII, too long, or has control characters."""

    code = "CL102"
    remedy = "Use 1 to 180 printable ASCII characters."

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        if remedy is not None:
            self.remedy = remedy


class ConfigurationError(CommitlineError):
    """A setting is missing or cannot be used."""

    code = "CL103"
    remedy = "Run `commitline doctor`: it says what is missing and how to get it."


class PayloadUnreadable(ConfigurationError):
    """What Temporal keeps of a run is encoded, and this process has no codec that reads it.

    Raised before anything is done with it. A worker fails the task, which another one may take.
    """

    code = "CL106"
    remedy = (
        "Name the App whose `temporal=` gives the codec: COMMITLINE_APP for commands, "
        "`AgentClient.connect(app=…)` in code."
    )


class LedgerError(CommitlineError):
    """The base of what the ledger refuses."""


class PlanDivergence(LedgerError):
    """The ledger has another tool, or other arguments, at this position of the run.

    This is final: the run does not follow the plan that wrote the row. Nothing was called.
    """

    code = "CL201"
    remedy = (
        "Nothing was called. Find out why the plan changed (edited history, changed workflow "
        "code) and start a new run."
    )


class IdempotencyKeyConflict(LedgerError):
    """An action with other arguments holds the domain key. That action stands."""

    code = "CL202"
    remedy = "The existing action stands. Use its receipt, or a key that names a different fact."

    def __init__(self, message: str, *, existing: str = "") -> None:
        super().__init__(message)
        self.existing = existing
        """The action key of the action that stands."""


class Fenced(LedgerError):
    """A later attempt of the same action has taken over. This attempt must not act."""

    code = "CL203"
    remedy = "Nothing to do: the later attempt answers for the action."
    retryable = True

    def __init__(self, message: str, *, lost: bool = False) -> None:
        super().__init__(message)
        self.lost = lost
        """Whether the row is gone, as after a failover that lost commits, and not taken over."""


class RunNotRunning(LedgerError):
    """The run starts nothing: the ledger does not know it, or it is stopping, undoing or ended."""

    code = "CL204"
    remedy = "Open the run first, or start a new one."

    def __init__(
        self, message: str, *, known: bool = True, stopping: bool = False, undoing: bool = False
    ) -> None:
        super().__init__(message)
        self.known = known
        """Whether the ledger has the run at all."""
        self.stopping = stopping
        """Whether a stop is under way. The cancellation of the workflow follows."""
        self.undoing = undoing
        """Whether an undo of the run has begun, and has not ended."""


class RunInputConflict(LedgerError):
    """A run with this id exists and was started with other input."""

    code = "CL205"
    remedy = "Use another id for other work. To join the run, start it with its first input."


class LedgerUnavailable(LedgerError):
    """Postgres could not be reached, or did not answer within the statement's deadline."""

    code = "CL206"
    remedy = (
        "Nothing was called. A run tries again by itself, and you may repeat a command or a "
        "client's call; check the database if it lasts (`commitline doctor`)."
    )
    retryable = True

    def __init__(self, message: str, *, reached: bool = False) -> None:
        super().__init__(message)
        self.reached = reached
        """Whether there was a connection: what was sent over it may have been committed."""


class SchemaMismatch(LedgerError):
    """The database's schema is older than this code needs, or is not this code's at all.

    Or the database is not in UTF-8, or the ledger lies where the role's search_path does not lead.
    """

    code = "CL207"
    remedy = "Run `commitline migrate` with the newest version that uses this database."

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        if remedy is not None:
            self.remedy = remedy


class MissingActionHeader(LedgerError):
    """A guarded activity was scheduled by a workflow without Commitline's interceptor."""

    code = "CL208"
    remedy = "Run the workflow's worker with the same guards as this one."


class SettlementRefused(LedgerError):
    """A person may not settle this action, or not now."""

    code = "CL209"
    remedy = "Look at it with `commitline actions show`; if an attempt may be at work, wait."


class StaleThread(LedgerError):
    """Another run has written the conversation since this one read it. Nothing is overwritten."""

    code = "CL210"
    remedy = (
        "What the run did stands in the ledger. Send the conversation a new request: its next "
        "run reads how the calls ended."
    )


class ThreadDeleted(LedgerError):
    """The conversation was deleted for good. The record of its actions stays."""

    code = "CL211"
    remedy = "Use another thread id; what its runs did is in `commitline actions list`."


class ThreadNotFound(LedgerError):
    """No conversation has this id, and no agent was named to begin one."""

    code = "CL212"
    remedy = "Check the id, or name the agent that begins the conversation."


class RequestConflict(LedgerError):
    """The request id was used in this conversation before, for another text."""

    code = "CL213"
    remedy = "Use a new request id for a new request, or send the first text to get its reply."


class ResetRefused(LedgerError):
    """The run cannot be taken back to that model turn."""

    code = "CL214"
    remedy = "Nothing was changed. Start a new run, or go on with the conversation."


class ApprovalRefused(LedgerError):
    """The decision does not count: another one stands, or it came too late."""

    code = "CL215"
    remedy = "`commitline approvals --all` shows the decision that stands."


class NotAuthorized(LedgerError):
    """The application's ``authorize`` says that this person may not do this."""

    code = "CL216"
    remedy = "Nothing was changed. A person who is authorized has to do it."


class UndoRefused(LedgerError):
    """The run cannot be undone now, because it has not ended."""

    code = "CL217"
    remedy = "Nothing was undone. Stop it with `compensate=True` (`commitline stop --undo`)."


class ActionNotFound(LedgerError):
    """The ledger has no action with this key: none was written, or its transaction rolled back."""

    code = "CL218"
    remedy = "Check the key; the action was not intended, and nothing is sent for it."


class ReopenRefused(LedgerError):
    """The action may not be sent again; the message says why."""

    code = "CL219"
    remedy = "Nothing was changed. Settle it with `commitline actions settle`."


class Unstorable(LedgerError):
    """Postgres cannot hold a value or cannot give it back. To repeat the call does not help."""

    code = "CL220"
    remedy = (
        "Nothing was written. Give a text without NUL and lone surrogates, and a date, a number "
        "or a size within Postgres's limits."
    )


class AnswerRefused(LedgerError):
    """The answer does not count: another one stands, it came too late, or it has no value."""

    code = "CL236"
    remedy = "`commitline questions --all` shows the answer that stands."


class SubAgentClosed(LedgerError):
    """The sub-agent's run was stopped or ended without an answer.

    Its caller has read that, so the run is never opened again.
    """

    code = "CL242"
    remedy = "What it did stands. Fork the run that called it: the fork calls it again."


class IntentRefused(LedgerError):
    """A call cannot be left in the outbox.

    Its tool only reads, needs an approval, or takes a state, which only a run has. Or another
    action is being undone that holds the same domain key, or it is unknown whether it was.
    """

    code = "CL247"
    remedy = (
        "Nothing was written. Call a tool that only reads yourself. Have an agent call one that "
        "needs an approval or a state. Repeat the call when the undo has ended."
    )


class NoTransaction(LedgerError):
    """The connection has no transaction in which the intent could be committed with other rows."""

    code = "CL248"
    remedy = (
        "Nothing was written. Open a transaction, and pass its psycopg or SQLAlchemy connection "
        "(or session) as it is."
    )


class StatementRefused(LedgerError):
    """Postgres answered, and refuses the statement: a missing grant, a trigger, another schema.

    Nothing was written. An outcome that was to be recorded is kept and recorded later.
    """

    code = "CL249"
    remedy = (
        "Nothing was written. Correct what the message names (a grant, a trigger, the schema): "
        "`commitline doctor` looks for the usual causes."
    )
    retryable = True


class MigrationHeldBack(LedgerError):
    """Other sessions held the tables for as long as the migration tried to lock them."""

    code = "CL250"
    remedy = (
        "Nothing was changed. Let the named transactions end, or end them with "
        "pg_terminate_backend, and migrate again."
    )
    retryable = True


class ActionError(CommitlineError):
    """The base of what ends a call without any effect. The model reads it."""


class InvalidArguments(ActionError):
    """The model's arguments do not fit the tool's parameters."""

    code = "CL301"
    remedy = "Nothing was called. Call again with arguments that fit the tool's schema."


class InvalidIdempotencyKey(ActionError):
    """The tool's key template gives no usable key for these arguments."""

    code = "CL302"
    remedy = "Nothing was called. Give every argument that the key names a non-empty value."


class ArgumentsChanged(ActionError):
    """The tool's code today cannot be called with exactly the arguments that are stored.

    They were shown to a person, or fixed when the call was first claimed or intended. Since then
    the tool has another parameter, another default, or a validator that refuses or changes a value.
    """

    code = "CL307"
    remedy = (
        "Nothing was called with other arguments. Deploy a tool that takes what is stored, or make "
        "a new call."
    )


class EffectNotDeclared(ActionError):
    """A guarded tool of another framework has no effect, so it is not called."""

    code = "CL308"
    remedy = "Declare its effect with `@effect(...)`, in its metadata or in the plugin's `effects`."


class ApprovalMissing(ActionError):
    """A person has to approve the call of another framework's tool, and nobody was asked.

    Its workflow went on from before the rule had ``approve``, or its worker has another rule.
    """

    code = "CL309"
    remedy = "Nothing was called. Give the workers of workflows the same rules, in `effects`."


class StateUnusable(ActionError):
    """The conversation's state does not fit the tool's state model, or there is no state."""

    code = "CL230"
    remedy = "Nothing was called. Let the state model accept what earlier releases stored."


class ToolRefused(ActionError):
    """A tool raises it to say: declined or invalid, and *nothing has happened*.

    Raise it only when that is certain. It is recorded as an error without effect, so a later
    action may use the same domain key again. If an earlier attempt of the action was lost, it
    proves nothing about that attempt, and the action stays unknown.
    """

    code = "CL303"
    remedy = "Nothing has happened."


class ToolSignal(CommitlineError):
    """The base of what a tool raises to say how far it got."""


class NotAttempted(ToolSignal):
    """A tool raises it to say: nothing was sent, and another try may work.

    Raise it only when that is certain. The call is tried again, up to the tool's ``tries``,
    whatever the tool's effect is. Then it is recorded as an error without effect.
    """

    code = "CL305"
    remedy = "Nothing has happened."
    retryable = True


class StillInProgress(ToolSignal):
    """A tool raises it to say: the downstream system is at work on this very request.

    An example is a provider's 409 for a key whose first request has not ended. The call is
    tried again with the same key, until its `node_timeout`. The model does not see it.
    """

    code = "CL306"
    remedy = "The call is tried again by itself."
    retryable = True

    def __init__(self, message: str, *, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """How long the provider told us to wait, if it did."""


class CannotInterrupt(CommitlineError):
    """`ToolContext.interrupt` was called where no person can answer; the message says why."""

    code = "CL235"
    remedy = "Call `ctx.interrupt` in an `async def` tool that an agent's run carries out."


class DeadlineExceeded(CommitlineError):
    """The base of deadlines that passed."""


class ToolTimeout(DeadlineExceeded):
    """One attempt of a tool call took longer than its `tool_timeout`."""

    code = "NODE_TIMEOUT_002"
    remedy = "It may have happened. Raise the tool's tool_timeout if it needs longer."
    retryable = True


class NodeTimeout(DeadlineExceeded):
    """A call of a turn, with its retries, took longer than `node_timeout`."""

    code = "NODE_TIMEOUT_001"
    remedy = "What it did stands. Raise node_timeout if its tries need longer."


class UnrepresentableValue(CommitlineError):
    """JSON cannot hold a value exactly: NaN, two keys that become one, a file, a lambda, …."""

    code = "CL304"
    remedy = "Return something that JSON can hold: a pydantic model, a dataclass, plain data."


class ModelError(CommitlineError):
    """The base of how a model request can fail."""


class ModelUnavailable(ModelError):
    """The provider cannot answer now: it throttles, is overloaded, or cannot be reached."""

    code = "CL401"
    remedy = (
        "A run tries again by itself, up to the agent's `model_tries`. One that has failed goes on "
        "by `commitline runs reset RUN --to-step 0`, unless it was undone."
    )
    retryable = True

    def __init__(self, message: str, *, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """How long the provider told us to wait, if it did."""


class ModelRejected(ModelError):
    """The provider refused the request; the same request would be refused again."""

    code = "CL402"
    remedy = "Correct the model's name, the credentials or the request."


class ContextWindowExceeded(ModelRejected):
    """The conversation, with its instructions and tools, is too long for the model.

    A model of your own raises it too, so that a `TrimmingModel` around it sends less.
    """

    code = "CL403"
    remedy = (
        "What was done stands. Wrap the model in a `TrimmingModel`, name a model with a larger "
        "window, or begin another conversation."
    )


class RunError(CommitlineError):
    """The base of how a run can fail."""


class RunFailed(RunError):
    """The run ended without an answer; the message says why."""

    code = "CL501"
    remedy = (
        "What it did stands, unless it was undone: see `commitline actions list` and "
        "`commitline undo RUN --show`."
    )


class MaxStepsExceeded(RunError):
    """The run needed more model turns than the agent's ``max_steps`` allows."""

    code = "CL502"
    remedy = "What it did stands. Raise the agent's `max_steps`, or make the task smaller."


class ScheduleUnsupported(RunError):
    """The run has a `cron_schedule`, whose ticks share one first execution and so one identity."""

    code = "CL503"
    remedy = "Use a Temporal Schedule: each of its runs has an identity of its own."


class AmbiguousAction(RunError):
    """Several runs have had the id that names an action, and more than one has an action there."""

    code = "CL511"
    remedy = "Name the action by its whole key; the message and `actions list --json` have it."


class EndedByOperator(RunError):
    """An activity of the run was completed, or failed, by somebody, and by no worker."""

    code = "CL512"
    remedy = (
        "`commitline actions` says what became of the call. End a run by `commitline stop`, and "
        "say how an action ended by `commitline actions settle`."
    )


class RunNotFound(RunError):
    """No run has this id, in this namespace."""

    code = "CL504"
    remedy = "Check the id and the namespace; the ledger keeps the actions by run key."


class RunGone(RunNotFound):
    """Temporal has no workflow of the run any more; the ledger has what it did.

    After the namespace's retention, a deleted history, or in a new cluster.
    """

    code = "CL513"
    remedy = (
        "See `commitline runs show RUN`. End it with `commitline stop RUN`, take back what it did "
        "with `commitline undo RUN`; for the same work again choose another id."
    )


class RunUnrecorded(RunNotFound):
    """The run has begun, and the ledger has nothing of it: it was restored to an earlier point."""

    code = "CL514"
    remedy = (
        "Look at the downstream systems for what it did: no list and no undo has it. End it with "
        "`commitline stop RUN`, if it goes on."
    )


class ConversationTooLarge(RunError):
    """A message, or the input of a run, is larger than Temporal carries."""

    code = "CL505"
    remedy = "What was done stands. Send less: keep large data elsewhere and pass its name."


class RunDeadlineExceeded(RunError):
    """The run took longer than the `run_deadline` that it was given."""

    code = "CL506"
    remedy = "What it did stands. Start a new run, with a longer run_deadline if it needs one."


class OutputUnusable(RunError):
    """The model gave nothing usable several turns in a row.

    Its calls were cut off or malformed, or no output fitted the agent's ``output_type``.
    """

    code = "CL507"
    remedy = "What it did stands. Raise the model's output limit, or make the output simpler."


class ThreadBusy(RunError):
    """The conversation has a run under way, and a thread has one at a time."""

    code = "CL508"
    remedy = "Use `send`, which joins the run under way, or wait for its end."


class PlanFailed(RunError):
    """A step of the plan failed for good."""

    code = "CL510"
    remedy = "The message and `commitline undo RUN --show` say what was undone and what stands."


class AgentsTooDeep(RunError):
    """An agent calls an agent that calls an agent …: more than 8 below one another."""

    code = "CL240"
    remedy = "What was done stands. Find the agents that call each other in a circle."


class SubAgentNotEnded(RunError):
    """The sub-agent's workflow from before its parent's reset has not ended yet."""

    code = "CL241"
    remedy = "The run waits for its end. If no worker can end it, terminate it: it calls nothing."
    retryable = True


class ToolNotServed(RunError):
    """No worker serves a tool that the run calls. The attempts that found this called nothing."""

    code = "CL509"
    remedy = (
        "Deploy a worker that has the tool, then reset the run. Whether an earlier attempt "
        "called it is in `commitline actions list`."
    )

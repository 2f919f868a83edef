"""Every error that Commitline raises, each with a stable code and a remedy.

    CommitlineError
    ├── DefinitionError         CL101  a tool, agent or app that cannot work
    │   └── PlanInvalid            CL104  a plan that cannot work
    ├── InvalidRunId            CL102  an id that no run may have
    ├── ConfigurationError      CL103  a missing or unusable setting
    ├── LedgerError
    │   ├── PlanDivergence         CL201  another call stands at this position
    │   ├── IdempotencyKeyConflict CL202  the domain key was used for something else
    │   ├── Fenced                 CL203  a later attempt owns the action
    │   ├── RunNotRunning          CL204  the run may start nothing more
    │   ├── RunInputConflict       CL205  the run exists with other input
    │   ├── LedgerUnavailable      CL206  Postgres did not answer in time
    │   ├── SchemaMismatch         CL207  the database and the code differ in version
    │   ├── MissingActionHeader    CL208  a guarded activity was scheduled without its header
    │   ├── SettlementRefused      CL209  a person may not settle this action, or not now
    │   ├── StaleThread            CL210  another run has written the conversation
    │   ├── ThreadDeleted          CL211  the conversation was deleted
    │   ├── ThreadNotFound         CL212  no such conversation
    │   ├── RequestConflict        CL213  the request id was used for another text
    │   ├── ResetRefused           CL214  the run cannot go back to that turn
    │   ├── ApprovalRefused        CL215  the call cannot be decided about, or not so
    │   ├── NotAuthorized          CL216  this person may not decide
    │   ├── UndoRefused            CL217  the run has not ended
    │   ├── ActionNotFound         CL218  the ledger has no such action
    │   ├── ReopenRefused          CL219  the action cannot be tried again by itself
    │   ├── Unstorable             CL220  Postgres cannot hold a value, now or later
    │   └── AnswerRefused          CL236  the question cannot be answered, or not so
    ├── ActionError             told to the model as an error without effect
    │   ├── InvalidArguments       CL301  the arguments do not fit the tool
    │   ├── InvalidIdempotencyKey  CL302  no usable key comes out of the arguments
    │   ├── ToolRefused            CL303  the tool declined: nothing happened
    │   └── StateUnusable          CL230  the conversation's state cannot be given to the tool
    ├── ToolSignal              raised by a tool to say how far it got
    │   ├── NotAttempted           CL305  nothing was sent: try again
    │   └── StillInProgress        CL306  the downstream system is at work on it: ask again
    ├── CannotInterrupt               CL235  ctx.interrupt, where nobody can be asked
    ├── DeadlineExceeded
    │   ├── ToolTimeout      NODE_TIMEOUT_002  one attempt of a tool took too long
    │   └── NodeTimeout      NODE_TIMEOUT_001  a call, with its retries, took too long
    ├── UnrepresentableValue    CL304  a value that JSON cannot hold
    ├── ModelError
    │   ├── ModelUnavailable       CL401  worth another try
    │   └── ModelRejected          CL402  final
    └── RunError
        ├── RunFailed              CL501  the run ended without an answer
        ├── MaxStepsExceeded       CL502  the run used up its model turns
        ├── ScheduleUnsupported    CL503  a cron run: its ticks would share one identity
        ├── RunNotFound            CL504  no such run
        ├── ConversationTooLarge   CL505  a message, or the run's input, is too large
        ├── RunDeadlineExceeded    CL506  the run took longer than its run_deadline
        ├── OutputUnusable         CL507  the model gave nothing usable, time after time
        ├── ThreadBusy             CL508  the conversation has a run under way
        ├── ToolNotServed          CL509  no worker serves a tool of the run any more
        ├── PlanFailed             CL510  a step of the plan failed for good
        └── AmbiguousAction        CL511  an action's name that several runs share

Codes are public and never renumbered. ``docs/reference/errors.md`` lists them for users.
"""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar


class CommitlineError(Exception):
    """The base of them all: catch it by kind, or look at ``code``.

    Attributes:
        code: Stable; safe to match on.
        remedy: What to do next, in one sentence.
        retryable: Whether the same call may succeed later without anybody's help.
    """

    code: ClassVar[str] = "CL000"
    remedy: str = "Read the message."
    retryable: ClassVar[bool] = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} [{self.code}] {self.remedy}"


class DefinitionError(CommitlineError):
    """A tool, agent or app is defined in a way that cannot work."""

    code = "CL101"
    remedy = "Correct the definition; nothing has run."


class PlanInvalid(DefinitionError):
    """A plan cannot work: a step, its arguments or the order of the steps; the message names it."""

    code = "CL104"
    remedy = "Correct the plan; nothing of it was carried out."


class InvalidRunId(CommitlineError):
    """The id cannot be a run's: empty, not ASCII, with control characters, or too long."""

    code = "CL102"
    remedy = "Use 1 to 180 printable ASCII characters."


class ConfigurationError(CommitlineError):
    """A setting is missing or cannot be used."""

    code = "CL103"
    remedy = "Run `commitline doctor`: it says what is missing and how to get it."


class LedgerError(CommitlineError):
    """The base of what the ledger says no to."""


class PlanDivergence(LedgerError):
    """Another tool, or other arguments, stand at this position of the run.

    Final: the run is not the run that wrote the row. Nothing was called.
    """

    code = "CL201"
    remedy = (
        "Nothing was called. Find out why the plan changed (edited history, changed workflow "
        "code) and start a new run."
    )


class IdempotencyKeyConflict(LedgerError):
    """The domain key is held by an action with other arguments, which stands."""

    code = "CL202"
    remedy = "The existing action stands. Use its receipt, or a key that names a different fact."

    def __init__(self, message: str, *, existing: str = "") -> None:
        super().__init__(message)
        self.existing = existing
        """The action key of the action that stands."""


class Fenced(LedgerError):
    """A later attempt of the same action has taken over; this one must not act."""

    code = "CL203"
    remedy = "Nothing to do: the later attempt answers for the action."
    retryable = True

    def __init__(self, message: str, *, lost: bool = False) -> None:
        super().__init__(message)
        self.lost = lost
        """The row is not another attempt's but gone, as a failover may lose what was committed."""


class RunNotRunning(LedgerError):
    """The run is unknown to the ledger, stopping, unwinding or ended: it starts nothing."""

    code = "CL204"
    remedy = "Open the run first, or start a new one."

    def __init__(self, message: str, *, known: bool = True, stopping: bool = False) -> None:
        super().__init__(message)
        self.known = known
        """Whether the ledger has the run at all."""
        self.stopping = stopping
        """Whether a stop is under way: the cancellation of its workflow follows."""


class RunInputConflict(LedgerError):
    """A run with this id exists and was started with other input."""

    code = "CL205"
    remedy = "Use another id for other work, or start it with the first input to join it."


class LedgerUnavailable(LedgerError):
    """Postgres could not be reached, or did not answer within the statement's deadline."""

    code = "CL206"
    remedy = "Nothing was called. It is tried again by itself; check the database if it lasts."
    retryable = True

    def __init__(self, message: str, *, reached: bool = False) -> None:
        super().__init__(message)
        self.reached = reached
        """Whether a connection was had: what was sent over it may have been committed."""


class SchemaMismatch(LedgerError):
    """The database's schema is older than this code needs."""

    code = "CL207"
    remedy = "Run `commitline migrate` with the newest version that uses this database."


class MissingActionHeader(LedgerError):
    """A guarded activity was scheduled by a workflow without Commitline's interceptor."""

    code = "CL208"
    remedy = "Nothing was called. Run the workflow's worker with the same guards as this one."


class SettlementRefused(LedgerError):
    """The action is not one that a person may settle, or not now."""

    code = "CL209"
    remedy = "Look at it with `commitline actions show`; if an attempt may be at work, wait."


class StaleThread(LedgerError):
    """Another run has written the conversation since this one read it. Nothing is overwritten."""

    code = "CL210"
    remedy = (
        "What the run did stands, in the ledger. Go on with the conversation by a new request: "
        "its next run reads what became of the calls."
    )


class ThreadDeleted(LedgerError):
    """The conversation was deleted. Nothing brings it back; the record of its actions stays."""

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
    remedy = "Look at it with `commitline approvals`; the decision that stands is the one there."


class NotAuthorized(LedgerError):
    """The application's ``authorize`` says that this person may not decide, answer or settle."""

    code = "CL216"
    remedy = "Nothing was decided. Have somebody decide who may."


class UndoRefused(LedgerError):
    """What the run did cannot be taken back now: it has not ended."""

    code = "CL217"
    remedy = "Nothing was undone. Stop it with `compensate=True` (`commitline stop --undo`)."


class ActionNotFound(LedgerError):
    """The ledger has no action of this key: none was written, or its transaction rolled back."""

    code = "CL218"
    remedy = "Check the key; the action was not intended, and nothing is sent for it."


class ReopenRefused(LedgerError):
    """The action cannot be tried again by itself."""

    code = "CL219"
    remedy = "Nothing was changed. Settle it with `commitline actions settle`."


class Unstorable(LedgerError):
    """Postgres cannot hold a value, or cannot give it back; nothing that is repeated can help."""

    code = "CL220"
    remedy = (
        "Nothing was written. Give a text without NUL and lone surrogates, and a date, a number "
        "or a size within Postgres's limits."
    )


class AnswerRefused(LedgerError):
    """The answer does not count: another one stands, it came too late, or it has no value."""

    code = "CL236"
    remedy = "Look at it with `commitline questions --all`; the answer that stands is there."


class SubAgentClosed(LedgerError):
    """The sub-agent's run was stopped, or gave no answer: for good, and its caller was told so."""

    code = "CL242"
    remedy = "What it did stands. Fork the run that called it, to have it called anew."


class IntentRefused(LedgerError):
    """A call cannot be left in the outbox.

    Its tool only reads, is approved by a person, or takes a state, which only a run has; or its
    business fact is just being undone, or may have been.
    """

    code = "CL247"
    remedy = (
        "Nothing was written. Call a tool that only reads; have an agent call one that is approved "
        "or takes a state; intend what is being undone again in a moment."
    )


class NoTransaction(LedgerError):
    """The connection has no transaction in which the intent could be committed with other rows."""

    code = "CL248"
    remedy = (
        "Nothing was written. Open a transaction, and pass its psycopg or SQLAlchemy connection "
        "(or session) as it is."
    )


class ActionError(CommitlineError):
    """The base of what ends a call without any effect and is told to the model."""


class InvalidArguments(ActionError):
    """The model's arguments do not fit the tool's parameters."""

    code = "CL301"
    remedy = "Nothing was called. Call again with arguments that fit the tool's schema."


class InvalidIdempotencyKey(ActionError):
    """The tool's key template gives no usable key for these arguments."""

    code = "CL302"
    remedy = "Nothing was called. Give every argument that the key names a non-empty value."


class StateUnusable(ActionError):
    """The conversation's state does not fit the tool's state model, or there is none to give."""

    code = "CL230"
    remedy = "Nothing was called. Have the state model read what earlier releases have stored."


class ToolRefused(ActionError):
    """Raised by a tool to say: declined or invalid, and *nothing has happened*.

    Raise it only when that is certain. It is recorded as an error without effect, so a later
    action may use the same domain key again. After an earlier attempt was lost it proves
    nothing about that one, and the action stays unknown.
    """

    code = "CL303"
    remedy = "Nothing has happened."


class ToolSignal(CommitlineError):
    """The base of what a tool raises to say how far it got."""


class NotAttempted(ToolSignal):
    """Raised by a tool to say: nothing was sent, and another try may work.

    Raise it only when that is certain. It is tried again up to the tool's ``tries``, whatever
    the tool's effect, and then recorded as an error without effect.
    """

    code = "CL305"
    remedy = "Nothing has happened."
    retryable = True


class StillInProgress(ToolSignal):
    """Raised by a tool to say: the downstream system is at work on this very request.

    A provider's 409 for a key whose first request has not ended. It is asked again, with the
    same key, until the call's `node_timeout`, and the model does not see it.
    """

    code = "CL306"
    remedy = "It is asked again by itself."
    retryable = True

    def __init__(self, message: str, *, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """How long the provider asked us to wait, if it did."""


class CannotInterrupt(CommitlineError):
    """`ToolContext.interrupt` was called where nobody can be asked: see its message."""

    code = "CL235"
    remedy = "Ask from an `async def` tool of an agent, called by a run of a worker."


class DeadlineExceeded(CommitlineError):
    """The base of deadlines that have passed."""


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
    """A value has no faithful JSON form: NaN, keys that collapse, a file, a lambda, …."""

    code = "CL304"
    remedy = "Return something that JSON can hold: a pydantic model, a dataclass, plain data."


class ModelError(CommitlineError):
    """The base of what a model request can end with besides a completion."""


class ModelUnavailable(ModelError):
    """The provider could not answer now: throttled, overloaded, unreachable."""

    code = "CL401"
    remedy = "It is tried again by itself, up to the agent's `model_tries`."
    retryable = True

    def __init__(self, message: str, *, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """How long the provider asked us to wait, if it did."""


class ModelRejected(ModelError):
    """The provider refused the request; the same request would be refused again."""

    code = "CL402"
    remedy = "Correct the model's name, the credentials or the request."


class RunError(CommitlineError):
    """The base of how a run can end badly."""


class RunFailed(RunError):
    """The run ended without an answer; the message says why."""

    code = "CL501"
    remedy = (
        "What it did is in `commitline actions list`, and stands but for what was undone: "
        "`commitline undo RUN --show`."
    )


class MaxStepsExceeded(RunError):
    """The agent asked for more model turns than ``max_steps`` allows."""

    code = "CL502"
    remedy = "What it did stands. Raise the agent's `max_steps`, or make the task smaller."


class ScheduleUnsupported(RunError):
    """The run has a `cron_schedule`, whose ticks share one first execution and so one identity."""

    code = "CL503"
    remedy = "Use a Temporal Schedule: each of its runs has an identity of its own."


class AmbiguousAction(RunError):
    """Several runs have had the id by which an action is named, and each has one there."""

    code = "CL511"
    remedy = "Name it by its whole key, as the message has it (`commitline actions list --json`)."


class RunNotFound(RunError):
    """No run has this id, or its history is gone with the namespace's retention."""

    code = "CL504"
    remedy = "Check the id and the namespace; the ledger keeps the actions by run key."


class ConversationTooLarge(RunError):
    """A message, or what a run is started with, is over the size that Temporal carries."""

    code = "CL505"
    remedy = "What was done stands. Send less: keep large data elsewhere and name it."


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
    remedy = "What was undone, and what stands, is in the message and in `commitline undo --show`."


class AgentsTooDeep(RunError):
    """An agent calls an agent that calls an agent …: more of them below one another than may be."""

    code = "CL240"
    remedy = "What was done stands. Find the agents that call each other in a circle."


class SubAgentNotEnded(RunError):
    """The workflow that a sub-agent had before its parent's reset has not ended yet."""

    code = "CL241"
    remedy = "It is waited for. If no worker can end it, terminate it: nothing of it is claimed."
    retryable = True


class ToolNotServed(RunError):
    """The run's plan has a tool that no worker serves any more. These attempts called nothing."""

    code = "CL509"
    remedy = (
        "Deploy a worker that has the tool, then reset the run. Whether an earlier attempt "
        "called it is in `commitline actions list`."
    )

"""The ledger: what is about to happen, before it happens, and what happened.

Usable alone: it knows nothing of Temporal and needs only psycopg and pydantic.
``docs/ledger.md`` shows it in a program without either workflow or model.
"""

from .action_ledger import ActionLedger
from .approvals import Approval, ApprovalLedger, ApprovalRequest
from .claim_rules import AlreadyDone, Ask, Busy, Claim, Dispatched, Intended, Owned, Parked
from .migration import check_schema, migrate
from .notifications import listen
from .outbox import intend
from .pool import ledger_pool
from .question_rules import Question, QuestionRequest
from .questions import QuestionLedger
from .records import Action, ActionRequest, Attempt, Effect, Outcome, Run
from .relay import GoneRun, Queued, RelayLedger, Waiting
from .sub_runs import SubRunLedger
from .threads import (
    Committed,
    Conversation,
    NewMessage,
    Request,
    StoredMessage,
    Thread,
    ThreadLedger,
    Turn,
)
from .undo import UndoLedger
from .undo_rules import ActionFate, DueUndo, UndoReport

__all__ = [
    "Action",
    "ActionFate",
    "ActionLedger",
    "ActionRequest",
    "AlreadyDone",
    "Approval",
    "ApprovalLedger",
    "ApprovalRequest",
    "Ask",
    "Attempt",
    "Busy",
    "Claim",
    "Committed",
    "Conversation",
    "Dispatched",
    "DueUndo",
    "Effect",
    "GoneRun",
    "Intended",
    "NewMessage",
    "Outcome",
    "Owned",
    "Parked",
    "Question",
    "QuestionLedger",
    "QuestionRequest",
    "Queued",
    "RelayLedger",
    "Request",
    "Run",
    "StoredMessage",
    "SubRunLedger",
    "Thread",
    "ThreadLedger",
    "Turn",
    "UndoLedger",
    "UndoReport",
    "Waiting",
    "check_schema",
    "intend",
    "ledger_pool",
    "listen",
    "migrate",
]

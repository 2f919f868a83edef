"""The ledger: what is about to happen, before it happens, and what happened.

Usable alone: it knows nothing of Temporal and needs only psycopg and pydantic.
``docs/ledger.md`` shows it in a program without either workflow or model.
"""

from typing import TYPE_CHECKING

from ..exports import lazy

if TYPE_CHECKING:
    from .action_ledger import ActionLedger
    from .approvals import Approval, ApprovalLedger, ApprovalRequest
    from .claim_rules import AlreadyDone, Busy, Claim, Dispatched, Intended, LookUp, Owned, Parked
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
    "LookUp",
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

_HOMES = {
    "Action": ".records",
    "ActionFate": ".undo_rules",
    "ActionLedger": ".action_ledger",
    "ActionRequest": ".records",
    "AlreadyDone": ".claim_rules",
    "Approval": ".approvals",
    "ApprovalLedger": ".approvals",
    "ApprovalRequest": ".approvals",
    "Attempt": ".records",
    "Busy": ".claim_rules",
    "Claim": ".claim_rules",
    "Committed": ".threads",
    "Conversation": ".threads",
    "Dispatched": ".claim_rules",
    "DueUndo": ".undo_rules",
    "Effect": ".records",
    "GoneRun": ".relay",
    "Intended": ".claim_rules",
    "LookUp": ".claim_rules",
    "NewMessage": ".threads",
    "Outcome": ".records",
    "Owned": ".claim_rules",
    "Parked": ".claim_rules",
    "Question": ".question_rules",
    "QuestionLedger": ".questions",
    "QuestionRequest": ".question_rules",
    "Queued": ".relay",
    "RelayLedger": ".relay",
    "Request": ".threads",
    "Run": ".records",
    "StoredMessage": ".threads",
    "SubRunLedger": ".sub_runs",
    "Thread": ".threads",
    "ThreadLedger": ".threads",
    "Turn": ".threads",
    "UndoLedger": ".undo",
    "UndoReport": ".undo_rules",
    "Waiting": ".relay",
    "check_schema": ".migration",
    "intend": ".outbox",
    "ledger_pool": ".pool",
    "listen": ".notifications",
    "migrate": ".migration",
}

__getattr__ = lazy(__name__, _HOMES)

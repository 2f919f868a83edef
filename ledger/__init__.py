"""The ledger: what is about to happen, before it happens, and what happened.

Usable alone: it knows nothing of Temporal and needs only psycopg and pydantic.
``docs/ledger.md`` shows it in a program without either workflow or model.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .action_ledger import ActionLedger
    from .action_records import Action, ActionRequest, Attempt, Effect, Outcome
    from .approvals import Approval, ApprovalLedger, ApprovalRequest
    from .claim_results import (
        Accepted,
        AlreadyDone,
        Busy,
        Claim,
        Dispatched,
        HeldClaim,
        LookUp,
        Parked,
    )
    from .durability import commits_at_risk
    from .exits import keys_without_exit
    from .grants import missing_grants
    from .migration import check_schema, migrate
    from .notifications import listen
    from .outbox import intend
    from .pool import ledger_pool
    from .question_rules import Question, QuestionRequest
    from .questions import QuestionLedger
    from .relay import RelayLedger
    from .relay_rules import LostRun, QueuedAction, RelayEntry
    from .run_records import Run
    from .runs import RunLedger
    from .sub_runs import SubRunLedger
    from .sweeps import Sweep, SweepLedger
    from .thread_records import (
        Committed,
        Conversation,
        NewMessage,
        Request,
        Returned,
        StoredMessage,
        Thread,
        Turn,
    )
    from .threads import ThreadLedger
    from .undo import UndoLedger
    from .undo_rules import ActionFate, DueUndo, UndoReport

__all__ = [
    "Accepted",
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
    "HeldClaim",
    "LookUp",
    "LostRun",
    "NewMessage",
    "Outcome",
    "Parked",
    "Question",
    "QuestionLedger",
    "QuestionRequest",
    "QueuedAction",
    "RelayEntry",
    "RelayLedger",
    "Request",
    "Returned",
    "Run",
    "RunLedger",
    "StoredMessage",
    "SubRunLedger",
    "Sweep",
    "SweepLedger",
    "Thread",
    "ThreadLedger",
    "Turn",
    "UndoLedger",
    "UndoReport",
    "check_schema",
    "commits_at_risk",
    "intend",
    "keys_without_exit",
    "ledger_pool",
    "listen",
    "migrate",
    "missing_grants",
]

_HOMES = {
    "Accepted": ".claim_results",
    "Action": ".action_records",
    "ActionFate": ".undo_rules",
    "ActionLedger": ".action_ledger",
    "ActionRequest": ".action_records",
    "AlreadyDone": ".claim_results",
    "Approval": ".approvals",
    "ApprovalLedger": ".approvals",
    "ApprovalRequest": ".approvals",
    "Attempt": ".action_records",
    "Busy": ".claim_results",
    "Claim": ".claim_results",
    "Committed": ".thread_records",
    "Conversation": ".thread_records",
    "Dispatched": ".claim_results",
    "DueUndo": ".undo_rules",
    "Effect": ".action_records",
    "HeldClaim": ".claim_results",
    "LookUp": ".claim_results",
    "LostRun": ".relay_rules",
    "NewMessage": ".thread_records",
    "Outcome": ".action_records",
    "Parked": ".claim_results",
    "Question": ".question_rules",
    "QuestionLedger": ".questions",
    "QuestionRequest": ".question_rules",
    "QueuedAction": ".relay_rules",
    "RelayEntry": ".relay_rules",
    "RelayLedger": ".relay",
    "Request": ".thread_records",
    "Returned": ".thread_records",
    "Run": ".run_records",
    "RunLedger": ".runs",
    "StoredMessage": ".thread_records",
    "SubRunLedger": ".sub_runs",
    "Sweep": ".sweeps",
    "SweepLedger": ".sweeps",
    "Thread": ".thread_records",
    "ThreadLedger": ".threads",
    "Turn": ".thread_records",
    "UndoLedger": ".undo",
    "UndoReport": ".undo_rules",
    "check_schema": ".migration",
    "commits_at_risk": ".durability",
    "intend": ".outbox",
    "keys_without_exit": ".exits",
    "ledger_pool": ".pool",
    "listen": ".notifications",
    "migrate": ".migration",
    "missing_grants": ".grants",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)

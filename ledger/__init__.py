"""The ledger: what is about to happen, before it happens, and what happened.

Usable alone: it knows nothing of Temporal and needs only psycopg and pydantic.
``docs/ledger.md`` shows it in a program without either workflow or model.
"""

from .action_ledger import ActionLedger
from .actions import Action, ActionRequest, Attempt, Effect, Outcome, Run
from .approvals import Approval, ApprovalLedger, ApprovalRequest
from .claims import AlreadyDone, Ask, Busy, Claim, Dispatched, Owned, Parked
from .migrate import check_schema, migrate
from .pool import ledger_pool
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

__all__ = [
    "Action",
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
    "Effect",
    "NewMessage",
    "Outcome",
    "Owned",
    "Parked",
    "Request",
    "Run",
    "StoredMessage",
    "Thread",
    "ThreadLedger",
    "Turn",
    "check_schema",
    "ledger_pool",
    "migrate",
]

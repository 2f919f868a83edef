"""What an activity of ours raised, as the failure that Temporal gets: each one has an end.

    an error of ours              final or tried again, as its class says
    Temporal's own failures       as they are
    Temporal's server is away     tried again
    `StatementRefused`, `PayloadUnreadable`, all else
                                  tried a dozen times, for a minute; then final, with its name

Temporal tries an activity of ours without limit, since dead workers and outages must use up
nothing. So what no wait mends (a missing grant, a trigger, a row that cannot be read, a fault of
ours) would be tried for ever, and its run would stand still with no name.

How a call ended is the exception (`KEPT`): who has it in hand goes on, until it is recorded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from temporalio import activity
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.service import RPCError, RPCStatusCode

from ...errors import CommitlineError, PayloadUnreadable, StatementRefused, Unforeseen
from ...ledger.result_codec import error_text
from ...logs import Log
from ..contract.activity_failure import as_failure
from ..contract.outcomes import RECORD_OUTCOME
from ..runner.attempt_notes import AttemptNotes

log = Log()

KEPT: Final = RECORD_OUTCOME
"""The activity that is tried for as long as it takes."""
_TRIES: Final = 12
_MAY_PASS: Final = (StatementRefused, PayloadUnreadable)
"""A grant may come, and the next try may go to a worker that has the codec."""
_SERVER_AWAY: Final = (
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.CANCELLED,
)


def failure_to_report(error: Exception) -> Exception:
    """Return what an activity of ours ends with that raised an error."""
    if isinstance(error, FailureError) or _is_server_away(error):
        return error
    if isinstance(error, CommitlineError) and not isinstance(error, _MAY_PASS):
        return as_failure(error)
    return _counted(error)


def _is_server_away(error: Exception) -> bool:
    return isinstance(error, RPCError) and error.status in _SERVER_AWAY


def _counted(error: Exception) -> ApplicationError:
    """Return the failure of what has no class that says whether another try can help."""
    kind = activity.info().activity_type
    tries, named = _count(), error
    if not isinstance(named, CommitlineError):
        text = error_text(error)[:300]
        named = Unforeseen(f"{kind} raised {type(error).__name__}: {text}")
    final = tries >= _TRIES and kind != KEPT
    log.error(
        "activity.failed",
        activity=kind,
        tries=tries,
        final=final,
        code=named.code,
        reason=named.message,
    )
    return as_failure(named, final=final, benign=False)


def _count() -> int:
    """Count the tries that ended so, for the next attempt."""
    before = AttemptNotes.read()
    notes = replace(before, unforeseen=before.unforeseen + 1)
    notes.leave()
    return notes.unforeseen

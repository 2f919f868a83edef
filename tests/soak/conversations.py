"""What every conversation must be: one result per call, in order, nothing twice, no hole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from commitline.activities.contract.conversation import Message
from commitline.activities.contract.encoding import from_text
from commitline.ledger import StoredMessage


def malformed(stored: Sequence[StoredMessage], *, torn: bool = False) -> list[str]:
    """Return all that is wrong with a conversation that nobody is writing any more.

    Args:
        stored: The conversation.
        torn: Whether its run was lost or failed, and none has gone on with it: its last calls may
            have no results yet.
    """
    messages = [from_text(Message, one.message) for one in stored]
    return [
        *_misplaced(stored),
        *_repeated(stored),
        *_unpaired(messages if torn else [*messages, Message(role="user")]),
        *(
            f"version {one.version} has the role {one.role} and holds a message of {message.role}"
            for one, message in zip(stored, messages, strict=True)
            if one.role != message.role
        ),
    ]


def _misplaced(stored: Sequence[StoredMessage]) -> Iterator[str]:
    """Find holes: commits are numbered from 1, and the messages of each from 0."""
    at = (0, 0)
    for one in stored:
        found = (one.version, one.ordinal)
        if found not in ((at[0], at[1] + 1), (at[0] + 1, 0)) or found == (0, 1):
            yield f"after {at} comes {found}"
        at = found


def _repeated(stored: Sequence[StoredMessage]) -> Iterator[str]:
    turns = Counter((one.run_key, one.step) for one in stored if one.role == "assistant")
    for (run, step), count in turns.items():
        if count > 1:
            yield f"the turn {step} of {run} is there {count} x"
    requests = Counter(one.request_id for one in stored if one.request_id is not None)
    for request, count in requests.items():
        if count > 1:
            yield f"the request {request} is there {count} x"


def _unpaired(messages: Sequence[Message]) -> Iterator[str]:
    """Find calls without a result, results without a call, and results in another order."""
    for before, after in pairwise([Message(role="user"), *messages]):
        asked = [] if before.completion is None else before.completion.calls
        told = after.results if after.role == "tool" else []
        wanted = [(call.id, call.name) for call in asked]
        given = [(result.call_id, result.name) for result in told]
        if wanted != given:
            yield f"the calls {wanted} have the results {given}"

"""The search attributes by which Temporal's list shows runs, and can be filtered.

All are keywords: plain text, which whoever may list workflows reads. A server refuses an attribute
that it does not know, again and again, so whether it has them is asked once, when a run is opened,
and kept with the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from temporalio.common import SearchAttributeKey

RunState = Literal[
    "running",
    "waits for approval",
    "waits for an answer",
    "unknown",
    "undoing",
    "partly compensated",
    "refused",
    "done",
]
"""``unknown``: an action is. ``refused``: the ledger let the run go no further. ``done``: nothing
waits for a person; how it ended is the workflow's status."""

AGENT: Final = SearchAttributeKey.for_keyword("CommitlineAgent")
THREAD: Final = SearchAttributeKey.for_keyword("CommitlineThread")
STATE: Final = SearchAttributeKey.for_keyword("CommitlineState")
ATTRIBUTES: Final = (AGENT, THREAD, STATE)

MOST_CHARACTERS: Final = 200
"""Of a value. A visibility store of SQL holds 255."""


@dataclass(frozen=True)
class Listing:
    """What Temporal's list says of a workflow from its beginning."""

    agent: str
    """The agent, or the plan."""
    thread_id: str = ""
    """The conversation, if it has a name."""

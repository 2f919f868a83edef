"""Model requests of other frameworks: a completion is recorded by its position, and read back.

So a retry, a retry of the workflow and a reset get the answer that was acted on. Without that a
reset plan differs, and the ledger refuses its calls. No token is spent twice.

What is recorded is the payload of the activity's result; nothing of the framework is known here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from temporalio import activity
from temporalio.common import RawValue

from ..activities.contract.action_header import ActionHeader
from ..activities.guard.ledger_write import finish
from ..canonical import dumps, parse
from ..identity import action_key
from ..ledger import ActionLedger
from .stored_payload import kept_value, payload_of


async def recorded_completion(
    ledger: ActionLedger, header: ActionHeader, request: Callable[[], Awaitable[Any]]
) -> RawValue:
    """Return the completion at a position: the recorded one, or else a new one, recorded.

    Args:
        ledger: Where it is kept.
        header: Which request of which run it is.
        request: Asks the model.

    Raises:
        LedgerUnavailable: The ledger was away before the request; Temporal tries again.
    """
    key = action_key(header.run_key, header.position)
    stands = await ledger.get_value(key)
    if stands is None:
        answer = kept_value(await request(), activity.payload_converter())
        text = dumps(answer)
        stands = await finish(lambda: ledger.keep_completion(key, header.run_key, text))
    return RawValue(payload_of(parse(stands)))

"""One attempt at one guarded call: claim, call at most once, and what follows from the end.

    ended with                    READ        IDEMPOTENT    LOOKUP       AT_MOST_ONCE
    ---------------------------   ----------  ------------  -----------  ------------
    a value                       ok          ok            ok           ok
    declined: nothing happened    error       error *       error *      error *
    not attempted                 again       again         again        again
    ... `tries` used up           error       error *       error *      error *
    still in progress             again, until the node's deadline; then as below
    transient, time-out           again       again, same   ask, then    unknown
                                              key           again
    ... `tries` used up           error       unknown       ask **       unknown
    anything else                 error       unknown       unknown      unknown
    a question to a person        the call waits as an intent, and is made again with the answer

    ** found: ok; surely never happened: error without effect; no time to know it: unknown.
    * unknown, where an earlier attempt may have sent something: a refusal or a failed connection
      speaks for its own call, and a tool's own check ("charged already") refuses *because* an
      earlier one went through.

"Again" is another attempt of Temporal's, after a while: it claims anew, and the row says what
it may do. Temporal's attempts are not limited. What the tool failed is counted on the row, so
that a dead worker or an outage of the ledger uses up none of its tries.

    `preparing`   the arguments, the keys, the state: what is claimed, and called with
    `read_call`   the table's first column: no row
    `action_call` the others: `claiming`, then `calling` or asking, then `recording`
    `aftermath`   the table's lower rows: another attempt, an error, or unknown
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...errors import ActionError
from ...ledger import ActionLedger, Effect
from ..contract.action_header import ActionHeader
from .action_call import ActionCall
from .calling import Invoke
from .guarded import Guarded
from .incoming_call import IncomingCall
from .preparing import Preparing
from .read_call import ReadCall


class GuardedCall:
    """One attempt at one guarded call; see the module.

    Args:
        ledger: Where it is claimed and recorded.
        guarded: The activity type.
        origin: Where the call comes from.
        invoke: Runs the activity.
    """

    def __init__(
        self, ledger: ActionLedger, guarded: Guarded, header: ActionHeader, invoke: Invoke
    ) -> None:
        self._ledger = ledger
        self._invoke = invoke
        self._call = IncomingCall(guarded, header)

    async def run(self, args: Sequence[Any]) -> Any:
        """Carry the call out, or find out what became of it; return what the workflow gets."""
        call, preparing = self._call, Preparing(self._ledger, self._call)
        prepared = await preparing.prepare(args)
        if isinstance(prepared, ActionError):
            call.log.info("tool.call_refused", code=prepared.code)
            return call.guarded.reply_refused(prepared, "")
        if call.guarded.effect is Effect.READ:
            standing = await preparing.begun_before()
            if standing is None:
                return await ReadCall(self._ledger, call, prepared, self._invoke).run()
            # An older worker took it for something else: its row counts.
            prepared = replace(prepared, request=standing)
        return await ActionCall(self._ledger, call, prepared, self._invoke).run()

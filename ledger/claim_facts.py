"""The business facts that a claim has locked, and the undos that keep an action from being sent.

An undo that names a fact undoes the action that holds it at the moment of the claim, and is sent in
the same transaction or later. So an action and an undo of its fact are never under way at once:

    the undo finds another holder than it was asked for     it is not sent
    the undo finds another undo of the same action          it waits, or is not sent
    the action finds an undo of its fact, sent before it    it waits, or is not sent

`claim_rules` says which; the fact's lock holds off whoever asks the same meanwhile.
"""

from __future__ import annotations

from ..identity import ActionKey
from .action_records import Action, ActionRequest, Outcome
from .claim_results import Busy
from .claim_rules import Fact, judge_fact, judge_undo, judge_undone
from .statements import Connection, fetch, fetch_one, fetch_row


class LockedFacts:
    """The facts that one transaction has locked."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._locked: dict[str, Fact] = {}

    async def lock(self, domain_key: str) -> Fact:
        """Lock a domain key; it is inserted if it is missing."""
        fact = await fetch_one(self._connection, Fact, "lock_domain_key", domain_key=domain_key)
        self._locked[domain_key] = fact
        return fact

    async def lock_undone_by(self, key: ActionKey) -> None:
        """Lock the fact that an action undoes, if it has a row, and names one."""
        seen = await fetch_row(self._connection, "fact_undone_by", key=key)
        if seen is not None and seen["undoes_domain_key"] is not None:
            await self.lock(seen["undoes_domain_key"])

    async def in_the_way(self, sent: Action | ActionRequest) -> Busy | Outcome | None:
        """Return what keeps an action from being sent: that it waits, or how it ends unsent."""
        connection = self._connection
        found: Busy | Outcome | None = None
        if sent.undoes_domain_key is not None:
            # Locked already, unless the row was written since this claim looked for it.
            fact = self._locked.get(sent.undoes_domain_key)
            found = judge_fact(sent.undoes, fact or await self.lock(sent.undoes_domain_key))
        if found is None and sent.undoes is not None:
            undone = await fetch(connection, Action, "lock_action", key=sent.undoes)
            live = await fetch(connection, Action, "live_undo", key=sent.undoes)
            found = judge_undo(undone, live)
        if found is None and sent.domain_key is not None:
            given = {"domain_key": sent.domain_key}
            live = await fetch(connection, Action, "live_undo_of_fact", **given)
            found = judge_undone(sent.domain_key, live)
        return found

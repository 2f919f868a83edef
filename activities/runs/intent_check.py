"""Checks an intent of the outbox by the definition of its tool, before anything is sent for it.

A role that may intend, and do nothing else, writes the request as it likes. Of what the tool's
definition decides nothing is taken from there: the effect, the key's life and the compensator are
written anew. What the definition does not allow is refused, and its row ends as an error without
effect: an approval that nobody gave, arguments that do not fit, an undo of something else.
"""

from __future__ import annotations

from typing import Final

from ...canonical import parse
from ...errors import CommitlineError, IntentRefused, InvalidArguments
from ...idempotency_key import undo_key
from ...identity import is_of_outbox
from ...ledger import Action, ActionLedger
from ...ledger.outbox_rules import MAX_ARGUMENTS, check_tool
from ...ledger.result_codec import error_text
from ...logs import Log
from ..app.app import App
from ..app.tool import Tool

log = Log()

_NOTHING: Final = "nothing was sent"


class IntentCheck:
    """Checks intents.

    Args:
        app: The tools that this worker serves.
        ledger: Where the intents are.
    """

    def __init__(self, app: App, ledger: ActionLedger) -> None:
        self._tools = {made.name: made for made in app.tools}
        self._ledger = ledger

    async def refusal_of(self, found: Action) -> str | None:
        """Return why an action may not be sent; None if it may, or if no check is due.

        Safe to repeat. An action for which something was sent has been checked before that.
        """
        made = self._tools.get(found.tool)
        intended = is_of_outbox(found.run_key)
        if made is None or found.dispatched_at is not None or not (intended or found.adopted):
            return None
        try:
            if intended:
                _check_call(made, found)
                await self._check_undone(made, found)
            else:
                check_tool(made)
        except CommitlineError as err:
            why = f"{err.message}: {_NOTHING}"
            await self._ledger.relay.call_off(found.key, why, kind=type(err).__name__)
            log.warning("relay.intent_refused", action_key=found.key, code=err.code)
            return why
        if not intended:
            return None  # its run has defined it
        await self._ledger.relay.define(
            found.key,
            effect=made.effect,
            key_ttl=made.key_ttl,
            compensator=None if made.compensate is None else made.compensate.name,
        )
        return None

    async def _check_undone(self, made: Tool, found: Action) -> None:
        """Refuse a call that undoes something else than its arguments say, or perhaps does."""
        fact = made.undoes_key(found.args)
        if found.undoes_domain_key != fact:
            raise IntentRefused(
                f"{made.name} undoes {_named(fact)} with these arguments, and "
                f"{_named(found.undoes_domain_key)} was named"
            )
        if found.undoes is None:
            return  # whether another action holds the fact by now is found when it is claimed
        undone = await self._ledger.get(found.undoes)
        if undone is None:
            raise IntentRefused(
                f"{found.undoes} is what {made.name} undoes, and its record is gone"
            )
        own = (found.domain_key or "").partition("~")[0]
        expected = undo_key(own, undone.generation) if own else ""
        if (found.domain_key or "") != expected:
            raise IntentRefused(f"{made.name} does not undo {undone.key} with these arguments")


def _named(fact: str | None) -> str:
    return "nothing" if fact is None else repr(fact)


def _check_call(made: Tool, found: Action) -> None:
    """Check the call by itself.

    Raises:
        IntentRefused: The tool's calls may not be intended, or not so.
        InvalidArguments: They do not fit the tool.
        ArgumentsChanged: They do, and the tool would be called with other ones.
        CommitlineError: As the tool's key has it.
    """
    check_tool(made)
    if len(found.args) > MAX_ARGUMENTS:
        raise InvalidArguments(f"{made.name}: over {MAX_ARGUMENTS} characters of arguments")
    try:
        made.effective(parse(found.args))
        made.check_stored(found.args)
        named, same = made.domain_key(found.args), made.sameness(found.args)
    except CommitlineError:
        raise
    except Exception as err:  # a validator of the application may raise anything
        raise InvalidArguments(f"{made.name}: {error_text(err)[:500]}") from err
    if named is not None and found.domain_key is None:
        raise IntentRefused(f"{made.name} has a key from the domain, and none was given")
    if same != found.effective_digest:
        raise IntentRefused(f"the intent's digest is not that of its arguments for {made.name}")

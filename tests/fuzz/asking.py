"""Calls that wait for a person: for an approval before they are made, or for an answer midway.

The side of the workflow waits, and looks from time to time; `people.Person` decides and answers.
Two people may read the same, and only the word of one of them may count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Final

from commitline.canonical import digest, dumps, parse
from commitline.ledger import ActionRequest, ApprovalRequest
from commitline.tests.fuzz.actor import Actor, NoEnd
from commitline.tests.fuzz.faults import Cancelled
from commitline.tests.fuzz.scene import AgentRun
from commitline.tests.fuzz.tools import TOOLS

_EVERY: Final = 20
"""Ledger calls, of all, between two looks."""
_MOST_LOOKS: Final = 30
_EXPIRES: Final = timedelta(hours=1)
"""Time passes as the clock lets it: `world_time.Clock`."""


async def approved(
    actor: Actor, request: ActionRequest, run: AgentRun, before: Callable[[], None]
) -> ActionRequest | None:
    """Wait until a person has decided about a call; return what they approved, if they did.

    Args:
        actor: Who makes the call.
        request: The call, as its plan has it.
        run: The run that makes it.
        before: Called before each look: it raises where nobody waits any more.
    """
    approvals, key = actor.ledger.approvals, request.key
    found, row = await actor.do("look for approval", key, approvals.look(key))
    if found is None and row is None:
        asked = ApprovalRequest(
            run_key=request.run_key,
            position=request.position,
            thread_id=request.thread_id or request.run_key,
            tool=request.tool,
            args=request.args,
            requested_digest=request.requested_digest,
            expires_after=_EXPIRES,
        )
        since = actor.scene.engine.now()
        found = await actor.do("request approval", key, approvals.request(asked, attempt_at=since))
    for _ in range(_MOST_LOOKS):
        if found is None or found.state != "waiting":
            break
        before()
        if run.cancelled:
            raise Cancelled
        await actor.scene.pace.rest(_EVERY)
        found = await approvals.get(key)
    else:
        raise NoEnd
    if found is None or found.state != "approved":
        return None
    args = found.approved_args
    tool = TOOLS[request.tool]
    effective = digest(parse(args))
    return replace(request, args=args, effective_digest=effective, domain_key=tool.domain_key(args))


async def decide_one(person: Actor) -> bool:
    """Decide about a call that waits; return whether there was one."""
    found = await person.ledger.approvals.list(limit=1)
    if not found:
        return False
    one = found[0]
    await person.scene.pace.rest(person.chance.random() * _EVERY)  # they read it
    approve = person.chance.random() < 0.8
    edited = approve and person.chance.random() < 0.3
    changed = dumps({**parse(one.args), "cents": 3900}) if edited else None
    decide = person.ledger.approvals.decide(
        one.key, approve=approve, by=person.name, edited_args=changed
    )
    decided = await person.do("decide", one.key, decide)
    assert decided.decision == ("approved" if approve else "rejected"), "a refusal is an error"
    person.scene.words[one.key, "approval"].add((decided.decision, changed))
    return True


async def answer_one(person: Actor) -> bool:
    """Answer a question that waits; return whether there was one."""
    found = await person.ledger.questions.list(limit=1)
    if not found:
        return False
    one = found[0]
    await person.scene.pace.rest(person.chance.random() * _EVERY)
    word = dumps(f"{person.name} says {person.chance.randrange(1000)}")
    answer = person.ledger.questions.answer(one.key, one.number, word, by=person.name)
    answered = await person.do("answer", one.key, answer)
    person.scene.words[one.key, f"answer {answered.number}"].add(word)
    return True

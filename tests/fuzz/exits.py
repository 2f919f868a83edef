"""The end: everybody stops, all time is over, and every row takes the exit that is open to it.

    the relay     ends the runs whose workflows are gone, and settles what is due
    a person      settles what is left to a person
    once more     until neither finds anything to do

What is pending after that has no exit (`checks`).
"""

from __future__ import annotations

from commitline.errors import CommitlineError
from commitline.tests.fuzz.people import Person
from commitline.tests.fuzz.relay import Relay
from commitline.tests.fuzz.scene import Scene
from commitline.tests.fuzz.world_time import Clock

_MOST_ROUNDS = 40


async def walk_exits(scene: Scene, relay: Relay, person: Person, clock: Clock) -> None:
    """Take the exits, until nothing is left to do."""
    for run in scene.runs.values():
        run.gone_at = run.gone_at or scene.engine.now()
    for _ in range(_MOST_ROUNDS):
        await clock.pass_all_time()
        done = await relay.end_lost()
        while settled := await relay.settle_due(limit=100):
            done += settled
        if not done + await _settle_all(person):
            return
    scene.violation("", f"after {_MOST_ROUNDS} rounds something is still to be done")


async def _settle_all(person: Person) -> int:
    settled = 0
    for one in await person.ledger.list(only_parked=True, limit=100_000):
        if one.duplicate_of is not None:
            continue  # settled together with what it repeats
        try:
            await person.settle(one)
            settled += 1
        except CommitlineError as err:
            person.scene.trace.note(one.key, f"{person.name} may not settle it: {err}")
    return settled

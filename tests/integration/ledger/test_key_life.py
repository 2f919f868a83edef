"""The life of an idempotency key: what is sent again within it, and what is not after it."""

from __future__ import annotations

import pytest

from commitline.ledger import ActionLedger, Effect, LookUp, Parked
from commitline.ledger.pool import Pool
from commitline.tests.builders import dispatched
from commitline.tests.integration.ledger.shipments import (
    HOUR,
    MINUTE,
    SLACK,
    action,
    age,
    asked,
    attempt,
    row,
)

pytestmark = pytest.mark.usefixtures("two_runs")


@pytest.mark.parametrize("can_look_up", [True, False])
async def test_a_key_that_is_forgotten_is_asked_about_if_that_can_be_else_it_is_unknown(
    ledger: ActionLedger, pool: Pool, *, can_look_up: bool
) -> None:
    request = action(effect=Effect.IDEMPOTENT, key_ttl=HOUR, can_look_up=can_look_up)
    await dispatched(ledger, request, attempt())
    await age(pool, HOUR)

    claim = await ledger.claim(request, attempt(1))

    assert isinstance(claim, LookUp if can_look_up else Parked)
    assert (await row(ledger, request.key)).tries == 1


async def test_a_forgotten_key_is_sent_again_only_after_asking_and_then_asked_about_again(
    ledger: ActionLedger, pool: Pool
) -> None:
    request = action(effect=Effect.IDEMPOTENT, key_ttl=HOUR)
    await dispatched(ledger, request, attempt())
    await age(pool, HOUR)
    ask = await asked(ledger, request, attempt(1))
    await ledger.send_after_lookup(request, ask.call)

    assert isinstance(await ledger.claim(request, attempt(2)), LookUp)


async def test_a_call_that_is_sent_again_must_end_within_what_is_left_of_its_keys_life(
    ledger: ActionLedger, pool: Pool
) -> None:
    request = action(effect=Effect.IDEMPOTENT, key_ttl=HOUR)
    by = attempt(1)
    first = await dispatched(ledger, request, attempt())
    await age(pool, 20 * MINUTE)

    taken = await dispatched(ledger, request, by)
    await age(pool, 50 * MINUTE)
    again = await dispatched(ledger, request, by)

    assert first.key_life is None
    assert taken.key_life is not None
    assert 40 * MINUTE - SLACK < taken.key_life <= 40 * MINUTE
    assert again.key_life is not None
    assert 10 * MINUTE - SLACK < again.key_life <= 10 * MINUTE


async def test_a_key_that_lives_for_ever_or_was_never_sent_sets_no_time(
    ledger: ActionLedger,
) -> None:
    for_ever = action("0.0", effect=Effect.IDEMPOTENT)
    await dispatched(ledger, for_ever, attempt())
    never_sent = action("0.1", effect=Effect.IDEMPOTENT, key_ttl=HOUR)
    by = attempt()
    await dispatched(ledger, never_sent, by)
    await ledger.hand_back(never_sent, by)

    claims = [await dispatched(ledger, one, attempt(1)) for one in (for_ever, never_sent)]

    assert [(claim.key_life, claim.taken_over) for claim in claims] == [(None, True), (None, False)]

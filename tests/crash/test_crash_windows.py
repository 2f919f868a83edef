"""A worker is killed in each window of an action; then the outside world is asked."""

from typing import Final

import pytest

from commitline.tests.crash.stage import SHOP, Aftermath, Played, Scene, Script, Stage

CHARGE_BODY: Final = '{"order_id": "4821", "amount_cents": 4900}'

# Each point, and how many charge requests the provider has seen in the end.
CHARGE_REQUESTS: Final = {
    "before_claim": 1,
    "after_claim": 1,
    "after_effect": 2,
    "before_record": 2,
    "after_record": 1,
}
# Each point, and how many mails were sent: what may have been sent is not sent again.
LOST_MAILS: Final = {"after_claim": 0, "after_effect": 1, "before_record": 1}
KEPT_MAILS: Final = ("before_claim", "after_record")


@pytest.fixture(scope="module")
def crashed(stage: Stage) -> Played[Aftermath]:
    """The shop's run, its worker killed at each point in turn and another one taking over."""
    points = [
        *(f"{point}@charge_card" for point in CHARGE_REQUESTS),
        *(f"{point}@send_receipt" for point in (*LOST_MAILS, *KEPT_MAILS)),
    ]
    return stage.play({point: _crash_the_shop(point) for point in points})


def _crash_the_shop(point: str) -> Script[Aftermath]:
    async def play(scene: Scene) -> Aftermath:
        return await scene.crash_and_finish(SHOP, at=point)

    return play


@pytest.mark.parametrize(("point", "requests"), CHARGE_REQUESTS.items())
def test_a_charge_happens_once_wherever_its_worker_is_killed(
    crashed: Played[Aftermath], point: str, requests: int
) -> None:
    after = crashed[f"{point}@charge_card"]

    assert after.effects["charge:4821"] == 1
    assert after.sent["charge"] == [("order-4821-charge", CHARGE_BODY)] * requests


@pytest.mark.parametrize(("point", "requests"), CHARGE_REQUESTS.items())
def test_a_charge_has_one_row_that_says_what_was_sent(
    crashed: Played[Aftermath], point: str, requests: int
) -> None:
    row = crashed[f"{point}@charge_card"].row("charge_card")

    assert (row.state, row.idempotency_key) == ("ok", "order-4821-charge")
    assert row.args == '{"order_id":"4821","amount_cents":4900}'
    assert row.tries == (1 if point in ("before_claim", "after_record") else 2)


@pytest.mark.parametrize("point", [f"{point}@charge_card" for point in CHARGE_REQUESTS])
def test_the_run_completes_with_one_result_per_call_in_order(
    crashed: Played[Aftermath], point: str
) -> None:
    after = crashed[point]

    assert after.output.startswith("Order 4821 is charged")
    assert [(result.call_id, result.name) for result in after.results] == [
        ("call_1", "lookup_order"),
        ("call_2", "charge_card"),
        ("call_3", "send_receipt"),
    ]
    assert after.told("charge_card").status == "ok"


@pytest.mark.parametrize(("point", "mails"), LOST_MAILS.items())
def test_a_mail_that_may_have_been_sent_is_not_sent_again_and_is_told_as_unknown(
    crashed: Played[Aftermath], point: str, mails: int
) -> None:
    after = crashed[f"{point}@send_receipt"]
    row = after.row("send_receipt")

    assert after.effects.get("mail:4821", 0) == mails
    assert len(after.sent.get("mail", [])) == mails
    assert (row.state, row.tries) == ("unknown", 1)
    assert row.parked_reason == (
        "an earlier attempt was lost after it was dispatched, "
        "and send_receipt must not be sent twice"
    )
    assert after.told("send_receipt").status == "unknown"
    assert "whether the receipt was sent is not known" in after.output


@pytest.mark.parametrize("point", KEPT_MAILS)
def test_a_mail_whose_outcome_is_certain_is_sent_once_and_told_as_sent(
    crashed: Played[Aftermath], point: str
) -> None:
    after = crashed[f"{point}@send_receipt"]

    assert after.effects["mail:4821"] == 1
    assert len(after.sent["mail"]) == 1
    assert after.row("send_receipt").state == "ok"
    assert after.told("send_receipt").status == "ok"

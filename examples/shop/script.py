"""What a model would say in the shop, as a script: the example needs no provider's key."""

from commitline import ModelRequest, ScriptedModel
from commitline.testing import call, say


def _answer(request: ModelRequest) -> str:
    """Say what a model would say after it has read the results of the three calls."""
    status = {result.name: result.status for result in request.messages[-1].results}
    charged = "is charged" if status["charge_card"] == "ok" else "may not be charged"
    receipt = {
        "ok": "the receipt is on its way",
        "error": "no receipt was sent",
        "unknown": "whether the receipt was sent is not known; a colleague is looking into it",
    }[status["send_receipt"]]
    return f"Order 4821 {charged}, and {receipt}."


SCRIPT = ScriptedModel(
    "scripted",
    [
        call(
            ("lookup_order", {"order_id": "4821"}),
            ("charge_card", {"order_id": "4821", "amount_cents": 4900}),
            ("send_receipt", {"order_id": "4821", "to": "ada@example.com"}),
        ),
        lambda request: say(_answer(request)),
    ],
)

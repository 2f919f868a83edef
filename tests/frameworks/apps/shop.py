"""The shop's activities and tools as other frameworks have them; the worker dies where it is told.

``GUARDED`` says whether the plugin is there. ``DIE_AFTER`` names the tool after whose effect this
process kills itself. ``APPROVE`` says whether a person approves each mail. ``REPLAY`` names a
history that is replayed, and nothing is served.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client, WorkflowHistory
from temporalio.plugin import SimplePlugin as Plugin
from temporalio.worker import Replayer, Worker

import commitline

GUARDED: Final = os.environ["GUARDED"] == "1"
APPROVE: Final = os.environ.get("APPROVE") == "1"
FOLDER: Final = Path(os.environ["CRASH_FOLDER"])


def key_of_call() -> str | None:
    """Return the key that the plugin gives to the running call."""
    return commitline.current().idempotency_key if GUARDED else None


def post(path: str, body: dict[str, object], key: str | None) -> str:
    """Send a request to the provider; return the id that it answers with."""
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Idempotency-Key"] = key
    url = os.environ["SHOP_PROVIDER_URL"] + path
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(json.load(answer)["id"])


def die_after(tool: str) -> None:
    """Kill this process if it is to die after the effect of this tool."""
    if os.environ.get("DIE_AFTER") == tool:
        os.kill(os.getpid(), signal.SIGKILL)


def charge(order_id: str, cents: int, *, key: str | None) -> str:
    """Charge an order."""
    receipt = post("/charges", {"order_id": order_id, "amount_cents": cents}, key)
    die_after("charge_card")
    return receipt


def refund(order_id: str, charge: str, *, key: str | None) -> str:
    """Refund a charge."""
    refunded = post("/refunds", {"order_id": order_id, "charge": charge}, key)
    die_after("refund")
    return refunded


def mail(to: str, *, key: str | None) -> str:
    """Send a mail."""
    sent = post("/mails", {"to": to, "text": "hi"}, key)
    die_after("send_mail")
    return sent


def count_model_call() -> None:
    """Count a request to the model."""
    with (FOLDER / "model_calls").open("a") as counted:
        counted.write("x")


def _recorded(history: Path) -> WorkflowHistory:
    return WorkflowHistory.from_json("clerk", history.read_text(encoding="utf-8"))


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run an app, which is imported: LangGraph takes no task of a ``__main__``."""
    asyncio.run(main())


async def serve(clerk: type, *, client: Sequence[Plugin], **worker: Any) -> None:
    """Serve a workflow until the process is killed, or replay its history.

    Args:
        clerk: The workflow.
        client: The client's plugins.
        worker: Further options of the worker.
    """
    if history := os.environ.get("REPLAY"):
        recorded = _recorded(Path(history))
        plugins = [*client, *worker.get("plugins", ())]
        await Replayer(workflows=[clerk], plugins=plugins).replay_workflow(recorded)
        return
    connected = await Client.connect(os.environ["TEMPORAL_ADDRESS"], plugins=client)
    await Worker(
        connected,
        task_queue=os.environ["TASK_QUEUE"],
        workflows=[clerk],
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
        **worker,
    ).run()

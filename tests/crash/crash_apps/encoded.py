"""An app whose payloads no one reads without its codec, and an interceptor that both sides have."""

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from temporalio import client, worker
from temporalio.api.common.v1 import Payload
from temporalio.client import ClientConnectConfig
from temporalio.converter import DataConverter, PayloadCodec

from commitline import Agent, App, Effect, ScriptedModel, tool
from commitline.activities.model.scripted_model import call, say
from commitline.errors import ModelRejected

FOLDER = Path(os.environ["CRASH_FOLDER"])
ENCODING = b"binary/shop"


class Codec(PayloadCodec):
    """Stands for an encryption: what it has encoded is no JSON any more."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encode whole payloads."""
        return [
            Payload(metadata={"encoding": ENCODING}, data=zlib.compress(one.SerializeToString()))
            for one in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decode what it has encoded, and leave everything else."""
        return [
            Payload.FromString(zlib.decompress(one.data))
            if one.metadata["encoding"] == ENCODING
            else one
            for one in payloads
        ]


class Seen(client.Interceptor, worker.Interceptor):
    """Notes which side has it."""

    def intercept_client(self, next: client.OutboundInterceptor) -> client.OutboundInterceptor:
        """Note a client."""
        _note("client")
        return next

    def intercept_activity(
        self, next: worker.ActivityInboundInterceptor
    ) -> worker.ActivityInboundInterceptor:
        """Note a worker."""
        _note("worker")
        return next


def _note(side: str) -> None:
    with (FOLDER / "seen").open("a") as file:
        file.write(f"{side} {os.getpid()}\n")


@tool(effect=Effect.IDEMPOTENT, approval=True)
async def pay(order_id: str) -> str:
    """Pay for an order, once a person has approved it."""
    return f"paid for {order_id}"


def _reject(request: Any) -> Any:
    raise ModelRejected("no such model")


async def options() -> ClientConnectConfig:
    """Describe the client; a coroutine, as one that fetches a key is."""
    return {
        "data_converter": DataConverter(payload_codec=Codec()),
        "interceptors": [Seen()],
        "identity": "shop",
    }


_pays = ScriptedModel("pays", [call(("pay", {"order_id": "4821"})), say("Paid.")])
app = App(
    [
        Agent("support", model=_pays, instructions="", tools=[pay]),
        Agent("broken", model=ScriptedModel("broken", [_reject]), instructions=""),
    ],
    temporal=options,
)

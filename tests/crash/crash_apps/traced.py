"""An agent whose worker traces; every span is written where it begins and where it ends."""

import json
import os
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from temporalio.contrib.opentelemetry import create_tracer_provider

from commitline import Agent, App, Effect, ScriptedModel, tool
from commitline.activities.model.scripted_model import call, say


class Written(SpanProcessor):
    """Writes each span to a file, which a kill does not take back."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self._write("begun", span)

    def on_end(self, span: ReadableSpan) -> None:
        self._write("ended", span)

    def _write(self, what: str, span: ReadableSpan) -> None:
        told: dict[str, Any] = {"what": what, "pid": os.getpid(), **json.loads(span.to_json())}
        with (Path(os.environ["CRASH_FOLDER"]) / "spans").open("a") as file:
            file.write(json.dumps(told) + "\n")


provider = create_tracer_provider()
provider.add_span_processor(Written())
trace.set_tracer_provider(provider)


@tool(effect=Effect.READ)
async def price(what: str) -> str:
    """Say what it costs."""
    return f"{what} costs 12"


@tool(effect=Effect.IDEMPOTENT)
async def charge(card: str) -> str:
    """Charge a card."""
    return f"charged {card}"


app = App(
    [
        Agent(
            "support",
            model=ScriptedModel(
                "scripted:traced",
                [
                    call(("price", {"what": "a blue one"})),
                    call(("charge", {"card": "of Ada"})),
                    say("done"),
                ],
            ),
            instructions="",
            tools=[price, charge],
        )
    ]
)

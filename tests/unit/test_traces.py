"""Spans: named by the convention; content where it is asked for; off is nothing at all."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import error_attributes, gen_ai_attributes
from opentelemetry.semconv.schemas import Schemas
from temporalio.contrib.opentelemetry import create_tracer_provider

from commitline import traces
from commitline.activities.contract.conversation import (
    Completion,
    Message,
    ToolCall,
    ToolResult,
)
from commitline.activities.model.traced_messages import input_messages, output_messages
from commitline.errors import ConfigurationError
from commitline.log_output import configure_logging
from commitline.logs import Log
from commitline.traces import Traces

GEN_AI = [value for value in vars(gen_ai_attributes).values() if isinstance(value, str)]


class Spans:
    """A tracer whose spans are kept."""

    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer = provider.get_tracer("test")

    @property
    def one(self) -> ReadableSpan:
        (span,) = self._kept.get_finished_spans()
        return span


@pytest.fixture
def spans() -> Spans:
    return Spans()


def call() -> None:
    given = {"run": "r/1", "action": "r/1:0.0", "effect": "idempotent", "attempt": 1}
    with traces.tool_call("charge", **given):  # type: ignore[arg-type]
        traces.note_content({traces.ARGUMENTS: '{"card":"4242"}'})
        traces.note({traces.OUTCOME: "ok"})


def test_names_are_those_of_the_conventions_of_one_version() -> None:
    given = [value for value in vars(traces).values() if isinstance(value, str)]
    named = {value for value in given if value.startswith("gen_ai.")}

    assert len(named) == 15
    assert named <= set(GEN_AI)
    assert traces.ERROR == error_attributes.ERROR_TYPE
    assert Schemas.V1_44_0.value == traces.SCHEMA_URL


@pytest.mark.parametrize("content", [False, True])
def test_arguments_are_in_a_span_only_where_content_is_asked_for(
    spans: Spans, *, content: bool
) -> None:
    with traces.tracing_by(Traces(spans.tracer, content=content)):
        call()

    attributes = dict(spans.one.attributes or {})
    assert attributes.pop("gen_ai.tool.call.arguments", None) == (
        '{"card":"4242"}' if content else None
    )
    assert attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "charge",
        "gen_ai.tool.type": "function",
        "commitline.attempt": 1,
        "commitline.run.key": "r/1",
        "commitline.action.key": "r/1:0.0",
        "commitline.action.effect": "idempotent",
        "commitline.action.outcome": "ok",
    }


def test_content_is_redacted_and_messages_are_written_as_the_conventions_say(
    spans: Spans,
) -> None:
    asked = ToolCall("c1", "charge", '{"card":"of Ada"}')
    said = Completion(text="I see.", calls=[asked], finish_reason="tool_calls")
    told = ToolResult("0.0", "c1", "charge", "ok", '"ch_1"')
    messages = [
        Message("user", text="Use postgres://ada:hunter2@db/shop"),
        Message("assistant", completion=said),
        Message("tool", results=[told]),
    ]
    with (
        traces.tracing_by(Traces(spans.tracer, content=True)),
        traces.model_request("google-gla:gemini-3", agent="clerk"),
    ):
        traces.note_content({traces.INPUT_MESSAGES: input_messages(messages)})
        traces.note_content({traces.OUTPUT_MESSAGES: output_messages(said)})

    attributes: dict[str, Any] = dict(spans.one.attributes or {})
    assert attributes["gen_ai.provider.name"] == "gcp.gemini"
    assert "hunter2" not in attributes["gen_ai.input.messages"]
    answer = {
        "role": "assistant",
        "parts": [
            {"type": "text", "content": "I see."},
            {"type": "tool_call", "id": "c1", "name": "charge", "arguments": '{"card":"of Ada"}'},
        ],
    }
    assert json.loads(attributes["gen_ai.input.messages"])[1:] == [
        answer,
        {
            "role": "tool",
            "parts": [{"type": "tool_call_response", "id": "c1", "response": '"ch_1"'}],
        },
    ]
    assert json.loads(attributes["gen_ai.output.messages"]) == [
        answer | {"finish_reason": "tool_calls"}
    ]


def test_an_error_is_named_by_its_type_and_not_by_its_text(spans: Spans) -> None:
    with (
        traces.tracing_by(Traces(spans.tracer, content=False)),
        pytest.raises(ValueError, match="4242"),
        traces.model_request("openai:gpt-5", agent="clerk"),
    ):
        raise ValueError("no card 4242")

    span = spans.one
    assert (span.name, span.kind) == ("chat gpt-5", trace.SpanKind.CLIENT)
    assert span.attributes is not None
    assert span.attributes["error.type"] == "ValueError"
    assert span.attributes["gen_ai.provider.name"] == "openai"
    assert not span.status.is_ok
    assert "4242" not in span.to_json()


def test_a_span_links_to_one_that_was_kept_and_never_to_itself(spans: Spans) -> None:
    kept = f"00-{1:032x}-{2:016x}-01"
    with (
        traces.tracing_by(Traces(spans.tracer, content=False)),
        traces.model_request("scripted", agent="clerk"),
    ):
        own = traces.trace_parent()
        for one in (kept, own, None, "nonsense"):
            traces.link(one, "takes over from")

    (link,) = spans.one.links
    assert (link.context.trace_id, link.context.span_id) == (1, 2)
    assert own is not None
    assert own.split("-")[2] == f"{spans.one.get_span_context().span_id:016x}"  # type: ignore[union-attr]


def test_where_nothing_is_traced_nothing_is_kept(spans: Spans) -> None:
    with spans.tracer.start_as_current_span("the application's own"):
        call()
        assert traces.trace_parent() is None

    assert not spans.one.attributes


def test_a_provider_whose_spans_a_replay_would_repeat_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert traces.begin("off") is None
    monkeypatch.setattr(trace, "get_tracer_provider", create_tracer_provider)
    assert traces.begin("on") is not None
    monkeypatch.setattr(trace, "get_tracer_provider", TracerProvider)
    with pytest.raises(ConfigurationError, match="create_tracer_provider"):
        traces.begin("on")


@pytest.fixture
def _kept_logging() -> Iterator[None]:
    kept, root = structlog.get_config(), logging.getLogger()
    handlers = root.handlers[:]
    yield
    structlog.configure(**kept)
    root.handlers[:] = handlers


@pytest.mark.usefixtures("_kept_logging")
def test_a_line_of_the_log_names_the_span_in_which_it_was_written(
    spans: Spans, capfd: pytest.CaptureFixture[str]
) -> None:
    configure_logging()
    with spans.tracer.start_as_current_span("the application's own"):
        Log().warning("tool.timed_out")
    Log().warning("tool.raised")

    inside, outside = map(json.loads, capfd.readouterr().err.splitlines())
    context = spans.one.get_span_context()
    assert context is not None
    assert (inside["trace_id"], inside["span_id"]) == (
        f"{context.trace_id:032x}",
        f"{context.span_id:016x}",
    )
    assert "trace_id" not in outside

"""Spans of OpenTelemetry: one for a run, a model request and a call of a tool; off by default.

The names are those of the semantic conventions for generative AI, at one version, and stand here
alone; what only the ledger knows begins with ``commitline.``. Contexts travel by the SDK's own
OpenTelemetry plugin, so a run is one trace, whichever workers carry it out.

A span that its worker does not live to end is never sent. So the row of an action keeps the span of
the attempt that has claimed it, and the attempt that takes over *links* to that.

OpenTelemetry is imported where it is used: without the extra ``otel`` nothing of it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from .errors import ConfigurationError
from .redaction import redact

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, Tracer
    from temporalio.client import ClientConnectConfig

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
"""The version of the conventions."""

OPERATION: Final = "gen_ai.operation.name"
AGENT: Final = "gen_ai.agent.name"
WORKFLOW: Final = "gen_ai.workflow.name"
CONVERSATION: Final = "gen_ai.conversation.id"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
ARGUMENTS: Final = "gen_ai.tool.call.arguments"
RESULT: Final = "gen_ai.tool.call.result"
ERROR: Final = "error.type"

RUN: Final = "commitline.run.id"
RUN_KEY: Final = "commitline.run.key"
ACTION: Final = "commitline.action.key"
EFFECT: Final = "commitline.action.effect"
OUTCOME: Final = "commitline.action.outcome"
ATTEMPT: Final = "commitline.attempt"
LINK: Final = "commitline.link"
"""Of a link: why it is there, ``takes over from`` or ``returns the outcome of``."""

_PROVIDERS: Final[Mapping[str, str]] = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "google": "gcp.gemini",
    "google-gla": "gcp.gemini",
    "google-vertex": "gcp.vertex_ai",
    "grok": "x_ai",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
"""The conventions' names of providers, where pydantic-ai has others. The rest keep theirs."""

_LONGEST: Final = 10_000
"""Characters of one content."""


@dataclass(frozen=True)
class Traces:
    """How a worker traces."""

    tracer: Tracer
    content: bool
    """Whether spans have arguments, results and messages."""


_traces: ContextVar[Traces | None] = ContextVar("commitline_traces", default=None)
"""Inherited by the tasks of a worker."""


@contextmanager
def tracing_by(traces: Traces | None) -> Iterator[None]:
    """Have the body, and the tasks that it starts, trace so; None is not at all."""
    token = _traces.set(traces)
    try:
        yield
    finally:
        with suppress(ValueError):  # left in another context than it was entered in
            _traces.reset(token)


def begin(setting: Literal["off", "on", "content"]) -> Traces | None:
    """Return how a worker traces, by the setting ``traces``; None is not at all. Safe to repeat.

    Spans go where the application's tracer provider sends them, or else by OTLP to where
    ``OTEL_EXPORTER_OTLP_ENDPOINT`` says.

    Raises:
        ConfigurationError: The extra ``otel`` is not installed, or the application has a provider
            whose spans a replay would send again.
    """
    if setting == "off":
        return None
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from temporalio.contrib.opentelemetry import ReplaySafeTracerProvider
    except ImportError as err:
        raise _not_installed() from err
    given = trace.get_tracer_provider()
    if isinstance(given, TracerProvider):
        raise ConfigurationError(
            "COMMITLINE_TRACES: the application's tracer provider would send spans again at each "
            "replay; make it by temporalio.contrib.opentelemetry.create_tracer_provider"
        )
    if not isinstance(given, ReplaySafeTracerProvider):
        trace.set_tracer_provider(_by_otlp())
    tracer = trace.get_tracer("commitline", schema_url=SCHEMA_URL)
    return Traces(tracer, content=setting == "content")


def with_context_plugin(
    options: ClientConnectConfig, setting: Literal["off", "on", "content"]
) -> ClientConnectConfig:
    """Return a client's options with the SDK's plugin, by which the context of a trace travels.

    Raises:
        ConfigurationError: As for `begin`.
    """
    if begin(setting) is None:
        return options
    from temporalio.contrib.opentelemetry import OpenTelemetryPlugin

    given = options.get("plugins") or []
    if any(isinstance(one, OpenTelemetryPlugin) for one in given):
        return options
    return {**options, "plugins": [OpenTelemetryPlugin(), *given]}


def _by_otlp() -> Any:
    import importlib

    from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from temporalio.contrib.opentelemetry import create_tracer_provider

    try:
        otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError as err:
        raise _not_installed() from err
    # Named, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES say otherwise.
    resource = Resource.create({SERVICE_NAME: "commitline"}).merge(OTELResourceDetector().detect())
    provider = create_tracer_provider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(otlp.OTLPSpanExporter()))
    return provider


def _not_installed() -> ConfigurationError:
    return ConfigurationError("COMMITLINE_TRACES needs the extra: pip install 'commitline[otel]'")


def flush() -> None:
    """Send the spans that have ended; what cannot be sent within five seconds is lost."""
    with suppress(Exception):
        from opentelemetry import trace

        trace.get_tracer_provider().force_flush(5_000)  # type: ignore[attr-defined]


# --- spans of activities


@contextmanager
def tool_call(tool: str, *, run: str, action: str, effect: str, attempt: int) -> Iterator[None]:
    """Trace one attempt at a call while the body runs; what it raises is the span's error."""
    given = {OPERATION: "execute_tool", TOOL: tool, TOOL_TYPE: "function", ATTEMPT: attempt}
    ledgers = {RUN_KEY: run, ACTION: action, EFFECT: effect}
    with _span(f"execute_tool {tool}", given | ledgers):
        yield


@contextmanager
def model_request(model: str, *, agent: str) -> Iterator[None]:
    """Trace one request to a model while the body runs."""
    provider, colon, name = model.partition(":")
    named = name if colon else model
    given = {OPERATION: "chat", AGENT: agent, REQUEST_MODEL: named}
    by = {PROVIDER: _PROVIDERS.get(provider, provider)}
    with _span(f"chat {named}", given | by, client=True):
        yield


@contextmanager
def _span(name: str, attributes: Mapping[str, Any], *, client: bool = False) -> Iterator[None]:
    traces = _traces.get()
    if traces is None:
        yield
        return
    from opentelemetry.trace import SpanKind

    kind = SpanKind.CLIENT if client else SpanKind.INTERNAL
    with traces.tracer.start_as_current_span(
        name,
        kind=kind,
        attributes=attributes,
        # The text of an error may quote arguments; its type does not.
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        except BaseException as err:
            fail(span, err)
            raise


def fail(span: Span, error: BaseException) -> None:
    """Mark a span as failed, by the type of the error."""
    from opentelemetry.trace import StatusCode

    name = getattr(error, "type", None) or type(error).__name__
    span.set_attribute(ERROR, str(name))
    span.set_status(StatusCode.ERROR)


def note(attributes: Mapping[str, Any], *, failed: str = "") -> None:
    """Add to the span of the running call or request. Never raises.

    Args:
        attributes: What is known by now.
        failed: What failed in it, if something did.
    """
    if _traces.get() is None:
        return
    with suppress(Exception):
        from opentelemetry import trace

        span = trace.get_current_span()
        span.set_attributes(dict(attributes))
        if failed:
            span.set_attribute(ERROR, failed)
            span.set_status(trace.StatusCode.ERROR)


def note_content(attributes: Mapping[str, str]) -> None:
    """The same of arguments, results and messages, where those are asked for."""
    traces = _traces.get()
    if traces is not None and traces.content:
        note({name: redact(text)[:_LONGEST] for name, text in attributes.items()})


def shows_content() -> bool:
    """Whether spans have arguments, results and messages."""
    traces = _traces.get()
    return traces is not None and traces.content


# --- links


def trace_parent() -> str | None:
    """Return the current span as W3C's traceparent, to be kept; None where nothing is traced."""
    if _traces.get() is None:
        return None
    with suppress(Exception):
        from opentelemetry import trace

        here = trace.get_current_span().get_span_context()
        if here.is_valid:
            return f"00-{here.trace_id:032x}-{here.span_id:016x}-{int(here.trace_flags):02x}"
    return None


def link(kept: str | None, why: str) -> None:
    """Link the current span to one that was kept (`trace_parent`), unless that is itself."""
    if kept is None or _traces.get() is None:
        return
    with suppress(Exception):
        from opentelemetry import trace

        span = trace.get_current_span()
        found = _context_of(kept)
        if found.span_id != span.get_span_context().span_id:
            span.add_link(found, {LINK: why})


def _context_of(kept: str) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    _, trace_id, span_id, flags = kept.split("-")
    return SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16))
    )

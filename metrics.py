"""What a worker measures: every metric by name, unit and attributes, and how code reports to one.

Code reports by `count`, `observe` and `set_to`, and knows nothing of where that goes: a worker
names its sink (`reporting_to`), and without one nothing is done. The names are public:
docs/reference/metrics.md lists them.

Names follow OpenTelemetry, but for the dots: what the SDK's core serves for Prometheus may have
none. Base units are in the names, and a counter gets the suffix ``_total`` where it is served.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Literal, Protocol

SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The bounds of a histogram's buckets: from a statement to the longest call."""


@dataclass(frozen=True, eq=False)
class Metric:
    """One metric."""

    name: str
    kind: Literal["counter", "histogram", "gauge"]
    unit: str
    """As UCUM has it: ``s``, or what is counted in braces."""
    meaning: str
    by: tuple[str, ...] = ()
    """Its attributes, besides the worker's namespace and task queue."""


VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "decision": ("requested", "approved", "rejected", "expired"),
    "direction": ("input", "output"),
    "end": ("answered", "expired"),
    "state": ("compensated", "partly compensated", "nothing to undo"),
}
"""Attributes whose values are known beforehand. Those of ``tool`` and ``model`` are the app's."""


def _counter(name: str, unit: str, meaning: str, *by: str) -> Metric:
    return Metric(f"commitline_{name}", "counter", f"{{{unit}}}", meaning, by)


def _seconds(name: str, meaning: str, *by: str) -> Metric:
    return Metric(f"commitline_{name}_seconds", "histogram", "s", meaning, by)


def _gauge(name: str, unit: str, meaning: str, *by: str) -> Metric:
    return Metric(f"commitline_{name}", "gauge", unit, meaning, by)


# --- calls of tools
TOOL_DURATION = _seconds("tool_duration", "How long attempts at calls took.", "tool", "outcome")
TOOL_TIMEOUTS = _counter(
    "tool_timeouts", "attempt", "Attempts that passed their tool_timeout.", "tool"
)
NODE_TIMEOUTS = _counter("node_timeouts", "call", "Calls that ran out of node_timeout.", "tool")
TOOL_ERRORS = _counter(
    "tool_errors", "exception", "Exceptions that tools raised, ToolRefused among them.", "tool"
)
REPLAYS = _counter(
    "replays", "call", "Recorded outcomes that were returned without a call.", "tool"
)
TAKEOVERS = _counter(
    "takeovers", "attempt", "Attempts that took over from a lost or failed one.", "tool"
)
FENCED_RECORDS = _counter(
    "fenced_records", "record", "Records refused, as a later attempt owns the row.", "tool"
)
LATE_RECORDS = _counter(
    "late_records", "record", "Outcomes of abandoned calls that were recorded later.", "tool"
)
PARKS = _counter("parks", "action", "Actions that became unknown.", "tool")
UNRECORDED_OUTCOMES = _counter(
    "unrecorded_outcomes", "outcome", "Outcomes that could not be recorded at once.", "tool"
)
DIVERGENCES = _counter("divergences", "call", "Plans that diverged.", "tool")

# --- requests to models
MODEL_DURATION = _seconds("model_duration", "How long model requests took.", "model", "outcome")
MODEL_TIMEOUTS = _counter(
    "model_timeouts", "request", "Model requests that passed their model_timeout.", "model"
)
MODEL_ERRORS = _counter("model_errors", "request", "Model requests that failed.", "model")
MODEL_TOKENS = _counter(
    "model_tokens", "token", "Tokens that model requests used.", "model", "direction"
)

# --- people
APPROVALS = _counter("approvals", "approval", "What became of approvals.", "decision")
QUESTIONS = _counter("questions", "question", "What became of questions.", "end")
UNDOS = _counter("undos", "undo", "Undos that ended, by what they left.", "state")
LOST_RUNS = _counter("lost_runs", "run", "Runs that Temporal ended from outside.")

# --- the ledger
LEDGER_CALL_DURATION = _seconds(
    "ledger_call_duration", "How long ledger calls took, waiting included.", "call", "outcome"
)
LEDGER_OUTAGES = _counter(
    "ledger_outages", "call", "Ledger calls without an answer within their deadline."
)
LEDGER_UP = _gauge("ledger_up", "1", "1 if the ledger answered the last look, else 0.")
POOL_CONNECTIONS = _gauge("pool_connections", "{connection}", "Open connections.", "use")
POOL_LIMIT = _gauge("pool_limit", "{connection}", "Connections at most.")
POOL_WAITING = _gauge("pool_waiting", "{call}", "Ledger calls that wait for a connection.")

# --- what waits
WAITING = _gauge("waiting", "{item}", "What waits, up to 100 of each kind.", "kind")
WAITING_OLDEST = _gauge(
    "waiting_oldest_seconds",
    "s",
    "How long the oldest of a kind has waited, or 0.",
    "kind",
)

METRICS: Final = tuple(one for one in list(globals().values()) if isinstance(one, Metric))
"""Every metric."""


class Sink(Protocol):
    """Where a worker's metrics go. ``values`` are those of `Metric.by`, in its order."""

    def add(self, metric: Metric, number: int, values: tuple[str, ...]) -> None:
        """Add to a counter."""
        ...

    def record(self, metric: Metric, seconds: float, values: tuple[str, ...]) -> None:
        """Record in a histogram."""
        ...

    def put(self, metric: Metric, number: float, values: tuple[str, ...]) -> None:
        """Set a gauge."""
        ...


_sink: ContextVar[Sink | None] = ContextVar("commitline_metrics", default=None)
"""Inherited by the tasks of a worker: its activities, and the relay's look."""


@contextmanager
def reporting_to(sink: Sink | None) -> Iterator[None]:
    """Have the body, and the tasks that it starts, report to a sink; None is nowhere."""
    token = _sink.set(sink)
    try:
        yield
    finally:
        with suppress(ValueError):  # left in another context than it was entered in
            _sink.reset(token)


def is_reporting() -> bool:
    """Whether what is measured here goes anywhere."""
    return _sink.get() is not None


def count(metric: Metric, *values: str, number: int = 1) -> None:
    """Add to a counter. Never raises: where it goes may be the application's code."""
    if (sink := _sink.get()) is not None:
        with suppress(Exception):
            sink.add(metric, number, values)


def observe(metric: Metric, seconds: float, *values: str) -> None:
    """Record a duration in a histogram. Never raises."""
    if (sink := _sink.get()) is not None:
        with suppress(Exception):
            sink.record(metric, seconds, values)


def set_to(metric: Metric, number: float, *values: str) -> None:
    """Set a gauge. Never raises."""
    if (sink := _sink.get()) is not None:
        with suppress(Exception):
            sink.put(metric, number, values)

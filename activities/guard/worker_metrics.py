"""`WorkerMetrics`: a worker's metrics in the SDK's meter, which goes where its runtime sends it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import product
from typing import Any

from temporalio.client import Client
from temporalio.common import MetricMeter
from temporalio.runtime import Runtime

from ...metrics import METRICS, VALUES, Metric


class WorkerMetrics:
    """The instruments of one worker (`metrics.Sink`).

    Args:
        meter: Of the worker's runtime.
        namespace: Of the worker; an attribute of each metric.
        task_queue: The same.
    """

    def __init__(self, meter: MetricMeter, *, namespace: str, task_queue: str) -> None:
        self._meter = meter.with_additional_attributes(
            {"namespace": namespace, "task_queue": task_queue}
        )
        # An instrument with its attributes bound costs a third of one that binds them each time.
        self._bound: dict[tuple[Metric, tuple[str, ...]], Any] = {}

    @classmethod
    def of(cls, client: Client, task_queue: str) -> WorkerMetrics | None:
        """Return the metrics of a worker; None where its runtime sends them nowhere."""
        with suppress(Exception):  # the runtime may be the application's
            meter = (client.service_client.config.runtime or Runtime.default()).metric_meter
            if meter is not MetricMeter.noop:
                return cls(meter, namespace=client.namespace, task_queue=task_queue)
        return None

    def begin(self, *, tools: Iterable[str] = (), models: Iterable[str] = ()) -> None:
        """Show each counter from the start, at zero: a rate over a new series misses its first.

        Safe to repeat.

        Args:
            tools: The names of the tools that the worker serves.
            models: The names of its models, as far as they are known.
        """
        known = {**VALUES, "tool": tuple(tools), "model": tuple(models)}
        for metric in METRICS:
            if metric.kind == "counter":
                for values in product(*(known[name] for name in metric.by)):
                    with suppress(Exception):
                        self.add(metric, 0, values)

    def add(self, metric: Metric, number: int, values: tuple[str, ...]) -> None:
        """See `metrics.Sink`."""
        self._instrument(metric, values).add(number)

    def record(self, metric: Metric, seconds: float, values: tuple[str, ...]) -> None:
        """See `metrics.Sink`."""
        self._instrument(metric, values).record(max(seconds, 0.0))

    def put(self, metric: Metric, number: float, values: tuple[str, ...]) -> None:
        """See `metrics.Sink`."""
        self._instrument(metric, values).set(number)

    def _instrument(self, metric: Metric, values: tuple[str, ...]) -> Any:
        found = self._bound.get((metric, values))
        if found is None:
            found = self._bound[metric, values] = self._made(metric, values)
        return found

    def _made(self, metric: Metric, values: Sequence[str]) -> Any:
        given = (metric.name, metric.meaning, metric.unit)
        match metric.kind:
            case "counter":
                made: Any = self._meter.create_counter(*given)
            case "histogram":
                made = self._meter.create_histogram_float(*given)
            case "gauge":
                made = self._meter.create_gauge_float(*given)
        attributes = dict(zip(metric.by, values, strict=True))
        return made.with_additional_attributes(attributes) if attributes else made

"""What a worker counts, wherever its runtime sends it."""

from __future__ import annotations

from contextlib import suppress

from temporalio import activity


def count(name: str, subject: str, *, of: str = "tool") -> None:
    """Count an event in the SDK's metrics, which go wherever the worker's runtime sends them.

    Never raises: the meter is the runtime's, and may be the application's.
    """
    with suppress(Exception):
        meter = activity.metric_meter().with_additional_attributes({of: subject})
        meter.create_counter(name).add(1)

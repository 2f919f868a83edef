"""How the property tests of the ledger run their examples: many on one loop, always the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from hypothesis import HealthCheck, Phase, settings

RunTheLoop: TypeAlias = Callable[[Awaitable[None]], None]


def examples(number: int) -> settings:
    """The same examples every time: a red build stays red until it is mended."""
    return settings(
        max_examples=number,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],  # shrinking takes minutes on a real database
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )

"""`ContainedError`: an exception that must not reach an event loop, inside one that may.

No future can hold a StopIteration, and a SystemExit ends the event loop that it passes.
"""

from __future__ import annotations

from typing import NoReturn

from ...ledger.result_codec import error_text


class ContainedError(Exception):
    """Carries a SystemExit, a KeyboardInterrupt or a GeneratorExit that a tool raised."""

    def __init__(self, original: BaseException) -> None:
        super().__init__(error_text(original))
        self.original = original


def contain(name: str, error: BaseException) -> BaseException:
    """Return the exception, or what may leave a task or a future in its place.

    Args:
        name: The tool or the model that raised it.
        error: What it raised.
    """
    if isinstance(error, StopIteration):
        return RuntimeError(f"{name} raised StopIteration")
    if isinstance(error, SystemExit | KeyboardInterrupt | GeneratorExit):
        return ContainedError(error)
    return error


def raise_contained(name: str, error: BaseException) -> NoReturn:
    """Raise an exception again, contained where it has to be; see `contain`."""
    contained = contain(name, error)
    raise contained from (None if contained is error else error)

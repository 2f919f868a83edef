"""What the actors of a soak meet: an answer that they count, or a violation. The soak goes on."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from commitline.tests.soak.counted import Violation


class Unforeseen:
    """What nobody foresaw, as violations."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []

    @contextmanager
    def noted(self, who: str) -> Iterator[None]:
        """Note an error of an actor instead of raising it; a cancellation goes through.

        Args:
            who: The actor, for the verdict.
        """
        try:
            yield
        except Exception as err:
            self.note(who, err)

    def note(self, who: str, error: BaseException) -> None:
        """Note an error, with the place where it was raised."""
        if isinstance(error, BaseExceptionGroup):
            for one in error.exceptions:
                self.note(who, one)
            return
        frames = traceback.extract_tb(error.__traceback__)
        at = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        text = f"met {type(error).__name__}: {str(error)[:500]}{at}"
        self.violations.append(Violation(who, "", text))

"""A reset or a fork of a run, for an operator: where it goes on, and what stands."""

from __future__ import annotations

from typing import Any

from ..handles.reset import Reset
from ..shown import one_line
from . import actions
from .console import OUT


def print_reset(done: Reset, *, fork: bool) -> None:
    """Print what a reset, or a fork, makes of a run."""
    if fork:
        way = f"{one_line(done.id)}: goes another way from turn {done.step}, epoch {done.epoch}"
        OUT.print(way, markup=False)
        OUT.print(
            "The model is asked anew. What the run did from there on, and is told if it stands:"
        )
    else:
        turns = ", ".join(f"turn {step}" for step in done.read_back) or "none is on record"
        OUT.print(f"{one_line(done.id)}: goes on from turn {done.step}", markup=False)
        OUT.print(f"Read back, without asking the model: {turns}")
        OUT.print("On record from there on, of every way that the run has gone:")
    if done.actions:
        actions.table(done.actions).print(OUT)
    else:
        OUT.print("no action")
    OUT.print(
        f"What is said from now on: commitline threads show {one_line(done.id)}", markup=False
    )


def reset_data(done: Reset) -> dict[str, Any]:
    """Return the same as plain data."""
    return {**vars(done), "actions": [actions.data(one) for one in done.actions]}

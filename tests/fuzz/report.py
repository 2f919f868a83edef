"""What the fuzz prints of a round."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from commitline.tests.fuzz.stage import Round

_TRACED = 3


def told(played: Round) -> str:
    """Return every violation of a round, and the history of the first ones, as a text."""
    seed = played.seed.partition("-")[0]
    lines = [f"again: python -m commitline.tests.fuzz --seed {seed} --seconds 60 --round 5"]
    lines += [str(found) for found in played.violations]
    for found in played.violations[:_TRACED]:
        lines += ["", str(found), *played.trace(found)]
    return "\n".join(lines)


def report(played: Round) -> RenderableType:
    """Return what was done, every violation, and the history of the first ones."""
    counts = ", ".join(f"{name} {count}" for name, count in sorted(played.counts.items()))
    parts: list[RenderableType] = [
        Text(f"round {played.seed}: {played.rows} rows in {played.seconds:.1f} s: {counts}")
    ]
    for found in played.violations:
        parts.append(Text(f"  {found}", style="red"))
    for found in played.violations[:_TRACED]:
        parts.append(Text(f"\n{found}", style="bold red"))
        parts += [Text(f"  {line}") for line in played.trace(found)]
    return Group(*parts)

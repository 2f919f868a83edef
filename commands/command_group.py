"""A group of commands whose help has headings, and the whole first paragraph of each command.

Typer's own headings come with rich: importing that would take most of the time of `--help`.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class CommandGroup(TyperGroup):
    """A group whose help is written without rich."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands under the headings that they were given (``rich_help_panel``)."""
        headings: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            heading = getattr(command, "rich_help_panel", None) or "Commands"
            told = " ".join((command.help or "").partition("\n\n")[0].split())
            headings.setdefault(heading, []).append((name, told))
        for heading, commands in headings.items():
            with formatter.section(heading):
                formatter.write_dl(commands)

"""Which frameworks the demo knows, and whether their packages for Temporal are installed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from ....errors import ConfigurationError


@dataclass(frozen=True)
class Framework:
    """A framework, as people call it and as pip does."""

    title: str
    requirement: str
    modules: tuple[str, ...]
    """What must be found, outermost first."""

    @property
    def installed(self) -> bool:
        """Whether its package for Temporal is there. Nothing of it but its packages is imported."""
        return all(find_spec(name) is not None for name in self.modules)


FRAMEWORKS: Final = {
    "openai_agents": Framework(
        "OpenAI Agents", "temporalio-openai-agents>=1.1,<2", ("agents", "temporalio.openai_agents")
    ),
    "pydantic_ai": Framework(
        "pydantic-ai", "pydantic-ai-slim[temporal]>=2.60,<3", ("pydantic_ai",)
    ),
}
"""By the module that has the shop in it."""


def check_installed(names: Iterable[str]) -> None:
    """Look for the packages of some frameworks; it takes no time.

    Raises:
        ConfigurationError: Some are missing; the message has the command that installs them.
    """
    missing = [FRAMEWORKS[name] for name in dict.fromkeys(names) if not FRAMEWORKS[name].installed]
    if missing:
        titles = " and ".join(one.title for one in missing)
        command = " ".join(f"'{one.requirement}'" for one in missing)
        raise ConfigurationError(f"{titles} for Temporal missing: pip install {command}")

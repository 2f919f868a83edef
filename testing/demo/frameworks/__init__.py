"""The shop as an agent of other frameworks, for ``commitline demo --integrations``.

installed      which frameworks there are, and whether their packages are installed
shop           what all of them have in common: the tools' effects, and the model's script
openai_agents  the shop in the OpenAI Agents SDK
pydantic_ai    the shop in pydantic-ai
worker         a worker process with one of them, with `LedgerPlugin` or without
"""

from .installed import FRAMEWORKS, check_installed

__all__ = ["FRAMEWORKS", "check_installed"]

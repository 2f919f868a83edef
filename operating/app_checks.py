"""What `commitline doctor` looks at in the app: whether it is there, and what its models lack."""

from __future__ import annotations

from ..activities.app.app import App
from ..activities.app.load import load_app
from ..activities.model.model import Model
from ..activities.model.pydantic_ai_model import resolve_model
from ..config import Settings
from ..errors import ConfigurationError
from .check import Check

_NO_APP = "no COMMITLINE_APP"


async def app() -> Check:
    """Whether the app that COMMITLINE_APP names can be imported here."""
    name = Settings.load().app
    if not name:
        remedy = "export COMMITLINE_APP=module:attribute, as you name it to `commitline worker`"
        return Check("app", "missing", _NO_APP, remedy, needed=False)
    try:
        found = load_app(name)
    except ConfigurationError as err:
        return Check("app", "wrong", err.message, err.remedy)
    agents = ", ".join(agent.name for agent in found.served) or "no agents"
    return Check("app", "ok", f"{name}: {agents}")


async def models() -> Check:
    """Whether the app's models could be asked from here: their packages, and their keys."""
    name = Settings.load().app
    if not name:
        return Check("models", "missing", f"{_NO_APP} to look at", needed=False)
    try:
        found = load_app(name)
    except ConfigurationError:
        return Check("models", "missing", "no app to look at", needed=False)
    lacks = [lack for model in _models(found) if (lack := _lack(model)) is not None]
    if lacks:
        remedy = "export what is missing where workers start; it is looked for in this environment"
        return Check("models", "wrong", "; ".join(lacks), remedy)
    named = ", ".join(model.name for model in _models(found)) or "none"
    return Check("models", "ok", named)


def _models(found: App) -> list[Model]:
    """Return each model of the app's agents, once."""
    declared = {id(one): one for one in (agent.model for agent in found.served)}
    by_name = {one if isinstance(one, str) else one.name: one for one in declared.values()}
    return [resolve_model(one) for one in by_name.values()]


def _lack(model: Model) -> str | None:
    check = getattr(model, "check", None)
    try:
        if check is not None:
            check()
    except ConfigurationError as err:
        return err.message
    return None

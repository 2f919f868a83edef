"""How a process finds the app that it is told of, as ``module:attribute``."""

from __future__ import annotations

import importlib
import os
import sys

from ...errors import ConfigurationError
from .app import App


def load_app(name: str) -> App:
    """Import the app that ``module:attribute`` names, from the working directory too.

    Raises:
        ConfigurationError: There is none; the message says what was looked for.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise _no_app(f"an app is named as module:attribute, not {name!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as err:
        raise _no_app(f"cannot import {module_name!r}: {err}") from err
    except SyntaxError as err:
        where = f"{err.filename}, line {err.lineno}"
        raise _no_app(f"{module_name!r} cannot be read: {where}: {err.msg}") from err
    app = getattr(module, attribute, None)
    if app is None:
        raise _no_app(f"{module_name!r} has no attribute {attribute!r}")
    if not isinstance(app, App):
        raise _no_app(f"{name!r} is {type(app).__name__}, not an App")
    return app


def _no_app(reason: str) -> ConfigurationError:
    error = ConfigurationError(reason)
    error.remedy = "Name the app as `module:attribute`, and correct what the message says."
    return error

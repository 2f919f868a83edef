"""Run it: ``python -m commitline.examples.langgraph``, beside ``commitline dev``."""

from ..once import run_once
from .app import Clerk, plugins

run_once(Clerk, plugins())

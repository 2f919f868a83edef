"""Run it: ``python -m commitline.examples.pydantic_ai``, beside ``commitline dev``."""

from pydantic_ai.durable_exec.temporal import AgentPlugin

from ..once import run_once
from .app import Clerk, durable, plugins

run_once(Clerk, plugins(), worker_plugins=[AgentPlugin(durable)])

"""The demonstration: the shop's agent, killed at every named point, on real servers.

``commitline demo`` is this package. Each scenario has a database, a provider process and a
task queue of its own; a worker process that kills itself with SIGKILL where it is told to;
and a second worker that finishes the run. Then the world is counted, not the code's opinion
of it: the provider says how often it charged, the ledger what it holds.
"""

from .scenarios import SCENARIOS, Scenario, World, faults
from .stage import Result, run_demo

__all__ = ["SCENARIOS", "Result", "Scenario", "World", "faults", "run_demo"]

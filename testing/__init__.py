"""What the tests of an application use: scripted models, real servers, processes to kill.

    ScriptedModel, call, say   a model that answers from a script
    fixtures                   pytest fixtures: Temporal, Postgres, a database for each test
    processes                  workers and a provider in processes that a test can kill
    provider                   a fake provider that counts requests and effects
    proxy                      a TCP proxy in front of Postgres: outages, delays, lost answers
    openai_server              a scripted server for models of OpenAI's kind
    environment                a clean environment for servers that a program starts for itself
    demo                       what ``commitline demo`` plays

`commitline.crash` names the points at which a worker kills itself.
"""

from ..activities.model.scripted_model import ScriptedModel, call, say

__all__ = ["ScriptedModel", "call", "say"]

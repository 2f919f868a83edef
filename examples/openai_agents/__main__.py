"""Run it: ``python -m commitline.examples.openai_agents``, beside ``commitline dev``."""

from ..once import run_once
from .app import Clerk, charge_card, plugins, send_mail

run_once(Clerk, plugins(), activities=[charge_card, send_mail])

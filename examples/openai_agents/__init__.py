"""An agent of the OpenAI Agents SDK with the ledger; ``app`` has the agent."""

"""An agent of pydantic-ai with the ledger; ``app`` has the agent."""

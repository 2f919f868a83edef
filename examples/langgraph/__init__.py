"""An agent of LangGraph with the ledger; ``app`` has the agent."""

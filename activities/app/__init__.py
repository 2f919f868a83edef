"""What an application declares: tools, agents, state, plans, and the app that has them."""

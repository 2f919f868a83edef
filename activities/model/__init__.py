"""A language model: what the loop needs of one, and the adapters to providers."""

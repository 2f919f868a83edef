"""What a client returns: one run, one plan, one conversation."""

"""One attempt at one call: claim it, call it at most once, record its outcome."""

"""Where tools run: an event loop, a thread or a process of their own, within a deadline."""

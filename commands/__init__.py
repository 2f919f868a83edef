"""The commands of `commitline`, by subject; `cli` puts them together.

Each calls `operating`, or the client, and prints. What takes long to import is imported inside the
command that needs it, so that `--help` is quick.
"""

"""The commands of `commitline`, by subject; `cli` puts them together.

Thin: each asks and prints. What takes long to import is imported by the command that needs it, so
that `--help` is quick.
"""

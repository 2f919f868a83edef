"""The activities that a worker registers, by subject."""

"""Fixtures for every test; the servers start only when one asks for them."""

pytest_plugins = ["commitline.testing.fixtures"]

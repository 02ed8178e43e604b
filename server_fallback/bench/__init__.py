"""Measure a server from outside with a load of random requests."""

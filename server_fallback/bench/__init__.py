"""Measuring a server from outside: a load of random requests, and what came of it."""

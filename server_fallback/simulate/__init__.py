"""Simulate servers of a model under a load: discrete events over measured costs of steps, with the engine's own
scheduler and the router's own decisions.
"""

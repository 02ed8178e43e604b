"""Sequences, pages, the scheduler and the sampling loop. Knows neither device nor HTTP."""

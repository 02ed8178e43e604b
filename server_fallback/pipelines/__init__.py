"""Pipelines: models and stores, chained by a JSON file, that answer as one model."""

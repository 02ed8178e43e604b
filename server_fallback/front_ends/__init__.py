"""Several processes that answer HTTP for the same models: see the README, "Processes"."""

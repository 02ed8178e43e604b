"""The model store: models by name on this machine, with the files that they share."""

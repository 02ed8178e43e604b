"""The recipe of the demo encoder: its text, training and recall."""

"""The recipe of the demo models: the text that they learn, the training, the evaluation, and the router's traffic."""

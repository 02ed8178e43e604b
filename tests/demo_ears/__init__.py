"""The recipe of the demo model that hears: spoken commands of a synthesiser, the training and the evaluation."""

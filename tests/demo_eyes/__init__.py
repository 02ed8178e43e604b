"""The recipe of the demo model that sees: drawn pictures with questions, the training and the evaluation."""

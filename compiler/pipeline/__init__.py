"""From a checkpoint to a bundle: weights, kernels, the self-test, and the whole path."""

"""The costs of a bundle, and the distance of its answers from its checkpoint's."""

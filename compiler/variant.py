"""Which of a step's variants runs: the rule of every runtime."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from .expr import holds
from .manifest import Manifest, StepEntry, VariantEntry


def choose_variant(
    manifest: Manifest, step: StepEntry, activation: str, features: Collection[str], dims: Mapping[str, int]
) -> VariantEntry:
    """The first row of a step's list that the activation dtype, the device's features and the batch allow."""
    for variant in manifest.variants[step.variants]:
        if variant.activation in (None, activation) and set(variant.needs) <= set(features) and holds(variant.when, dims):
            return variant
    raise AssertionError(f"no variant of {step.variants} runs anywhere")

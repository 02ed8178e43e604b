"""The rules of every runtime for choosing the activation dtype and the variant of a step."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from ..bundle.entries import PlanEntry, StepEntry, VariantEntry
from ..bundle.manifest import Manifest
from ..ir.expr import holds
from .errors import DeviceError


def choose_activation(manifest: Manifest, requested: str | None, path: Path) -> str:
    """The requested activation dtype, or the first that the bundle offers, on a target whose devices support all.
    Raises DeviceError.
    """
    offered = [entry.dtype for entry in manifest.activations]
    if requested is not None and requested not in offered:
        raise DeviceError(f"{path}: was compiled for {', '.join(offered)} activations, not for {requested}")
    return requested or offered[0]


def stored_dtype(activation: str) -> str:
    """The dtype of activations in memory. With int8, only the inputs of projections have 8 bits; activations are stored
    as float32.
    """
    return "float32" if activation == "int8" else activation


def choose_kernels(
    manifest: Manifest, plan: PlanEntry, activation: str, features: Collection[str], dims: Mapping[str, int]
) -> dict[str, list[str]]:
    """The kernels that run a plan's steps, by the name of the steps' list of variants, which many steps share."""
    steps = {step.variants: step for step in plan.steps}
    return {name: choose_variant(manifest, step, activation, features, dims).kernels for name, step in steps.items()}


def choose_variant(
    manifest: Manifest, step: StepEntry, activation: str, features: Collection[str], dims: Mapping[str, int]
) -> VariantEntry:
    """The first variant of a step's list that the activation dtype, the device's features and the batch allow."""
    for variant in manifest.variants[step.variants]:
        if (
            variant.activation in (None, activation)
            and set(variant.needs) <= set(features)
            and holds(variant.when, dims)
        ):
            return variant
    raise AssertionError(f"no variant of {step.variants} runs anywhere")

"""The rules of every runtime for choosing the activation dtype and the variant of a step."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ..bundle.entries import VariantEntry
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


class KernelChoice:
    """Chooses the kernels of steps for batches of one device. They depend only on which conditions of variants hold, so
    what was chosen for such a combination is kept, and is the same object for the next batch.
    """

    def __init__(self, manifest: Manifest, activation: str, features: Collection[str]) -> None:
        self._manifest, self._activation, self._features = manifest, activation, features
        self._plans: dict[str, PlanVariants] = {}

    def of(self, plan: str, dims: Mapping[str, int]) -> Mapping[str, list[str]]:
        """The kernels that run a plan's steps, by the name of the steps' list of variants, which many steps share."""
        if plan not in self._plans:
            lists = {step.variants: self._manifest.variants[step.variants] for step in self._manifest.plan(plan).steps}
            self._plans[plan] = PlanVariants(
                {name: fitting(entries, self._activation, self._features) for name, entries in lists.items()}
            )
        return self._plans[plan].choose(dims)


class PlanVariants:
    """The lists of variants of a plan that a device can run."""

    def __init__(self, lists: Mapping[str, Sequence[VariantEntry]]) -> None:
        self._lists = lists
        distinct = {str(each.when): each.when for entries in lists.values() for each in entries}
        self._conditions = [condition for condition in distinct.values() if condition is not None]
        self._known: dict[tuple[bool, ...], Mapping[str, list[str]]] = {}

    def choose(self, dims: Mapping[str, int]) -> Mapping[str, list[str]]:
        key = tuple([holds(condition, dims) for condition in self._conditions])
        if key not in self._known:
            self._known[key] = {name: first_of(name, entries, dims).kernels for name, entries in self._lists.items()}
        return self._known[key]


def fitting(entries: Sequence[VariantEntry], activation: str, features: Collection[str]) -> list[VariantEntry]:
    """The variants that the activation dtype and the device's features allow, up to the first for every batch."""
    found = []
    for each in entries:
        if each.activation in (None, activation) and set(each.needs) <= set(features):
            found.append(each)
            if each.when is None:
                break
    return found


def first_of(name: str, entries: Sequence[VariantEntry], dims: Mapping[str, int]) -> VariantEntry:
    for each in entries:
        if holds(each.when, dims):
            return each
    raise AssertionError(f"no variant of {name} runs anywhere")

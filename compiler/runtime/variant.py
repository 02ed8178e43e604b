"""The rules of every runtime for choosing the activation dtype and the variant of a step."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ..bundle.entries import PlanEntry, VariantEntry
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
) -> Mapping[str, list[str]]:
    """The kernels that run a plan's steps, by the name of the steps' list of variants, which many steps share."""
    return KernelChoice(manifest, plan, activation, features).of(dims)


class KernelChoice:
    """`choose_kernels` for many batches: it depends only on which of the variants' conditions hold."""

    def __init__(self, manifest: Manifest, plan: PlanEntry, activation: str, features: Collection[str]) -> None:
        lists = {step.variants: manifest.variants[step.variants] for step in plan.steps}
        self._lists = {name: fitting(entries, activation, features) for name, entries in lists.items()}
        distinct = {str(each.when): each.when for entries in self._lists.values() for each in entries}
        self._conditions = [condition for condition in distinct.values() if condition is not None]
        self._known: dict[tuple[bool, ...], Mapping[str, list[str]]] = {}

    def of(self, dims: Mapping[str, int]) -> Mapping[str, list[str]]:
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

"""The steps of a bundle's plans and the kernels that may compute them, for `nearfar inspect`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from ..bundle.entries import StepEntry
from ..bundle.manifest import Manifest


def all_steps(manifest: Manifest) -> list[StepEntry]:
    """The steps of all plans."""
    return [step for plan in manifest.plans.values() for step in plan.steps]


def counted_steps(manifest: Manifest) -> list[tuple[str, str, int]]:
    """The op, the name of the variants, and the number of the steps that have them."""
    return [(*key, count) for key, count in Counter((step.op, step.variants) for step in all_steps(manifest)).items()]


def template_table(manifest: Manifest) -> Table:
    """One row for steps with the same op and templates: their first choice, and how many others each template has."""
    table = step_table("steps and their variants' templates (--kernels lists all kernels)", "first choice", "others")
    steps = Counter[tuple[str, str, str]]()
    for op, name, count in counted_steps(manifest):
        first, *others = (
            " + ".join(manifest.kernels[kernel].template for kernel in variant.kernels)
            for variant in manifest.variants[name]
        )
        steps[op, first, ", ".join(f"{number} x {each}" for each, number in Counter(others).items())] += count
    for (op, first, rest), count in steps.items():
        table.add_row(op, str(count), escape(first), escape(rest))
    return table


def kernel_table(manifest: Manifest) -> Table:
    """All variants of each kind of step, with what tells their kernels apart."""
    table = step_table("steps and their variants, first choice first", "kernels")
    for op, name, count in counted_steps(manifest):
        variants = manifest.variants[name]
        differences = differing_facts(manifest, [kernel for variant in variants for kernel in variant.kernels])
        lines = (
            " + ".join(f"{kernel} {differences[kernel]}".rstrip() for kernel in variant.kernels) for variant in variants
        )
        table.add_row(op, str(count), escape("\n".join(dict.fromkeys(lines))))
    return table


def step_table(title: str, *kernels: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("op")
    table.add_column("steps", justify="right")
    for column in kernels:
        table.add_column(column, overflow="fold")
    return table


def differing_facts(manifest: Manifest, names: Sequence[str]) -> dict[str, str]:
    """For each kernel, the facts that differ between kernels of its template, such as "threads=128 lanes=32"."""
    facts = {name: flat(manifest.kernels[name].facts) for name in names}
    differing = {}
    for name, own in facts.items():
        alike = [facts[other] for other in facts if manifest.kernels[other].template == manifest.kernels[name].template]
        keys = [key for key, value in own.items() if any(other.get(key) != value for other in alike)]
        differing[name] = " ".join(f"{key.rpartition('.')[2]}={own[key]}" for key in keys)
    return differing


def flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested facts as one dict with dotted names."""
    flattened: dict[str, Any] = {}
    for name, value in facts.items():
        flattened |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flattened

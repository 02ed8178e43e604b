"""What a bundle's manifest says about lowered kernels: the same for every target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

from nearfar.compiler.bundle.manifest import BindingEntry, BufferEntry, VariantEntry
from nearfar.compiler.ir.expr import Expr
from nearfar.compiler.kernels.builder import Kernel


def scratch_of(kernels: Iterable[Kernel]) -> dict[str, BufferEntry]:
    """The scratch buffers of all kernels, each as large as the largest use of it."""
    sizes: dict[str, list[Expr]] = {}
    for kernel in kernels:
        for name, elements in kernel.scratch.items():
            known = sizes.setdefault(name, [])
            known += [] if elements in known else [elements]
    return {name: BufferEntry(shape=[reduce(largest, each)], dtype="float32") for name, each in sizes.items()}


def largest(one: Expr, other: Expr) -> Expr:
    return ["max", one, other]


def binding(role: str, access: str) -> BindingEntry:
    """Of a template's role, which has the plane of a packed weight behind a dot."""
    name, _, plane = role.partition(".")
    return BindingEntry(role=name, plane=plane or None, access=access)  # type: ignore[arg-type]


def name_lists(rows: Sequence[tuple[VariantEntry, ...]]) -> tuple[dict[str, tuple[VariantEntry, ...]], tuple[str, ...]]:
    """The distinct lists of variants by name, and the name of each step's list.

    A list is named after the kernels of its plain variant. Two lists may end in the same kernels, because a kernel does not depend on
    all that a list does; the later one then gets a number.
    """
    lists: dict[str, tuple[VariantEntry, ...]] = {}
    names: list[str] = []
    for row in rows:
        plain = "+".join(row[-1].kernels)
        name, number = plain, 1
        while lists.setdefault(name, row) != row:
            number += 1
            name = f"{plain}_{number}"
        names.append(name)
    return lists, tuple(names)

"""Of lowered kernels, what a bundle's manifest says of them: the same for every target."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from nearfar.compiler.expr import Expr
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.manifest import BindingEntry, BufferEntry


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

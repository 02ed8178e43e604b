"""What a kernel cannot fold becomes a kernel of its own: the first parts of what a projection loads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from nearfar.compiler.ir.ops.projections import split_load
from nearfar.compiler.kernels.projection import Projection

from .variant import KernelCall, Variant, with_roles

# The scratch buffer of a loaded value that no other step reads.
NORMED = "scratch.normed"


def split(facts: Projection, rms_norm: Callable[..., KernelCall]) -> tuple[KernelCall, Projection, dict[str, str]]:
    """The kernel that computes the first parts of ``load``, a norm and the ops behind it; the projection of its result;
    and the roles of that projection's kernels.
    """
    first, rest = split_load(list(facts.load))
    norm, *then = first
    own: dict[str, Any] = {"x_dtype": facts.x_dtype, "y_dtype": "float32", "norm": norm, "then": then}
    kept = f"load{len(then)}" if first[-1]["keep"] else None
    own |= {} if kept else {"y_in_scratch": True}
    call = rms_norm(rows=facts.input_rows, columns=facts.columns, group=facts.columns, **own)
    roles = {"weight": "load0_weight", "bias": "load0_bias"} | ({"y": kept} if kept else {})
    for index in range(len(then)):
        roles |= {f"store{index}_{role}": f"load{index + 1}_{role}" for role in ("b", "factor")}
    reads = {"x": kept or NORMED}
    for index in range(len(rest)):
        reads |= {f"load{index}_{role}": f"load{index + len(first)}_{role}" for role in ("weight", "bias")}
    return with_roles(call, **roles), replace(facts, load=rest, x_dtype="float32"), reads


def behind(call: KernelCall, variant: Variant, reads: dict[str, str]) -> Variant:
    """A variant of the projection that `split` returns, after the kernel before it."""
    return replace(variant, kernels=(call, *(with_roles(each, **reads) for each in variant.kernels)))

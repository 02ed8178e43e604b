"""The variants of every op on WebGPU: for each step, the kernels that can run it, best first; the last row runs anywhere.

A row is a kernel template with its parameters (or several, run one after the other), the activation dtype it is for (None: both), and when
it applies. A row is right for every batch that its structural condition allows, such as S == B, one new token of every sequence; bounds on
sizes are preferences. To add a faster kernel, write its template in `compiler/kernels/` and put a row above the plain one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from nearfar.compiler.expr import Condition
from nearfar.compiler.kernels.argmax import argmax
from nearfar.compiler.kernels.attention import attention
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.kernels.embed import embed
from nearfar.compiler.kernels.linear_tile import linear_tile
from nearfar.compiler.kernels.linear_vector import linear_vector
from nearfar.compiler.kernels.packed import WeightFormat
from nearfar.compiler.kernels.projection import Projection
from nearfar.compiler.kernels.rope_append import rope_append
from nearfar.compiler.kernels.take_rows import take_rows
from nearfar.compiler.plan import Plan, Step
from nearfar.compiler.quant import Quantization
from nearfar.compiler.spec import ModelSpec

# Up to this many rows a matrix-vector kernel reads the weights once a row; beyond, a tile kernel reads them once for 32 rows.
MAX_VECTOR_ROWS = 4

Build: TypeAlias = Callable[[], Kernel]


@dataclass(frozen=True, slots=True)
class Variant:
    """``build`` makes the kernel; equal ``name`` means equal kernel, so each is lowered once. ``before`` are kernels that run first."""

    name: str
    build: Build
    activation: str | None
    when: Condition = None
    before: Mapping[str, Build] = field(default_factory=dict)

    @property
    def kernels(self) -> dict[str, Build]:
        """What makes each kernel, by name, in the order in which they run."""
        return {**self.before, self.name: self.build}


@dataclass(frozen=True, slots=True)
class Context:
    """What a step's kernels depend on beside the step."""

    plan: Plan
    spec: ModelSpec
    quantization: Quantization
    activations: tuple[str, ...]

    @property
    def weight_format(self) -> WeightFormat:
        scales = [plane.dtype for plane in self.quantization.planes(32) if plane.name == "s"]
        return WeightFormat(self.quantization.kind, scales[0] if scales else "")

    def dtype_of(self, name: str, activation: str) -> str:
        dtype = self.plan.buffers[name].dtype
        return activation if dtype == "activation" else dtype


def variants_of(step: Step, context: Context) -> tuple[Variant, ...]:
    """The rows of one step, in the order in which a runtime tries them."""
    return OPS[step.op](step, context)


def embed_variants(step: Step, context: Context) -> tuple[Variant, ...]:
    rows, columns = sizes(context.plan.shape_of(step.inputs["table"]))
    split, first_row = "first_row" in step.attrs, step.attrs.get("first_row", 0)
    name = f"embed_{context.quantization.kind}_{rows}x{columns}" + (f"_from{first_row}" if split else "")
    return (Variant(name, lambda: embed(name, rows, columns, context.weight_format, first_row, split=split), None),)


def projection_variants(step: Step, context: Context) -> tuple[Variant, ...]:
    gated = step.op == "gated_linear"
    batch = context.plan.shape_of(step.inputs["x"])[0]
    rows, columns = sizes(context.plan.shape_of(step.inputs["weight"]))
    projections: dict[str, Projection] = {}
    for activation in context.activations:
        facts = Projection(
            batch=str(batch),
            columns=columns,
            outputs=rows // 2 if gated else rows,
            weight=context.weight_format,
            x_dtype=context.dtype_of(step.inputs["x"], activation),
            y_dtype=context.dtype_of(step.outputs["y"], activation),
            norm_eps=step.attrs["eps"] if "norm" in step.inputs else None,
            bias="bias" in step.inputs,
            residual="residual" in step.inputs,
            gated=gated,
            offset=step.attrs.get("offset", 0),
            width=step.attrs.get("columns", 0),
        )
        projections[activation] = facts
    same = len(set(projections.values())) == 1
    variants = []
    for activation, facts in list(projections.items())[: 1 if same else None]:
        dtype = None if same else activation
        few_rows: Condition = ["<=", str(batch), MAX_VECTOR_ROWS]
        variants += [
            Variant(f"{facts.name}_vector", lambda facts=facts: linear_vector(facts), dtype, few_rows),  # type: ignore[misc]
            Variant(f"{facts.name}_tile", lambda facts=facts: linear_tile(facts), dtype),  # type: ignore[misc]
        ]
    return tuple(variants)


def rope_append_variants(step: Step, context: Context) -> tuple[Variant, ...]:
    _, _, num_kv_heads, page_size, head_dim = context.plan.shape_of(step.inputs["kv"])
    positions = context.plan.shape_of(step.inputs["table"])[0]
    eps = step.attrs.get("eps")

    def variant(activation: str) -> Variant:
        name = f"rope_append{'_norm' if eps is not None else ''}_{short(activation)}"
        kv_heads, page, dim, length = sizes((num_kv_heads, page_size, head_dim, positions))
        return Variant(name, lambda: rope_append(name, context.spec.num_heads, kv_heads, dim, page, length, activation, eps), activation)

    return tuple(variant(activation) for activation in context.activations)


def attention_variants(step: Step, context: Context) -> tuple[Variant, ...]:
    kv_heads, page_size, head_dim = sizes(context.plan.shape_of(step.inputs["kv"])[2:])

    def variant(activation: str) -> Variant:
        name = f"attention_{short(activation)}"
        return Variant(name, lambda: attention(name, context.spec.num_heads, kv_heads, head_dim, page_size, activation), activation)

    return tuple(variant(activation) for activation in context.activations)


def take_rows_variants(step: Step, context: Context) -> tuple[Variant, ...]:
    (columns,) = sizes(context.plan.shape_of(step.inputs["x"])[1:])
    return (Variant("take_rows", lambda: take_rows("take_rows", columns), None),)


def argmax_variants(step: Step, context: Context) -> tuple[Variant, ...]:
    (columns,) = sizes(context.plan.shape_of(step.inputs["x"])[1:])
    return (Variant("argmax", lambda: argmax("argmax", columns), None),)


OPS: dict[str, Callable[[Step, Context], tuple[Variant, ...]]] = {
    "embed": embed_variants,
    "linear": projection_variants,
    "gated_linear": projection_variants,
    "rope_append": rope_append_variants,
    "attention": attention_variants,
    "take_rows": take_rows_variants,
    "argmax": argmax_variants,
}


def sizes(shape: tuple[object, ...]) -> tuple[int, ...]:
    """A shape that the model fixes, as ints."""
    assert all(isinstance(size, int) for size in shape), shape
    return shape  # type: ignore[return-value]


def short(dtype: str) -> str:
    return {"float16": "f16", "float32": "f32"}[dtype]

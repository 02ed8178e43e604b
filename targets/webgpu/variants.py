"""The variants of every op on WebGPU: for each step, the kernels that can run it, best first; the last row runs anywhere.

A row is a kernel template with its parameters, the activation dtype it is for (None: both), and when it applies. To add a faster kernel,
write its template in `compiler/kernels/` and put a row above the plain one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from nearfar.compiler.expr import Condition
from nearfar.compiler.kernels.argmax import argmax
from nearfar.compiler.kernels.attention import attention
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.kernels.embed import embed
from nearfar.compiler.kernels.linear_subgroup import SubgroupShape, linear_subgroup
from nearfar.compiler.kernels.linear_tile import TileShape, linear_tile
from nearfar.compiler.kernels.linear_vector import VectorShape, linear_vector, power_of_two
from nearfar.compiler.kernels.packed import WeightFormat
from nearfar.compiler.kernels.projection import Projection
from nearfar.compiler.kernels.rope_append import rope_append
from nearfar.compiler.kernels.take_rows import take_rows
from nearfar.compiler.plan import Plan, Step
from nearfar.compiler.quant import Quantization
from nearfar.compiler.spec import ModelSpec

# Up to this many rows a matrix-vector kernel reads the weights once a row; beyond, a tile kernel reads them once for 32 or 64 rows.
MAX_VECTOR_ROWS = 4
# Large tiles read weights less often, small ones give more workgroups. A matrix of so many rows has enough for most GPUs at few input rows,
# a smaller one at many.
WIDE = 2048
MIN_WIDE_TILE_ROWS = 16
MIN_NARROW_TILE_ROWS = 256


@dataclass(frozen=True, slots=True)
class Variant:
    """``build`` makes the kernel; equal ``name`` means equal kernel, so each is lowered once.

    ``needs``: WebGPU features, or language features of WGSL.
    """

    name: str
    build: Callable[[], Kernel]
    activation: str | None
    when: Condition = None
    needs: tuple[str, ...] = ()


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
    if len(set(projections.values())) == 1:
        return tuple(projection_rows(facts, None, f16="float16" in context.activations))
    return tuple(
        row for activation, facts in projections.items() for row in projection_rows(facts, activation, f16=activation == "float16")
    )


def projection_rows(facts: Projection, activation: str | None, *, f16: bool) -> list[Variant]:
    """The kernels of one projection. ``f16``: tiles of float16 too, for float16 activations."""
    few: Condition = ["<=", facts.batch, MAX_VECTOR_ROWS]
    rows = [
        Variant(f"{facts.name}_{vector.name}", partial(linear_vector, facts, vector), activation, few) for vector in vector_shapes(facts)
    ]
    subgroup = SubgroupShape()
    kernel = partial(linear_subgroup, facts, subgroup)
    rows.append(Variant(f"{facts.name}_{subgroup.name}", kernel, activation, few, needs=("subgroups", "subgroup_id")))
    many: Condition = [">", facts.batch, MIN_WIDE_TILE_ROWS if facts.weight_rows >= WIDE else MIN_NARROW_TILE_ROWS]
    for tile, when in ((TileShape(64, 64, 16, 128), many), (TileShape(32, 32, 32, 64), None)):
        if f16:
            half = replace(tile, dtype="float16")
            rows.append(Variant(f"{facts.name}_{half.name}", partial(linear_tile, facts, half), "float16", when, needs=("shader-f16",)))
        rows.append(Variant(f"{facts.name}_{tile.name}", partial(linear_tile, facts, tile), activation, when))
    return rows


def vector_shapes(facts: Projection) -> tuple[VectorShape, ...]:
    """Matrix-vector kernels, best first: 32 threads along the columns, more rows a workgroup where there are rows enough for every core."""
    fmt = facts.weight
    blocks = -(-facts.columns // fmt.block_columns)
    lanes = min(32, max(8, power_of_two(blocks)))
    # The smaller a block's part of a row, the more of them a thread has on their way.
    unroll = min(32 // fmt.block_columns, 4, -(-blocks // lanes))
    rows = 4 if facts.weight_rows >= 8192 and not facts.gated else 2
    return (
        VectorShape(128, lanes, rows, unroll),
        VectorShape(64, lanes // 2, 4, unroll),
    )


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

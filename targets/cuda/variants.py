"""The variants of every op on CUDA: for each step, the kernels that can run it, best first; the last row runs anywhere.

Rows and what holds for their conditions are as on WebGPU (`targets/webgpu/variants.py`), whose rows for ops without a choice are taken as
they are. Sizes are rules of thumb from what is published of other kernels: none has been timed yet.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from nearfar.compiler.ir.expr import Condition
from nearfar.compiler.ir.plan import Step
from nearfar.compiler.kernels.add_lora import add_lora
from nearfar.compiler.kernels.cuda.linear_mma import MmaShape, linear_mma, supports
from nearfar.compiler.kernels.cuda.rows16 import rows16, rows16_name
from nearfar.compiler.kernels.gate_halves import gate_halves
from nearfar.compiler.kernels.linear_tile import TileShape, linear_tile
from nearfar.compiler.kernels.linear_vector import VectorShape, linear_vector, power_of_two
from nearfar.compiler.kernels.projection import Projection
from nearfar.targets.context import Context, sizes
from nearfar.targets.gpu_attention import AttentionNumbers, attention_rows
from nearfar.targets.webgpu import variants as webgpu
from nearfar.targets.webgpu.variants import Variant

from .source import MAX_SHARED_BYTES

# Up to so many rows, a matrix-vector kernel for each; beyond, tensor cores read the weights once for 16 or 64 rows.
MAX_VECTOR_ROWS = 2
# Up to so many rows, workgroups of few outputs whose warps share out the columns: there are enough of them for every multiprocessor.
MAX_NARROW_ROWS = 32
SHORT = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}


ATTENTION = AttentionNumbers(
    max_shared_bytes=MAX_SHARED_BYTES,
    splits=(256,),
    decode_threads=((128, 256), (128, 128), (64, 64), (256, 256)),
    tiles=((32, 32), (16, 32), (8, 32)),
    max_tiles=1,
    # A tile takes its sequences one after the other, so it is for long runs of rows.
    min_tile_rows=32,
    tensor_cores=True,
)


def variants_of(step: Step, context: Context) -> tuple[Variant, ...]:
    """The rows of one step, in the order in which a runtime tries them."""
    return OPS[step.op](step, context) if step.op in OPS else webgpu.variants_of(step, context)


def projection_variants(step: Step, context: Context) -> tuple[Variant, ...]:
    return tuple(row for activation, facts in context.projections(step).items() for row in projection_rows(facts, activation))


def projection_rows(facts: Projection, activation: str) -> list[Variant]:
    """The kernels of one projection: 16-bit activations take tensor cores, float32 ones keep to float32."""
    vector = vector_shape(facts)
    few: Condition = ["<=", facts.batch, MAX_VECTOR_ROWS]
    rows = [Variant(f"{facts.name}_{vector.name}", partial(linear_vector, facts, vector), activation, few)]
    if activation == "float32" or not supports(facts):
        tile = TileShape(64, 64, 16, 256)
        return [*rows, Variant(f"{facts.name}_{tile.name}", partial(linear_tile, facts, tile), activation)]
    before = {rows16_name(facts, activation): partial(rows16, facts, activation)}
    for shape, when in mma_shapes(facts, activation):
        rows.append(Variant(f"{facts.name}_{shape.name}", partial(linear_mma, facts, shape), activation, when, before=before))
    return rows


def vector_shape(facts: Projection) -> VectorShape:
    """One warp along the columns; more rows a thread where there are rows enough for every multiprocessor."""
    blocks = -(-facts.columns // facts.weight.block_columns)
    lanes = min(32, max(8, power_of_two(blocks)))
    unroll = min(32 // facts.weight.block_columns, 4, -(-blocks // lanes))
    return VectorShape(128, lanes, 4 if facts.weight_rows >= 32768 and not facts.gated else 2, unroll)


def mma_shapes(facts: Projection, dtype: str) -> list[tuple[MmaShape, Condition]]:
    """For few rows narrow workgroups, for many wide ones. What registers hold of a chunk grows with the weights' bits."""
    narrow = MmaShape(16, 1 if facts.gated else 2, 1, 4, dtype)
    heavy = facts.gated or facts.weight.kind == "f16"
    wide = MmaShape(64, 2 if heavy else 4, 4, 1, dtype)
    return [(narrow, ["<=", facts.batch, MAX_NARROW_ROWS]), (wide, None)]


def attention_variants(step: Step, context: Context) -> tuple[Variant, ...]:
    return webgpu.from_calls(attention_rows(step, context, ATTENTION))


def add_lora_variants(step: Step, context: Context) -> tuple[Variant, ...]:
    ranks, columns = sizes(context.plan.shape_of(step.inputs["a"])[1:])
    widths, eps = step.attrs["widths"], step.attrs.get("eps")
    rank = ranks // len(widths)
    rows = []
    for activation in context.activations:
        x, y = (context.dtype_of(name, activation) for name in (step.inputs["x"], step.outputs["y"]))
        name = f"add_lora_{sum(widths)}x{columns}_r{rank}_{SHORT[x]}_{SHORT[y]}" + ("_norm" if eps is not None else "")
        rows.append(Variant(name, partial(add_lora, name, columns, widths, rank, x_dtype=x, y_dtype=y, eps=eps), activation))
    return tuple(rows)


def gate_halves_variants(step: Step, context: Context) -> tuple[Variant, ...]:
    (columns,) = sizes(context.plan.shape_of(step.outputs["y"])[1:])
    name = f"gate_halves_{columns}"
    return (Variant(name, lambda: gate_halves(name, columns), None),)


OPS: dict[str, Callable[[Step, Context], tuple[Variant, ...]]] = {
    "linear": projection_variants,
    "gated_linear": projection_variants,
    "add_lora": add_lora_variants,
    "gate_halves": gate_halves_variants,
    **dict.fromkeys(("rope", "append_kv", "rope_append", "attention", "rope_attention"), attention_variants),
}

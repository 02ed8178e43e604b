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
from nearfar.compiler.kernels.attention import attention
from nearfar.compiler.kernels.attention_decode import DecodeOptions, attention_decode
from nearfar.compiler.kernels.attention_merge import attention_merge
from nearfar.compiler.kernels.attention_tile import TileOptions, attention_tile
from nearfar.compiler.kernels.cuda import attention_mma
from nearfar.compiler.kernels.cuda.linear_mma import MmaShape, linear_mma, supports
from nearfar.compiler.kernels.cuda.rows16 import rows16, rows16_name
from nearfar.compiler.kernels.gate_halves import gate_halves
from nearfar.compiler.kernels.linear_tile import TileShape, linear_tile
from nearfar.compiler.kernels.linear_vector import VectorShape, linear_vector, power_of_two
from nearfar.compiler.kernels.pages import Heads
from nearfar.compiler.kernels.projection import Projection
from nearfar.compiler.kernels.rope_append import rope_append
from nearfar.targets.context import Context, sizes
from nearfar.targets.webgpu import variants as webgpu
from nearfar.targets.webgpu.variants import DECODE, SHORT_DECODE, Variant

from .source import MAX_SHARED_BYTES

# Up to so many rows, a matrix-vector kernel for each; beyond, tensor cores read the weights once for 16 or 64 rows.
MAX_VECTOR_ROWS = 2
# Up to so many rows, workgroups of few outputs whose warps share out the columns: there are enough of them for every multiprocessor.
MAX_NARROW_ROWS = 32
# A tile takes its sequences one after the other, so it is for long runs of rows.
MANY_ROWS: Condition = ["<=", ["mul", "B", 32], "S"]
# Keys of a range of decode attention.
SPLIT = 256
SHORT = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}


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


def rope_attention_variants(step: Step, context: Context) -> tuple[Variant, ...]:
    return tuple(row for facts in context.heads(step) for row in (*decode_variants(facts), *prefill_variants(facts)))


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


def decode_variants(facts: Heads) -> list[Variant]:
    """One new token of every sequence: one kernel for short contexts, ranges of keys and their merge for long ones."""
    rows = []
    for split, condition in ((None, SHORT_DECODE), (SPLIT, DECODE)):
        options = decode_options(facts, split)
        if options is None:
            continue
        name = f"attention_decode_{options.threads}x{options.tile}" + (f"_split{split}" if split else "") + suffix(facts)
        build = partial(attention_decode, name, facts, options)
        if split is None:
            rows.append(Variant(name, build, facts.activation, condition))
        else:
            merge = f"attention_merge_split{split}_{SHORT[facts.activation]}"
            rows.append(Variant(merge, partial(attention_merge, merge, facts, split), facts.activation, condition, before={name: build}))
    return rows


def decode_options(facts: Heads, split: int | None) -> DecodeOptions | None:
    """As many of a kv head's query heads a workgroup as fit, up to eight; of these the largest tile, with two keys a thread."""
    for heads in range(min(facts.group, 8), 0, -1):
        for threads, tile in ((128, 256), (128, 128), (64, 64), (256, 256)):
            options = DecodeOptions(heads, threads, tile, split)
            divides = facts.group % heads == 0 and (split or tile) % tile == 0
            if divides and options.parts(facts) <= threads and options.shared_bytes(facts) <= MAX_SHARED_BYTES:
                return options
    return None


def prefill_variants(facts: Heads) -> list[Variant]:
    """Any batch: tiles of rows where sequences have many, on tensor cores where heads fit them; else row by row."""
    name = f"rope_append{suffix(facts)}"
    append = {name: partial(rope_append, name, facts)}
    rows = []
    if attention_mma.supports(facts):
        name = f"attention_mma{suffix(facts, new=False)}"
        rows.append(Variant(name, partial(attention_mma.attention_mma, name, facts), facts.activation, MANY_ROWS, before=append))
    for options in tile_options(facts) if not rows else ():
        name = f"attention_tile_{options.rows}x{options.keys}{suffix(facts, new=False)}"
        rows.append(Variant(name, partial(attention_tile, name, facts, options), facts.activation, MANY_ROWS, before=append))
    name = f"attention{suffix(facts, new=False)}"
    return [*rows, Variant(name, partial(attention, name, facts), facts.activation, before=append)]


def tile_options(facts: Heads) -> list[TileOptions]:
    """The tile of most rows that fits."""
    tiles = [TileOptions(rows, 32) for rows in (32, 16, 8)]
    return [tile for tile in tiles if facts.vectors <= tile.threads and tile.shared_bytes(facts) <= MAX_SHARED_BYTES][:1]


def suffix(facts: Heads, *, new: bool = True) -> str:
    """The end of the name of a kernel over pages, which norms the new tokens' heads or does not see them."""
    norm = "_norm" if new and facts.norm_eps is not None else ""
    return norm + ("_kv8" if facts.kv == "q8" else "") + f"_{SHORT[facts.activation]}"


OPS: dict[str, Callable[[Step, Context], tuple[Variant, ...]]] = {
    "linear": projection_variants,
    "gated_linear": projection_variants,
    "add_lora": add_lora_variants,
    "gate_halves": gate_halves_variants,
    "rope_attention": rope_attention_variants,
}

"""The variants of every op on WebGPU: for each step, the kernels that can run it, best first; the last row runs anywhere.

A row is a kernel template with its parameters (or several, run one after the other), the activation dtype it is for (None: both), and when
it applies. A row is right for every batch that its structural condition allows, such as S == B, one new token of every sequence; bounds on
sizes are preferences. To add a faster kernel, write its template in `compiler/kernels/` and put a row above the plain one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from nearfar.compiler.ir.expr import Condition
from nearfar.compiler.ir.plan import Step
from nearfar.compiler.kernels.adjust_logits import adjust_logits
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.kernels.embed import embed
from nearfar.compiler.kernels.linear_subgroup import SubgroupShape, linear_subgroup
from nearfar.compiler.kernels.linear_tile import TileShape, linear_tile
from nearfar.compiler.kernels.linear_vector import VectorShape, linear_vector, power_of_two
from nearfar.compiler.kernels.projection import Projection
from nearfar.compiler.kernels.rms_norm import rms_norm
from nearfar.compiler.kernels.sample import sample
from nearfar.compiler.kernels.take_rows import take_rows
from nearfar.compiler.kernels.top_logprobs import top_logprobs
from nearfar.targets.context import Context, sizes
from nearfar.targets.gpu_attention import AttentionNumbers, attention_rows
from nearfar.targets.variant import Variant as CallVariant

# Up to this many rows a matrix-vector kernel reads the weights once a row; beyond, a tile kernel reads them once for 32 or 64 rows.
MAX_VECTOR_ROWS = 4
# Large tiles read weights less often, small ones give more workgroups. A matrix of so many rows has enough for most GPUs at few input rows,
# a smaller one at many.
WIDE = 2048
MIN_WIDE_TILE_ROWS = 16
MIN_NARROW_TILE_ROWS = 256
# Bytes of workgroup memory that every device has (W3C, WebGPU, 3.6.2).
MAX_SHARED_BYTES = 16 << 10
ATTENTION = AttentionNumbers(
    max_shared_bytes=MAX_SHARED_BYTES,
    splits=(256, 128),
    # Few threads with several keys each read the queries from workgroup memory less often; wide heads need more for their values.
    decode_threads=((64, 256), (64, 128), (64, 64), (128, 128), (256, 256)),
    tiles=((32, 32), (32, 16), (16, 32), (16, 16), (8, 32)),
    max_tiles=2,
    # Sequences of fewer new tokens would leave most rows of a tile to others.
    min_tile_rows=8,
)

Build: TypeAlias = Callable[[], Kernel]


@dataclass(frozen=True, slots=True)
class Variant:
    """``build`` makes the kernel; equal ``name`` means equal kernel, so each is lowered once. ``before`` are kernels that run first.

    ``needs``: WebGPU features, or language features of WGSL.
    """

    name: str
    build: Build
    activation: str | None
    when: Condition = None
    needs: tuple[str, ...] = ()
    before: Mapping[str, Build] = field(default_factory=dict)

    @property
    def kernels(self) -> dict[str, Build]:
        """What makes each kernel, by name, in the order in which they run."""
        return {**self.before, self.name: self.build}


def variants_of(step: Step, context: Context) -> tuple[Variant, ...]:
    """The rows of one step, in the order in which a runtime tries them."""
    return OPS[step.op](step, context)


def embed_variants(step: Step, context: Context) -> tuple[Variant, ...]:
    rows, columns = sizes(context.plan.shape_of(step.inputs["table"]))
    split, first_row = "first_row" in step.attrs, step.attrs.get("first_row", 0)
    name = f"embed_{context.quantization.kind}_{rows}x{columns}" + (f"_from{first_row}" if split else "")
    return (Variant(name, lambda: embed(name, rows, columns, context.weight_format, first_row, split=split), None),)


def projection_variants(step: Step, context: Context) -> tuple[Variant, ...]:
    projections = context.projections(step)
    if len(set(projections.values())) == 1:
        return tuple(projection_rows(next(iter(projections.values())), None, f16="float16" in context.activations))
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


def attention_variants(step: Step, context: Context) -> tuple[Variant, ...]:
    return from_calls(attention_rows(step, context, ATTENTION))


def from_calls(rows: Iterable[CallVariant]) -> tuple[Variant, ...]:
    """Variants that name their kernels by facts, as this module's own."""
    return tuple(
        Variant(last.name, last.build, row.activation, row.when, row.needs, before={call.name: call.build for call in before})
        for row in rows
        for *before, last in (row.kernels,)
    )


def take_rows_variants(step: Step, context: Context) -> tuple[Variant, ...]:
    (columns,) = sizes(context.plan.shape_of(step.inputs["x"])[1:])
    return (Variant("take_rows", lambda: take_rows("take_rows", columns), None),)


def rms_norm_variants(step: Step, context: Context) -> tuple[Variant, ...]:
    (columns,) = sizes(context.plan.shape_of(step.inputs["x"])[1:])
    return (Variant("rms_norm", lambda: rms_norm("rms_norm", columns, step.attrs["eps"]), None),)


def sampling_variants(step: Step, context: Context) -> tuple[Variant, ...]:
    template = {"adjust_logits": adjust_logits, "sample": sample, "top_logprobs": top_logprobs}[step.op]
    return (Variant(step.op, lambda: template(step.op, context.spec.vocab_size), None),)


OPS: dict[str, Callable[[Step, Context], tuple[Variant, ...]]] = {
    "embed": embed_variants,
    "linear": projection_variants,
    "gated_linear": projection_variants,
    **dict.fromkeys(("rope", "append_kv", "rope_append", "attention", "rope_attention"), attention_variants),
    "take_rows": take_rows_variants,
    "rms_norm": rms_norm_variants,
    "adjust_logits": sampling_variants,
    "sample": sampling_variants,
    "top_logprobs": sampling_variants,
}

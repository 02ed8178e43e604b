"""The variants of every op on CPUs: for each step, the kernels that can run it, best first; the last row runs on every machine.

A row is a kernel template with its parameters, for one level of instruction sets. To add a faster kernel, write its template in
`compiler/kernels/cpu/` and put a row above the plain one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from nearfar.compiler.ir.expr import Condition
from nearfar.compiler.ir.plan import Step
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.kernels.cpu.adjust_logits import adjust_logits
from nearfar.compiler.kernels.cpu.attention import attention_split, attention_tile, rope_attention
from nearfar.compiler.kernels.cpu.builder import Isa
from nearfar.compiler.kernels.cpu.embed import embed
from nearfar.compiler.kernels.cpu.integer_dot import row_layout
from nearfar.compiler.kernels.cpu.linear_tiles import linear_tiles
from nearfar.compiler.kernels.cpu.lora import add_lora, gate_halves
from nearfar.compiler.kernels.cpu.prepare_rows import prepare_rows, prepared_name
from nearfar.compiler.kernels.cpu.rows import rms_norm, take_rows
from nearfar.compiler.kernels.cpu.sample import sample
from nearfar.compiler.kernels.cpu.top_logprobs import top_logprobs
from nearfar.compiler.kernels.pages import Heads
from nearfar.compiler.kernels.projection import Projection
from nearfar.targets.context import Context, sizes

from .levels import AVX2, AVX512, DOTPROD, NEON, VNNI, Level

# What kernels without a use for integer dot products are compiled for.
PLAIN_LEVELS = (AVX512, AVX2, NEON)
# Rows of a projection's input for which a weight is unpacked once, as many as registers hold the sums of; fewer for smaller batches.
BLOCK_ROWS = {VNNI: (4, 8), AVX512: (4,), AVX2: (4,), DOTPROD: (4,), NEON: (2,)}
# Integer dot products give nothing to the kernel before.
PREPARING = {VNNI: AVX512, DOTPROD: NEON}

# Queries that share a load of a key: the rows of a tile times the query heads of a kv head.
TILE_QUERIES = {AVX512: 16, AVX2: 8, NEON: 8}
# Sequences of fewer new tokens would leave most rows of a tile to others.
MANY_ROWS: Condition = ["<=", ["mul", "B", 8], "S"]
# One new token of every sequence, with too few sequences to give every thread of a large machine a head, and a few blocks of keys.
LONG = 512
FEW_LONG: Condition = ["and", ["==", "S", "B"], ["and", ["<=", "S", 8], [">", "T", LONG]]]

# Makes a kernel of a name for an instruction set.
Build: TypeAlias = Callable[[str, Isa], Kernel]


@dataclass(frozen=True, slots=True)
class Variant:
    """``build`` makes the kernel; equal ``name`` means equal kernel, so each is lowered once. The level adds its name and its needs.

    ``before``: whose kernel runs first.
    """

    name: str
    level: Level
    build: Build
    activation: str | None = None
    when: Condition = None
    before: Variant | None = None

    @property
    def kernels(self) -> tuple[Variant, ...]:
        """Those whose kernels run, in their order."""
        return (self,) if self.before is None else (self.before, self)

    @property
    def kernel_name(self) -> str:
        return f"{self.name}_{self.level.name}"

    def kernel(self) -> Kernel:
        return self.build(self.kernel_name, self.level.isa)


@dataclass(frozen=True, slots=True)
class CpuContext(Context):
    """``levels`` are those of the architecture, best first."""

    levels: tuple[Level, ...]

    @property
    def plain_levels(self) -> tuple[Level, ...]:
        return tuple(level for level in self.levels if level in PLAIN_LEVELS)


def variants_of(step: Step, context: CpuContext) -> tuple[Variant, ...]:
    """The rows of one step, in the order in which a runtime tries them."""
    return tuple(OPS[step.op](step, context))


def plain(context: CpuContext, name: str, build: Build, activation: str | None = None, when: Condition = None) -> list[Variant]:
    """One template, for every level."""
    return [Variant(name, level, build, activation, when) for level in context.plain_levels]


def embed_variants(step: Step, context: CpuContext) -> Sequence[Variant]:
    rows, columns = sizes(context.plan.shape_of(step.inputs["table"]))
    split, first_row, fmt = "first_row" in step.attrs, step.attrs.get("first_row", 0), context.weight_format
    name = f"embed_{context.quantization.kind}_{rows}x{columns}" + (f"_from{first_row}" if split else "")
    return plain(context, name, lambda name, isa: embed(name, isa, rows, columns, fmt, first_row, split=split))


def projection_variants(step: Step, context: CpuContext) -> Sequence[Variant]:
    projections = {activation: (facts, 8 if activation == "int8" else 16) for activation, facts in context.projections(step).items()}
    if len(set(projections.values())) == 1:
        return projection_rows(*next(iter(projections.values())), None, context)
    return [row for activation, (facts, bits) in projections.items() for row in projection_rows(facts, bits, activation, context)]


def projection_rows(facts: Projection, bits: int, activation: str | None, context: CpuContext) -> list[Variant]:
    """The kernels of one projection, for a single row and for blocks of rows. Integer dot products are worth a level of their own.

    ``bits`` are those of the integers that quantized weights meet.
    """
    rows = []
    for level in context.levels if facts.weight.scale_dtype else context.plain_levels:
        for tokens in (1, *BLOCK_ROWS[level]):
            when: Condition = None if tokens == BLOCK_ROWS[level][-1] else ["<=", facts.batch, tokens]
            build = partial(linear_tiles, facts=facts, tokens=tokens, bits=bits)
            layout = row_layout(level.name, facts.weight, bits)
            before = Variant(prepared_name(facts, layout), PREPARING.get(level, level), partial(prepare_rows, facts=facts, layout=layout))
            name = f"{facts.name}{'_int8' * (bits == 8)}_tiles{tokens}"
            rows.append(Variant(name, level, build, activation, when, before))
    return rows


def add_lora_variants(step: Step, context: CpuContext) -> Sequence[Variant]:
    ranks, columns = sizes(context.plan.shape_of(step.inputs["a"])[1:])
    widths, eps = step.attrs["widths"], step.attrs.get("eps")
    rank = ranks // len(widths)
    variants: list[Variant] = []
    for activation in context.activations:
        x, y = (context.dtype_of(name, activation) for name in (step.inputs["x"], step.outputs["y"]))
        name = f"add_lora_{sum(widths)}x{columns}_r{rank}_{x}_{y}" + ("_norm" if eps is not None else "")
        build = partial(add_lora, columns=columns, widths=widths, rank=rank, x_dtype=x, y_dtype=y, eps=eps)
        variants += plain(context, name, build, activation)
    return variants


def gate_halves_variants(step: Step, context: CpuContext) -> Sequence[Variant]:
    (columns,) = sizes(context.plan.shape_of(step.outputs["y"])[1:])
    return plain(context, f"gate_halves_{columns}", partial(gate_halves, columns=columns))


def rope_attention_variants(step: Step, context: CpuContext) -> Sequence[Variant]:
    variants: list[Variant] = []
    for activation, facts in zip(context.activations, context.heads(step), strict=True):
        if facts.positions > LONG:
            variants += plain(context, f"attention_split{suffix(facts)}", partial(attention_split, heads=facts), activation, FEW_LONG)
        for level in context.plain_levels:
            rows = TILE_QUERIES[level] // facts.group
            if rows > 1:
                build = partial(attention_tile, heads=facts, rows=rows)
                variants.append(Variant(f"attention_tile{rows}{suffix(facts)}", level, build, activation, MANY_ROWS))
        variants += plain(context, f"rope_attention{suffix(facts)}", partial(rope_attention, heads=facts), activation)
    return variants


def suffix(facts: Heads) -> str:
    """The end of an attention kernel's name."""
    norm = "_norm" if facts.norm_eps is not None else ""
    return norm + ("_kv8" if facts.kv == "q8" else "") + {"float16": "_f16", "float32": "_f32"}[facts.activation]


def take_rows_variants(step: Step, context: CpuContext) -> Sequence[Variant]:
    (columns,) = sizes(context.plan.shape_of(step.inputs["x"])[1:])
    return plain(context, "take_rows", partial(take_rows, columns=columns))


def rms_norm_variants(step: Step, context: CpuContext) -> Sequence[Variant]:
    (columns,) = sizes(context.plan.shape_of(step.inputs["x"])[1:])
    return plain(context, "rms_norm", partial(rms_norm, columns=columns, eps=step.attrs["eps"]))


def sampling_variants(step: Step, context: CpuContext) -> Sequence[Variant]:
    template = {"adjust_logits": adjust_logits, "sample": sample, "top_logprobs": top_logprobs}[step.op]
    return plain(context, step.op, partial(template, columns=context.rows_and_columns(step.inputs["logits"])[1]))


OPS: dict[str, Callable[[Step, CpuContext], Sequence[Variant]]] = {
    "embed": embed_variants,
    "linear": projection_variants,
    "gated_linear": projection_variants,
    "add_lora": add_lora_variants,
    "gate_halves": gate_halves_variants,
    "rope_attention": rope_attention_variants,
    "take_rows": take_rows_variants,
    "rms_norm": rms_norm_variants,
    "adjust_logits": sampling_variants,
    "sample": sampling_variants,
    "top_logprobs": sampling_variants,
}

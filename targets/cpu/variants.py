"""The variants of every op on CPUs: for each step, the kernels that can run it, best first; the last row runs on every machine.

A row is a kernel template with its parameters, for one level of instruction sets. To add a faster kernel, write its template in
`compiler/kernels/cpu/` and put a row above the plain one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from nearfar.compiler.expr import Condition
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.kernels.cpu.adjust_logits import adjust_logits
from nearfar.compiler.kernels.cpu.attention import attention_split, attention_tile, rope_attention
from nearfar.compiler.kernels.cpu.builder import Isa
from nearfar.compiler.kernels.cpu.embed import embed
from nearfar.compiler.kernels.cpu.linear_float import linear_float
from nearfar.compiler.kernels.cpu.rows import rms_norm, take_rows
from nearfar.compiler.kernels.cpu.sample import sample
from nearfar.compiler.kernels.cpu.top_logprobs import top_logprobs
from nearfar.compiler.kernels.packed import WeightFormat
from nearfar.compiler.kernels.pages import Heads
from nearfar.compiler.kernels.projection import Projection
from nearfar.compiler.plan import Plan, Step
from nearfar.compiler.quant import Quantization
from nearfar.compiler.spec import ModelSpec

from .levels import AVX2, AVX512, NEON, Level

# What kernels without a use for integer dot products are compiled for.
PLAIN_LEVELS = (AVX512, AVX2, NEON)

# Queries that share a load of a key: the rows of a tile times the query heads of a kv head.
TILE_QUERIES = 8
# Sequences of fewer new tokens would leave most rows of a tile to others.
MANY_ROWS: Condition = ["<=", ["mul", "B", 8], "S"]
# One new token of every sequence, with too few sequences to give every thread of a large machine a head, and a few blocks of keys.
LONG = 512
FEW_LONG: Condition = ["and", ["==", "S", "B"], ["and", ["<=", "S", 8], [">", "T", LONG]]]

# Makes a kernel of a name for an instruction set.
Build: TypeAlias = Callable[[str, Isa], Kernel]


@dataclass(frozen=True, slots=True)
class Variant:
    """``build`` makes the kernel; equal ``name`` means equal kernel, so each is lowered once. The level adds its name and its needs."""

    name: str
    level: Level
    build: Build
    activation: str | None = None
    when: Condition = None

    @property
    def kernel_name(self) -> str:
        return f"{self.name}_{self.level.name}"

    def kernel(self) -> Kernel:
        return self.build(self.kernel_name, self.level.isa)


@dataclass(frozen=True, slots=True)
class Context:
    """What a step's kernels depend on beside the step; ``levels`` are those of the architecture, best first."""

    plan: Plan
    spec: ModelSpec
    quantization: Quantization
    activations: tuple[str, ...]
    levels: tuple[Level, ...]

    @property
    def weight_format(self) -> WeightFormat:
        scales = [plane.dtype for plane in self.quantization.planes(32) if plane.name == "s"]
        return WeightFormat(self.quantization.kind, scales[0] if scales else "")

    @property
    def plain_levels(self) -> tuple[Level, ...]:
        return tuple(level for level in self.levels if level in PLAIN_LEVELS)

    def dtype_of(self, name: str, activation: str) -> str:
        dtype = self.plan.buffers[name].dtype
        return activation if dtype == "activation" else dtype


def variants_of(step: Step, context: Context) -> tuple[Variant, ...]:
    """The rows of one step, in the order in which a runtime tries them."""
    return tuple(OPS[step.op](step, context))


def plain(context: Context, name: str, build: Build, activation: str | None = None, when: Condition = None) -> list[Variant]:
    """One template, for every level."""
    return [Variant(name, level, build, activation, when) for level in context.plain_levels]


def embed_variants(step: Step, context: Context) -> Sequence[Variant]:
    rows, columns = sizes(context.plan.shape_of(step.inputs["table"]))
    split, first_row, fmt = "first_row" in step.attrs, step.attrs.get("first_row", 0), context.weight_format
    name = f"embed_{context.quantization.kind}_{rows}x{columns}" + (f"_from{first_row}" if split else "")
    return plain(context, name, lambda name, isa: embed(name, isa, rows, columns, fmt, first_row, split=split))


def projection_variants(step: Step, context: Context) -> Sequence[Variant]:
    gated = step.op == "gated_linear"
    batch = context.plan.shape_of(step.inputs["x"])[0]
    rows, columns = sizes(context.plan.shape_of(step.inputs["weight"]))
    projections: dict[str, Projection] = {}
    for activation in context.activations:
        projections[activation] = Projection(
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
    if len(set(projections.values())) == 1:
        return projection_rows(next(iter(projections.values())), None, context)
    return [row for activation, facts in projections.items() for row in projection_rows(facts, activation, context)]


def projection_rows(facts: Projection, activation: str | None, context: Context) -> list[Variant]:
    """The kernels of one projection."""
    return plain(context, f"{facts.name}_float", lambda name, isa: linear_float(name, isa, facts), activation)


def rope_attention_variants(step: Step, context: Context) -> Sequence[Variant]:
    kv_heads, page_size = sizes(context.plan.shape_of(step.inputs["kv"])[2:4])
    (positions,) = sizes(context.plan.shape_of(step.inputs["table"])[:1])
    variants: list[Variant] = []
    for activation in context.activations:
        heads, head_dim = context.spec.num_heads, context.spec.head_dim
        kv, eps = step.attrs.get("kv", "activation"), step.attrs.get("eps")
        facts = Heads(heads, kv_heads, head_dim, page_size, positions, activation, eps, kv)
        if positions > LONG:
            variants += plain(context, f"attention_split{suffix(facts)}", partial(attention_split, heads=facts), activation, FEW_LONG)
        rows = max(1, TILE_QUERIES // facts.group)
        if rows > 1:
            build = partial(attention_tile, heads=facts, rows=rows)
            variants += plain(context, f"attention_tile{rows}{suffix(facts)}", build, activation, MANY_ROWS)
        variants += plain(context, f"rope_attention{suffix(facts)}", partial(rope_attention, heads=facts), activation)
    return variants


def suffix(facts: Heads) -> str:
    """The end of an attention kernel's name."""
    norm = "_norm" if facts.norm_eps is not None else ""
    return norm + ("_kv8" if facts.kv == "q8" else "") + {"float16": "_f16", "float32": "_f32"}[facts.activation]


def take_rows_variants(step: Step, context: Context) -> Sequence[Variant]:
    (columns,) = sizes(context.plan.shape_of(step.inputs["x"])[1:])
    return plain(context, "take_rows", partial(take_rows, columns=columns))


def rms_norm_variants(step: Step, context: Context) -> Sequence[Variant]:
    (columns,) = sizes(context.plan.shape_of(step.inputs["x"])[1:])
    return plain(context, "rms_norm", partial(rms_norm, columns=columns, eps=step.attrs["eps"]))


def sampling_variants(step: Step, context: Context) -> Sequence[Variant]:
    template = {"adjust_logits": adjust_logits, "sample": sample, "top_logprobs": top_logprobs}[step.op]
    return plain(context, step.op, partial(template, columns=context.spec.vocab_size))


OPS: dict[str, Callable[[Step, Context], Sequence[Variant]]] = {
    "embed": embed_variants,
    "linear": projection_variants,
    "gated_linear": projection_variants,
    "rope_attention": rope_attention_variants,
    "take_rows": take_rows_variants,
    "rms_norm": rms_norm_variants,
    "adjust_logits": sampling_variants,
    "sample": sampling_variants,
    "top_logprobs": sampling_variants,
}


def sizes(shape: tuple[object, ...]) -> tuple[int, ...]:
    """A shape that the model fixes, as ints."""
    assert all(isinstance(size, int) for size in shape), shape
    return shape  # type: ignore[return-value]

"""The variants of every op on CPUs: for each step, the kernels that can run it, best first; the last one runs on every
machine.

A variant is a kernel template and its facts for one level; the facts include the instruction set. To add a faster
kernel, write its template in `compiler/kernels/cpu/` and add a variant above the plain one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from nearfar.compiler.ir.expr import Condition
from nearfar.compiler.ir.heads import ATTENDED, Heads, Preparation, Scores
from nearfar.compiler.ir.ops.elementwise import OPS as ELEMENTWISE
from nearfar.compiler.ir.plan import Step
from nearfar.compiler.kernels.causal_conv import CONVOLVED
from nearfar.compiler.kernels.convolve import convolve
from nearfar.compiler.kernels.cpu.add_lora import add_lora
from nearfar.compiler.kernels.cpu.adjust_logits import adjust_logits
from nearfar.compiler.kernels.cpu.attention import attention, attention_split
from nearfar.compiler.kernels.cpu.clip_norm import clip_norm, row_moments
from nearfar.compiler.kernels.cpu.embed import embed
from nearfar.compiler.kernels.cpu.encoder_rows import embed_positions, mix_rows, near_rows, pool_rows, rope_heads
from nearfar.compiler.kernels.cpu.experts import expert_tiles, grouped_expert_tiles, route, sort_pairs
from nearfar.compiler.kernels.cpu.integer_dot import row_layout
from nearfar.compiler.kernels.cpu.keep_rows import keep_rows
from nearfar.compiler.kernels.cpu.linear_matrix import linear_matrix, matrix_multiplies
from nearfar.compiler.kernels.cpu.linear_tiles import linear_tiles
from nearfar.compiler.kernels.cpu.mark_logits import mark_logits
from nearfar.compiler.kernels.cpu.matrix_attention import matrix_attends, matrix_attention
from nearfar.compiler.kernels.cpu.new_heads import append_kv
from nearfar.compiler.kernels.cpu.pair_attention import pair_attention
from nearfar.compiler.kernels.cpu.prepare_rows import InputRows, prepare_rows
from nearfar.compiler.kernels.cpu.ragged_attention import ragged_attention
from nearfar.compiler.kernels.cpu.rotation import rope
from nearfar.compiler.kernels.cpu.rows import rms_norm
from nearfar.compiler.kernels.cpu.sample import sample
from nearfar.compiler.kernels.cpu.states import causal_conv, gated_delta, ssm_scan
from nearfar.compiler.kernels.cpu.top_logprobs import top_logprobs
from nearfar.compiler.kernels.elementwise import elementwise, slice_columns, take_rows
from nearfar.compiler.kernels.experts import combine
from nearfar.compiler.kernels.image_rows import fold_rows, place_rows, rope_rows
from nearfar.compiler.kernels.kept_rows import join_kept
from nearfar.compiler.kernels.projection import Projection
from nearfar.targets.context import Context, attr, position_tables, sizes
from nearfar.targets.split import split
from nearfar.targets.variant import (
    KernelCall,
    Template,
    Variant,
    for_activations,
    kernel,
    no_kernel,
    with_roles,
)

from .levels import AMX, AVX2, AVX512, DOTPROD, NEON, VNNI, Level

# The levels of kernels without integer products.
PLAIN_LEVELS = (AVX512, AVX2, NEON)
# The rows of a projection's input that share an unpacked weight, and the largest batch for which a block has this
# number of rows. Registers limit the rows, because they hold the sums; VNNI's blocks of 6 rows have two tiles.
BLOCK_ROWS: dict[Level, dict[int, int | None]] = {
    VNNI: {4: 4, 8: 16, 6: None},
    AVX512: {4: None},
    AVX2: {4: None},
    DOTPROD: {4: None},
    NEON: {2: None},
}
# The same for weights that are floats.
FLOAT_BLOCK_ROWS: dict[Level, dict[int, int | None]] = {
    AVX512: {4: 4, 8: None},
    AVX2: {4: 8, 6: None},
    NEON: {2: 4, 6: None},
}
# With more pairs than this for each expert, they share its weights, in the blocks of the largest batches. Measured with
# VNNI: equal times at 2 pairs, 0.75 of the time at 4, and 0.4 at 32. Blocks of 8 rows took 1.5 times as long as those
# of 6, and blocks of 4 rows 1.3 times.
MIN_PAIRS_OF_EXPERT = 2
# The number of rows from which on AMX is faster, with one plane and with two.
MATRIX_ROWS = {1: 128, 2: 48}
# The level of the kernel that prepares a projection's input, which has no integer products.
PREPARING = {AMX: AVX512, VNNI: AVX512, DOTPROD: NEON}

# Queries that share a load of a key: the rows of a tile times the query heads of a kv head.
TILE_QUERIES = {AVX512: 16, AVX2: 8, NEON: 8}
# The keys of a page that ragged attention makes: a vector of the widest level.
RAGGED_PAGE = 16
# With fewer new tokens per sequence, most rows of a tile would belong to other sequences.
MANY_ROWS: Condition = ["<=", ["mul", "B", 8], "S"]
# One new token of every sequence, with too few sequences for every thread of a large machine to get a head, and with a
# few blocks of keys.
LONG = 512
FEW_LONG: Condition = ["and", ["==", "S", "B"], ["and", ["<=", "S", 8], [">", "T", LONG]]]
FEW_SAMPLED_LONG: Condition = ["and", ["<=", "R", 8], [">", "T", LONG]]


@dataclass(frozen=True, slots=True)
class CpuContext(Context):
    """``levels`` are those of the architecture, best first."""

    levels: tuple[Level, ...]

    @property
    def product_levels(self) -> tuple[Level, ...]:
        return tuple(level for level in self.levels if level != AMX)

    @property
    def plain_levels(self) -> tuple[Level, ...]:
        return tuple(level for level in self.levels if level in PLAIN_LEVELS)

    def step_of(self, x: str, reader: Step) -> float | None:
        """The number of which a step's input is -128 to 127 times, because `fake_quantize` has written it; None for
        other inputs.
        """
        before = self.plan.steps[: self.plan.steps.index(reader)]
        writer = next((each for each in reversed(before) if x in each.outputs.values()), None)
        return float(attr(writer, "scale")) if writer is not None and writer.op == "fake_quantize" else None


def variants_of(step: Step, context: CpuContext) -> tuple[Variant, ...]:
    """The variants of one step, in the order in which a runtime tries them."""
    return for_activations(
        {activation: activation_variants(step, context, activation) for activation in context.activations}
    )


def activation_variants(step: Step, context: CpuContext, activation: str) -> list[Variant]:
    if step.op in TEMPLATES:
        template = TEMPLATES[step.op]
        return plain(context, template, **context.facts(step, template, activation))
    if step.op not in OPS:
        raise no_kernel(step)
    return OPS[step.op](step, context, activation)


def plain(context: CpuContext, template: Template, *, when: Condition = None, **facts: Any) -> list[Variant]:
    """One template, for every level."""
    return [variant(level, instance(template, level, **facts), when=when) for level in context.plain_levels]


def instance(template: Template, level: Level, **facts: Any) -> KernelCall:
    return kernel(template, isa=level.isa, **facts)


def variant(level: Level, *kernels: KernelCall, when: Condition = None) -> Variant:
    return Variant(kernels, when=when, needs=level.needs)


# --- rows and elements ---


def embed_variants(step: Step, context: CpuContext, activation: str) -> list[Variant]:  # noqa: ARG001
    rows, columns = sizes(context.plan.shape_of(step.inputs["table"]))
    facts: dict[str, Any] = {
        "weight": context.weight_format(step.inputs["table"]),
        "first_row": attr(step, "first_row"),
        "scale": float(attr(step, "scale")),
        "samples": "sampled" in step.inputs,
    }
    return plain(context, embed, rows=rows, columns=columns, **facts)


def table_variants(template: Template, step: Step, context: CpuContext, activation: str) -> list[Variant]:  # noqa: ARG001
    return plain(context, template, **position_tables(step, context, template))


# --- projections ---


def projection_variants(step: Step, context: CpuContext, activation: str) -> list[Variant]:
    """Kernels for a single row and for blocks of rows, each after a kernel that prepares the rows.

    Integer dot products have separate levels. The integers of activations have 8 or 16 bits; 8 are exact for an input
    that the step before has rounded to 8 bits.
    """
    facts = context.projection(step, activation)
    multiple_of = None if facts.load else context.step_of(step.inputs["x"], step)
    return variants_of_projection(facts, context, activation, multiple_of)


def variants_of_projection(
    facts: Projection, context: CpuContext, activation: str, multiple_of: float | None = None
) -> list[Variant]:
    """``multiple_of``: the input is -128 to 127 times this number."""
    # The kernel that prepares the rows does what is loaded, but only a norm or a rounding.
    multiplied = replace(facts, load=())
    if facts.load and facts.load[0]["op"] == "fake_quantize":
        multiple_of = facts.load[0]["scale"]
    bits = (8 if activation == "int8" or multiple_of else 16) if facts.weight.scale_dtype else None

    def prepared(level: Level, *, for_level: Level, bits: int | None, planes: int = 0) -> tuple[KernelCall, ...]:
        if len(facts.load) <= 1:
            rows = replace(input_rows(facts, for_level, bits, multiple_of), planes=planes)
            return (instance(prepare_rows, level, rows=rows),)
        before, rest, reads = split(facts, partial(instance, rms_norm, level))
        rows = replace(input_rows(rest, for_level, bits, multiple_of), planes=planes)
        return before, with_roles(instance(prepare_rows, level, rows=rows), **reads)

    variants = []
    if facts.experts is not None:
        for level in context.product_levels if bits else context.plain_levels:
            first = prepared(PREPARING.get(level, level), for_level=level, bits=bits)
            variants += [
                replace(each, kernels=(*first, *each.kernels)) for each in expert_variants(level, multiplied, bits)
            ]
        return variants
    planes = 2 if bits is None else 1
    if AMX in context.levels and not context.plan.states and matrix_multiplies(facts, bits) and not multiple_of:
        first = prepared(PREPARING[AMX], for_level=AMX, bits=None, planes=planes)
        multiply = instance(linear_matrix, AMX, facts=multiplied, planes=planes)
        variants.append(variant(AMX, *first, multiply, when=[">=", facts.batch, MATRIX_ROWS[planes]]))
    for level in context.product_levels if bits else context.plain_levels:
        first = prepared(PREPARING.get(level, level), for_level=level, bits=bits)
        for tokens, most in {1: 1, **(BLOCK_ROWS if bits else FLOAT_BLOCK_ROWS)[level]}.items():
            when: Condition = None if most is None else ["<=", facts.batch, most]
            variants.append(
                variant(
                    level, *first, instance(linear_tiles, level, facts=multiplied, tokens=tokens, bits=bits), when=when
                )
            )
    return variants


def expert_variants(level: Level, facts: Projection, bits: int | None) -> list[Variant]:
    """The kernels behind the one that prepares rows: with many pairs of each expert, these share its weights."""
    assert facts.experts is not None
    *_, tokens = (BLOCK_ROWS if bits else FLOAT_BLOCK_ROWS)[level]
    sort = instance(sort_pairs, level, experts=facts.experts)
    grouped = instance(grouped_expert_tiles, level, facts=facts, tokens=tokens, bits=bits)
    many: Condition = [">", facts.batch, MIN_PAIRS_OF_EXPERT * facts.experts.count]
    return [
        variant(level, sort, grouped, when=many),
        variant(level, instance(expert_tiles, level, facts=facts, bits=bits)),
    ]


def input_rows(facts: Projection, level: Level, bits: int | None, multiple_of: float | None = None) -> InputRows:
    """The prepared form of a projection's input. Projections with equal inputs share it, and so the kernel."""
    rows = InputRows(facts.input_rows, facts.columns, facts.x_dtype, facts.load)
    if bits is None:
        rounds = facts.load and facts.load[0]["op"] == "fake_quantize"
        return replace(rows, step=multiple_of if rounds else None)
    return replace(
        rows,
        layout=row_layout(level.name, facts.weight, bits),
        zero=0 if facts.weight.offset else facts.weight.zero,
        sums=bool(facts.weight.offset),
        halves=facts.weight.scales_a_chunk == 2,
        step=multiple_of,
    )


# --- attention ---


def append_kv_variants(step: Step, context: CpuContext, activation: str) -> list[Variant]:
    return plain(context, append_kv, heads=context.heads_of(step, activation))


def attention_variants(step: Step, context: CpuContext, activation: str) -> list[Variant]:
    """The plain form last, for any batch."""
    heads, given = context.heads_of(step, activation), context.facts(step, attention, activation)
    facts: dict[str, Any] = {"heads": heads, **given}
    all_tokens = heads.rows == "S"
    few_long = FEW_LONG if all_tokens else FEW_SAMPLED_LONG
    variants = plain(context, attention_split, when=few_long, **facts) if may_see_more_than(LONG, **given) else []
    for level in context.plain_levels:
        tile = TILE_QUERIES[level] // heads.group
        # Every sampled row is a sequence, so no two share a tile.
        if tile > 1 and all_tokens:
            variants.append(variant(level, instance(attention, level, **facts, tile_rows=tile), when=MANY_ROWS))
    return variants + plain(context, attention, **facts, tile_rows=1)


def rope_heads_variants(step: Step, context: CpuContext, activation: str) -> list[Variant]:
    heads = context.heads_of(step, activation, RAGGED_PAGE)
    return plain(context, rope_heads, heads=heads, **context.facts(step, rope_heads, activation))


def ragged_attention_variants(step: Step, context: CpuContext, activation: str) -> list[Variant]:
    """With a projection, the kernels of both parts, one after the other."""
    facts: dict[str, Any] = {
        "heads": context.heads_of(step, activation, RAGGED_PAGE),
        **context.facts(step, ragged_attention, activation),
    }
    if "weight" not in step.inputs:
        return [variant(level, call) for level, call in ragged_attention_calls(context, **facts).items()]
    of_level = {level.isa: call for level, call in ragged_attention_calls(context, **facts, y_in_scratch=True).items()}
    attended = f"scratch.{ATTENDED}"
    variants: list[Variant] = []
    projections = variants_of_projection(context.projection(step, activation), context, activation)
    # The level of the projection behind attention with VNNI, which has that of floats if weights are floats.
    of_pairs = VNNI.needs if any(each.needs == VNNI.needs for each in projections) else AVX512.needs
    takes_pairs = VNNI in context.levels and activation != "float32" and matrix_attends(**facts)
    for each in projections:
        prepare, multiply = each.kernels
        if each.needs == AMX.needs and matrix_attends(**facts):
            first = instance(matrix_attention, AMX, **facts, y_in_scratch=True, planes=multiply.facts["planes"])
        else:
            first = of_level[prepare.facts["isa"]]
        reading = tuple(with_roles(call, x=attended) for call in each.kernels)
        if takes_pairs and each.needs == of_pairs:
            pairs = instance(pair_attention, VNNI, **facts, y_in_scratch=True)
            variants.append(variant(VNNI, pairs, *reading, when=each.when))
        if not takes_pairs or each.needs != VNNI.needs:
            variants.append(replace(each, kernels=(first, *reading)))
    return variants


def ragged_attention_calls(context: CpuContext, *, heads: Heads, **facts: Any) -> dict[Level, KernelCall]:
    """The kernel of each level."""
    return {
        level: instance(
            ragged_attention, level, heads=heads, **facts, tile_rows=max(1, TILE_QUERIES[level] // heads.group)
        )
        for level in context.plain_levels
    }


def convolved_delta_variants(step: Step, context: CpuContext, activation: str) -> list[Variant]:
    """The convolution, and the gated delta rule behind it."""
    variants = []
    for level in context.plain_levels:
        first, rule = (
            instance(template, level, **context.facts(step, template, activation), **more)
            for template, more in ((causal_conv, {"y_in_scratch": True}), (gated_delta, {}))
        )
        reads = {"qkv": f"scratch.{CONVOLVED}", "abz": "x"}
        variants.append(variant(level, with_roles(first, state="conv"), with_roles(rule, **reads)))
    return variants


def may_see_more_than(keys: int, preparation: Preparation, scores: Scores) -> bool:
    """Whether a row may see more than ``keys`` keys: the window limits them, and the length of the rotation table,
    which is the context, if it has a row for each position.
    """
    limits = [] if scores.window is None else [scores.window]
    limits += [preparation.positions] if preparation.rotary_dim and isinstance(preparation.positions, int) else []
    return all(limit > keys for limit in limits)


# The ops whose one kernel depends on nothing but the facts that they declare. It has the op's name.
TEMPLATES: dict[str, Template] = dict.fromkeys(ELEMENTWISE, elementwise) | {
    template.__name__: template
    for template in (
        fold_rows, place_rows, rope_rows, near_rows, convolve, pool_rows, row_moments, clip_norm, rope,
        take_rows, keep_rows, join_kept, slice_columns, rms_norm, add_lora, causal_conv, gated_delta, ssm_scan,
        adjust_logits, mark_logits, sample, top_logprobs, route, combine,
    )
}  # fmt: skip
OPS: dict[str, Callable[[Step, CpuContext, str], list[Variant]]] = {
    "embed": embed_variants,
    "embed_positions": partial(table_variants, embed_positions),
    "mix_rows": partial(table_variants, mix_rows),
    "rope_heads": rope_heads_variants,
    "ragged_attention": ragged_attention_variants,
    "linear": projection_variants,
    "expert_linear": projection_variants,
    "append_kv": append_kv_variants,
    "convolved_delta": convolved_delta_variants,
    "attention": attention_variants,
}

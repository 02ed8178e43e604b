"""The variants that the GPU targets share: for each step, the kernels that can run it, best first.

A target supplies its numbers as data, and its own variants of projections, which differ in more than numbers. One is
correct for every batch that its structural condition allows, such as one new token of every sequence; bounds on sizes
are preferences. The last one of every list runs on every device of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import TypeAlias

from nearfar.compiler.ir.expr import Condition
from nearfar.compiler.ir.heads import ATTENDED
from nearfar.compiler.ir.ops.elementwise import OPS as ELEMENTWISE
from nearfar.compiler.ir.plan import Step
from nearfar.compiler.kernels.add_lora import add_lora
from nearfar.compiler.kernels.adjust_logits import adjust_logits
from nearfar.compiler.kernels.causal_conv import CONVOLVED, causal_conv
from nearfar.compiler.kernels.chunk_products import gated_delta_products, ssm_scan_products
from nearfar.compiler.kernels.chunk_scan import gated_delta_chunks, gated_delta_output, outputs_of, ssm_scan_chunks
from nearfar.compiler.kernels.clip_norm import clip_norm, row_moments
from nearfar.compiler.kernels.convolve import convolve
from nearfar.compiler.kernels.convolved_delta import convolved_delta
from nearfar.compiler.kernels.cuda.linear_async import linear_async
from nearfar.compiler.kernels.elementwise import elementwise, slice_columns, take_rows, zeros
from nearfar.compiler.kernels.embed import embed
from nearfar.compiler.kernels.encoder_rows import embed_positions, near_rows, pool_rows
from nearfar.compiler.kernels.experts import combine, group_pairs, route
from nearfar.compiler.kernels.fold import operands_of
from nearfar.compiler.kernels.image_rows import fold_rows, mix_rows, place_rows, rope_rows
from nearfar.compiler.kernels.keep_rows import keep_rows
from nearfar.compiler.kernels.kept_rows import join_kept
from nearfar.compiler.kernels.linear_subgroup import linear_subgroup
from nearfar.compiler.kernels.linear_tile import TileShape, linear_tile
from nearfar.compiler.kernels.linear_vector import VectorShape, linear_vector, power_of_two
from nearfar.compiler.kernels.mark_logits import mark_logits
from nearfar.compiler.kernels.matrix_state import MAX_OUTPUTS, gated_delta, ssm_scan
from nearfar.compiler.kernels.projection import Projection
from nearfar.compiler.kernels.quantize_rows import quantize_rows
from nearfar.compiler.kernels.ragged_attention import ragged_attention
from nearfar.compiler.kernels.ragged_attention_linear import fused_shape, ragged_attention_linear
from nearfar.compiler.kernels.rms_norm import rms_norm
from nearfar.compiler.kernels.rope import rope
from nearfar.compiler.kernels.sample import sample
from nearfar.compiler.kernels.sample_chunks import sample_chunks
from nearfar.compiler.kernels.sample_merge import sample_merge
from nearfar.compiler.kernels.top_chunks import top_chunks
from nearfar.compiler.kernels.top_logprobs import top_logprobs
from nearfar.compiler.kernels.top_merge import top_merge
from nearfar.compiler.runtime.errors import UnsupportedModel

from .context import Context, position_tables
from .gpu_attention import DECODE, AttentionNumbers, attention_variants, ragged_variants
from .gpu_attention import OPS as ATTENTION_OPS
from .split import behind, split
from .variant import KernelCall, Template, Variant, for_activations, kernel, no_kernel, with_roles

# The templates that compute everything that a projection loads: those of matrix-vector kernels, which read complete
# rows before they multiply, if a norm needs it, and the one that quantizes rows.
VECTOR_TEMPLATES = (linear_vector, linear_subgroup, linear_async, quantize_rows)
# The threads of a matrix-vector workgroup.
VECTOR_THREADS = 128
# From this many pairs for each expert on, they share its weights.
MIN_PAIRS_OF_EXPERT = 4
EXPERT_TILE = TileShape(32, 32, 32, 64)
# A weight matrix of at least this many rows has enough workgroups with four rows per thread.
MIN_TALL_EXPERT = 8192
# Sequences with at most this many new rows are processed row after row. A longer one needs scratch for a whole chunk,
# so this bounds the scratch of a batch.
FEW_STATE_ROWS = 16
# From this many logits on, many workgroups share a row; fewer are not worth the second dispatch.
MIN_SHARED_COLUMNS = 8192


@dataclass(frozen=True, slots=True)
class GpuNumbers:
    """The numbers that differ between targets in the variants that they share.

    Up to ``max_vector_rows`` input rows, a matrix-vector kernel reads the weights; above, a tile kernel reads them once
    for all rows of a tile. A kernel binds at most ``max_buffers``. Batches for which ``shared_rows`` holds sample large
    vocabularies by many workgroups per row. The ``centering`` templates of projections compute a LayerNorm of their
    input by themselves, if it is faster than a kernel before them.
    """

    max_vector_rows: int
    max_buffers: int
    attention: AttentionNumbers
    max_fused_rows: int
    shared_rows: Condition = None
    centering: tuple[Template, ...] = VECTOR_TEMPLATES


# The variants of a projection for one activation dtype, whatever it loads; and those for the dtype at hand.
ProjectionVariants: TypeAlias = Callable[[Projection, str], Sequence[Variant]]
KernelVariants: TypeAlias = Callable[[Projection], Sequence[Variant]]


def variants_of(
    step: Step, context: Context, numbers: GpuNumbers, projection_variants: ProjectionVariants
) -> tuple[Variant, ...]:
    """The variants of one step, in the order in which a runtime tries them."""
    if step.op in ATTENTION_OPS and "weight" not in step.inputs:
        return attention_variants(step, context, numbers.attention)
    return for_activations(
        {
            activation: activation_variants(step, context, activation, numbers, projection_variants)
            for activation in context.activations
        }
    )


def activation_variants(
    step: Step, context: Context, activation: str, numbers: GpuNumbers, projection_variants: ProjectionVariants
) -> Sequence[Variant]:
    if step.op == "sample":
        return sample_variants(step, context, numbers)
    if step.op == "top_logprobs":
        return top_logprobs_variants(step, context)
    if step.op == "convolved_delta":
        return convolved_variants(step, context, activation)
    if step.op in STATES:
        return state_variants(step, context, activation)
    if step.op in TEMPLATES:
        template = TEMPLATES[step.op]
        return (Variant((kernel(template, **context.facts(step, template, activation)),)),)
    if step.op in KERNELS:
        return (Variant((KERNELS[step.op](step, context, activation),)),)
    if step.op not in ("linear", "expert_linear", *ATTENTION_OPS):
        raise no_kernel(step)
    facts, weight = context.projection(step, activation), step.inputs["weight"]

    def variants_of_kernels(facts: Projection) -> Sequence[Variant]:
        return projection_variants(facts, activation)

    if step.op in ATTENTION_OPS:
        return attention_linear_variants(step, context, facts, activation, numbers, variants_of_kernels)
    variants = linear_variants(
        facts, weight, numbers, variants_of_kernels if facts.experts is None else expert_variants
    )
    if not leaves_columns_unwritten(step, context, facts):
        return variants
    before = kernel(zeros, rows=facts.batch, columns=facts.total_width, dtype=facts.y_dtype)
    return [replace(each, kernels=(before, *each.kernels)) for each in variants]


# --- projections ---


def attention_linear_variants(
    step: Step,
    context: Context,
    facts: Projection,
    activation: str,
    numbers: GpuNumbers,
    variants_of_kernels: KernelVariants,
) -> Sequence[Variant]:
    """The variants of a ragged_attention with a projection: one kernel for few rows, and the kernels of both parts."""
    (attention,) = ragged_variants(step, context, numbers.attention, activation, y_in_scratch=True)
    variants = [
        replace(
            each, kernels=(*attention.kernels, *(with_roles(call, x=f"scratch.{ATTENDED}") for call in each.kernels))
        )
        for each in linear_variants(facts, step.inputs["weight"], numbers, variants_of_kernels)
    ]
    heads, scores = context.heads_of(step, activation, 1), context.facts(step, ragged_attention, activation)["scores"]
    shape = fused_shape(heads, numbers.attention.max_shared_bytes)
    # Without x, but with qkv, seq_starts, and perhaps positions and biases.
    buffers = num_buffers(facts) + 1 + scores.reads_positions + (scores.distances > 0)
    if (
        shape is None
        or scores.sinks
        or scores.distance_heads
        or buffers > numbers.max_buffers
        or not numbers.max_fused_rows
        or heads.rows != "S"
    ):
        return variants
    fused = kernel(ragged_attention_linear, heads=heads, scores=scores, facts=facts, shape=shape)
    return [Variant((fused,), when=["<=", "S", numbers.max_fused_rows]), *variants]


def linear_variants(
    facts: Projection, weight: str, numbers: GpuNumbers, variants_of_kernels: KernelVariants
) -> Sequence[Variant]:
    """The variants of a linear: those whose kernels fold everything that it loads, and, if that is not all of them,
    those of its last parts behind a kernel that computes the first ones.
    """
    variants = variants_of_kernels(facts)
    folding = [each for each in variants if all(folds(call, numbers) for call in each.kernels)]
    if len(folding) == len(variants):
        return folding
    if not any(part["op"] == "rms_norm" for part in facts.load):
        raise UnsupportedModel(
            f"{weight}: its kernel needs {num_buffers(facts)} buffers, and kernels of this target have at most "
            f"{numbers.max_buffers}; add --requantize to convert the weights",
            tensor=weight,
        )
    before, rest, reads = split(facts, partial(kernel, rms_norm))
    return [
        *folding,
        *(behind(before, each, reads) for each in linear_variants(rest, weight, numbers, variants_of_kernels)),
    ]


def expert_variants(facts: Projection) -> Sequence[Variant]:
    """The kernels of an expert_linear. Few pairs read the weights of their experts one by one; with many, the pairs of
    an expert share them.
    """
    experts = facts.experts
    assert experts is not None
    groups = kernel(group_pairs, experts=experts, tile_rows=EXPERT_TILE.rows)
    many: Condition = [">", facts.batch, MIN_PAIRS_OF_EXPERT * experts.count]
    return [
        Variant((groups, kernel(linear_tile, facts=facts, shape=EXPERT_TILE)), when=many),
        Variant((kernel(linear_vector, facts=facts, shape=vector_shape(facts, MIN_TALL_EXPERT)),)),
    ]


def folds(call: KernelCall, numbers: GpuNumbers) -> bool:
    """Whether a kernel computes by itself what its projection loads, and does not bind too many buffers."""
    if call.template is group_pairs:
        return True
    facts = call.facts.get("facts")
    load = call.facts["load"] if facts is None else facts.load
    if facts is not None and num_buffers(facts) > numbers.max_buffers:
        return False
    if len(load) > 1 or any(part["keep"] and not part.get("centered") for part in load):
        return call.template in VECTOR_TEMPLATES
    # All kernels round their input, and multiply results by the factor of an RMS norm.
    return not any(part.get("centered") for part in load) or call.template in numbers.centering


def num_buffers(facts: Projection) -> int:
    """The buffers that a projection's kernel binds. Int8 biases are in the plane of the scales, and a second plane has
    the units; norms of one array share it.
    """
    fmt = facts.weight
    factors = 2 if fmt.has_units else fmt.factors_a_group if fmt.scale_dtype else 0
    norms = [part for part in facts.load if part["op"] == "rms_norm"]
    shared = len(norms) > 1 and norms[-1]["row"] is not None
    arrays = len(norms) - shared + len([part for part in norms if part["bias"]])
    operands = sum(len(operands_of(part, 1, 1)) for part in (*facts.load, *facts.store))
    kept = len([part for part in facts.load if part["keep"]])
    # 3: x, the codes, y.
    # Kernels of experts bind at most two buffers that name them.
    experts = 0 if facts.experts is None else 2
    return 3 + bool(fmt.high_bits) + factors + facts.bias + arrays + operands + kept + experts


def few_rows(facts: Projection, numbers: GpuNumbers) -> Condition:
    return ["<=", facts.batch, numbers.max_vector_rows]


def vector_variant(facts: Projection, shape: VectorShape, numbers: GpuNumbers) -> Variant:
    return Variant((kernel(linear_vector, facts=facts, shape=shape),), when=few_rows(facts, numbers))


def vector_shape(facts: Projection, min_tall_rows: int) -> VectorShape:
    """Up to 32 threads along the columns, so that small matrices still have enough workgroups. A matrix of at least
    ``min_tall_rows`` rows occupies every core with four rows per thread; a smaller one uses two.
    """
    blocks = -(-facts.columns // facts.weight.block_columns)
    lanes = min(32, max(8, power_of_two(blocks)))
    # The smaller a block's part of a row, the more blocks a thread loads before it uses any.
    unroll = min(32 // facts.weight.block_columns, 4, -(-blocks // lanes))
    rows = 4 if facts.weight_rows >= min_tall_rows and not facts.gated else 2
    return VectorShape(VECTOR_THREADS, lanes, rows, unroll)


def tile_variant(facts: Projection, shape: TileShape, when: Condition = None, needs: tuple[str, ...] = ()) -> Variant:
    return Variant((kernel(linear_tile, facts=facts, shape=shape),), when=when, needs=needs)


def leaves_columns_unwritten(step: Step, context: Context, facts: Projection) -> bool:
    """Whether a projection starts a wider result whose columns the following steps do not all write. The remaining
    columns must be zero.
    """
    if "into" in step.inputs or facts.total_width == facts.outputs:
        return False
    index = next(i for i, each in enumerate(context.plan.steps) if each is step)
    ranges = [(facts.offset, facts.offset + facts.outputs)]
    for later in context.plan.steps[index + 1 :]:
        if later.inputs.get("into") != step.outputs["y"]:
            break
        part = context.projection(later, context.activations[0])
        ranges.append((part.offset, part.offset + part.outputs))
    end = 0
    for start, stop in sorted(ranges):
        if start > end:
            return True
        end = max(end, stop)
    return end < facts.total_width


# --- sampling ---


def sample_variants(step: Step, context: Context, numbers: GpuNumbers) -> Sequence[Variant]:
    columns = context.rows_and_columns(step.inputs["logits"])[1]
    plain = Variant((kernel(sample, columns=columns),))
    if columns < MIN_SHARED_COLUMNS:
        return (plain,)
    kernels = (kernel(sample_chunks, columns=columns), kernel(sample_merge, columns=columns))
    shared = Variant(kernels, when=numbers.shared_rows)
    return (shared,) if numbers.shared_rows is None else (shared, plain)


def top_logprobs_variants(step: Step, context: Context) -> Sequence[Variant]:
    columns = context.rows_and_columns(step.inputs["logits"])[1]
    templates = (top_logprobs,) if columns < MIN_SHARED_COLUMNS else (top_chunks, top_merge)
    return (Variant(tuple(kernel(template, columns=columns) for template in templates)),)


# --- ops with one kernel ---


def embed_kernel(step: Step, context: Context, activation: str) -> KernelCall:
    return kernel(
        embed,
        **context.facts(step, embed, activation),
        weight=context.weight_format(step.inputs["table"]),
        into="into" in step.inputs,
        samples="sampled" in step.inputs,
    )


def table_kernel(template: Template, step: Step, context: Context, activation: str) -> KernelCall:  # noqa: ARG001
    return kernel(template, **position_tables(step, context, template))


# --- states ---


def state_variants(step: Step, context: Context, activation: str) -> Sequence[Variant]:
    """The variants of a gated_delta or ssm_scan: row after row for few new rows; chunks for the sequences that have
    more, whatever else is in the batch.
    """
    rows, *chunks = STATES[step.op]
    facts = {template: context.facts(step, template, activation) for template in (rows, *chunks)}
    own = facts[rows]
    if own.get("value_dim", 0) > MAX_OUTPUTS:
        raise UnsupportedModel(
            f"{step.op}: heads of {own['value_dim']} values; kernels of this target normalize {MAX_OUTPUTS} at most"
        )
    plain = Variant((kernel(rows, **own),))
    if outputs_of(own["key_dim" if "key_dim" in own else "state_dim"]) is None:
        return (plain,)
    few = {each: {"few": FEW_STATE_ROWS} if "few" in signature(each).parameters else {} for each in facts}
    calls = tuple(kernel(each, **facts[each], **few[each]) for each in (*chunks, rows))
    return (replace(plain, when=["<", ["sub", "S", "B"], FEW_STATE_ROWS]), Variant(calls), plain)


def convolved_variants(step: Step, context: Context, activation: str) -> Sequence[Variant]:
    """The variants of a convolved_delta: one kernel for a new token of every sequence, if no two heads share a key;
    those of the gated delta rule behind one for the convolution.
    """
    facts = context.facts(step, causal_conv, activation)
    first = with_roles(kernel(causal_conv, **facts, y_in_scratch=True), state="conv")
    reads = {"qkv": f"scratch.{CONVOLVED}", "abz": "x"}
    variants = [
        replace(each, kernels=(first, *(with_roles(call, **reads) for call in each.kernels)))
        for each in state_variants(step, context, activation)
    ]
    own = context.facts(step, convolved_delta, activation)
    if own["heads"] != own["key_heads"]:
        return variants
    return [Variant((kernel(convolved_delta, **own),), when=DECODE), *variants]


# The ops whose one kernel depends on nothing but the facts that they declare. It has the op's name.
TEMPLATES: dict[str, Template] = dict.fromkeys(ELEMENTWISE, elementwise) | {
    template.__name__: template
    for template in (
        fold_rows, place_rows, rope_rows, near_rows, convolve, pool_rows, row_moments, clip_norm, rope,
        take_rows, keep_rows, join_kept, slice_columns, rms_norm, add_lora, adjust_logits, mark_logits, route, combine,
        causal_conv,
    )
}  # fmt: skip
# The kernel that goes row after row, then those of chunks.
DELTA: tuple[Template, ...] = (gated_delta, gated_delta_products, gated_delta_chunks, gated_delta_output)
STATES: dict[str, tuple[Template, ...]] = {
    "gated_delta": DELTA,
    "convolved_delta": DELTA,
    "ssm_scan": (ssm_scan, ssm_scan_products, ssm_scan_chunks),
}
KERNELS: dict[str, Callable[[Step, Context, str], KernelCall]] = {
    "embed": embed_kernel,
    "embed_positions": partial(table_kernel, embed_positions),
    "mix_rows": partial(table_kernel, mix_rows),
}

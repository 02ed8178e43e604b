"""The variants of the attention ops on GPUs: for each step, the kernels that can run it, best first; the last one runs
anywhere.

Targets share them, with different numbers. Each one is correct for each batch that its structural condition
allows, such as S == B, one new token of every sequence; bounds on sizes are preferences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nearfar.compiler.ir.expr import Condition, Expr
from nearfar.compiler.ir.heads import Heads, Preparation, Scores
from nearfar.compiler.ir.plan import Step
from nearfar.compiler.kernels.attention import attention
from nearfar.compiler.kernels.attention_decode import attention_decode, attention_few_rows
from nearfar.compiler.kernels.attention_merge import attention_merge
from nearfar.compiler.kernels.attention_tile import TileOptions, attention_tile
from nearfar.compiler.kernels.cuda import attention_mma, decode_tile
from nearfar.compiler.kernels.cuda.attention_decode_mma import attention_decode_mma
from nearfar.compiler.kernels.decode_range import DecodeOptions
from nearfar.compiler.kernels.prepare_heads import append_kv, rope_append, rope_heads
from nearfar.compiler.kernels.ragged_attention import ragged_attention
from nearfar.compiler.runtime.errors import UnsupportedModel

from .context import Context
from .variant import KernelCall, Variant, for_activations, kernel

# Every sequence has exactly one new token, because each has at least one.
DECODE: Condition = ["==", "S", "B"]
# Up to this number of keys, one workgroup reads all of them, which costs less than parallel ranges and another
# dispatch.
SHORT_CONTEXT = 256
SHORT: Condition = ["<=", "T", SHORT_CONTEXT]
SHORT_DECODE: Condition = ["and", DECODE, SHORT]
# Sequences with at most this many new tokens, which decode or verify drafts, are split into ranges of keys, whatever
# else is in the batch. Longer ones are processed in tiles.
FEW_ROWS = 8
# No sequence has more new tokens than S - B + 1, because each has at least one. These conditions are equalities,
# because a runtime may ignore inequalities: max(S - B, 7) is 7 if S - B < 8.
ONLY_FEW: Condition = ["==", ["max", ["sub", "S", "B"], FEW_ROWS - 1], FEW_ROWS - 1]
ONE_LONG: Condition = ["and", ["==", "B", 1], ["==", ["min", "S", FEW_ROWS + 1], FEW_ROWS + 1]]
# Up to this product of rows and keys, ranges cost more than they gain.
MAX_PLAIN_KEYS = 2048
# The most query heads of a decode workgroup.
MAX_DECODE_HEADS = 8
# The rows of a tile on CUDA's tensor cores. On an H200, tiles of 128 rows took 4 to 53 % longer at every size.
MMA_ROWS = 64
# The threads that a workgroup can have on every target, each of which has one vector of a head in some kernels.
MAX_VECTORS = 256


@dataclass(frozen=True, slots=True)
class AttentionNumbers:
    """The numbers that differ between targets.

    ``splits``: keys of a range of decode attention, the default first. ``decode_threads``: (threads, keys of a tile),
    best first. ``tiles``: those of prefill, best first; the first ``max_tiles`` that fit are offered.
    ``min_tile_rows``: the rows per sequence from which tiles suit heads that cannot be split. ``tensor_core_bytes``:
    the workgroup memory of kernels for CUDA's tensor cores, 0 on targets without them. Decode attention on tensor cores
    is split until it occupies all ``multiprocessors``. A thread of decode attention has one key of a tile, or several
    if these have at most ``max_key_bytes``; beyond about ``max_numbers`` numbers in a thread's registers, results are
    added for each tile if a thread then has at most ``max_each_tile``.

    ``spilling``: beyond about how many numbers compilers spill registers, by the feature that names a GPU's vendor.
    Such devices try sizes with at most ``small_numbers`` first; on others, a tuner may choose them.
    """

    max_shared_bytes: int
    splits: tuple[int, ...]
    decode_threads: tuple[tuple[int, int], ...]
    tiles: tuple[TileOptions, ...]
    max_tiles: int
    min_tile_rows: int
    tensor_core_bytes: int = 0
    multiprocessors: int = 0
    max_key_bytes: int = 1 << 20
    max_numbers: int = 1 << 20
    max_each_tile: int = 1 << 20
    small_numbers: int = 1 << 20
    spilling: Mapping[str, int] = field(default_factory=dict)


def attention_variants(step: Step, context: Context, numbers: AttentionNumbers) -> tuple[Variant, ...]:
    """The variants of an append_kv, attention, rope_heads or ragged_attention, in the order in which runtimes try them.

    Raises UnsupportedModel for heads that no kernel can run.
    """
    return for_activations({each: OPS[step.op](step, context, numbers, each) for each in context.activations})


def append_variants(step: Step, context: Context, numbers: AttentionNumbers, activation: str) -> list[Variant]:  # noqa: ARG001
    return [Variant((kernel(append_kv, heads=known_heads(step, context, activation)),))]


def rope_heads_variants(step: Step, context: Context, numbers: AttentionNumbers, activation: str) -> list[Variant]:  # noqa: ARG001
    heads = known_heads(step, context, activation, 1)
    return [Variant((kernel(rope_heads, heads=heads, **context.facts(step, rope_heads, activation)),))]


def paged_variants(step: Step, context: Context, numbers: AttentionNumbers, activation: str) -> list[Variant]:
    """An attention over pages. Queries that need it are prepared by the kernels of `decode_variants` themselves, and by
    one kernel before those of `stored_variants`.
    """
    heads, facts = known_heads(step, context, activation), context.facts(step, attention_decode, activation)
    preparation, scores = facts["preparation"], facts["scores"]
    if not preparation.prepares and not heads.rotates_keys:
        return stored_variants(heads, scores, numbers, ())
    variants = [] if scores.sinks else decode_variants(heads, preparation, scores, numbers)
    if any(each.when is None for each in variants):
        return variants
    return variants + stored_variants(
        heads, scores, numbers, (kernel(rope_append, heads=heads, preparation=preparation),)
    )


def decode_variants(heads: Heads, preparation: Preparation, scores: Scores, numbers: AttentionNumbers) -> list[Variant]:
    """One new token of every sequence, or sampled rows: one kernel on tensor cores; else one kernel for short contexts,
    ranges of keys and their merge for long ones.
    """
    decoding, short = (DECODE, SHORT_DECODE) if heads.rows == "S" else (None, SHORT)
    if numbers.tensor_core_bytes and decode_tile.supports(heads, preparation):
        tile = decode_tile.decode_tile(heads, numbers.multiprocessors, numbers.tensor_core_bytes)
        if tile is not None:
            facts = {"heads": heads, "preparation": preparation, "scores": scores, "tile": tile}
            return [Variant((kernel(attention_decode_mma, **facts),), when=decoding)]
    reach = None if scores.window is None else scores.window + heads.page_size - 1
    always_short = reach is not None and reach <= SHORT_CONTEXT
    variants: list[Variant] = []
    for split in (None,) if always_short else (None, *numbers.splits):

        def decode(options: DecodeOptions, split: int | None = split) -> Variant:
            facts = {"heads": heads, "preparation": preparation, "scores": scores, "options": options}
            attend = kernel(attention_decode, **facts)
            if split is None:
                return Variant((attend,), when=decoding if always_short else short)
            return Variant((attend, merge_call(heads, scores, split, 1)), when=decoding)

        variants += by_size(heads, split, numbers, decode)
    return variants


def by_size(
    heads: Heads, split: int | None, numbers: AttentionNumbers, variant: Callable[[DecodeOptions], Variant]
) -> list[Variant]:
    """A variant of decode attention in the usual size; and if that spills on the GPUs of some vendors, in the small
    one, before it for them and behind it for the tuners of others. Empty if no size fits.
    """
    usual = decode_options(heads, split, numbers)
    if usual is None:
        return []
    vendors = [vendor for vendor, most in numbers.spilling.items() if usual.numbers(heads) > most]
    # A tuner need not have each size in each split.
    small = small_options(heads, split, numbers) if vendors and split in (None, numbers.splits[0]) else None
    if small is None:
        return [variant(usual)]
    other = variant(small)
    return [*(replace(other, needs=(vendor,)) for vendor in vendors), variant(usual), other]


def merge_call(heads: Heads, scores: Scores, split: int, max_rows: int) -> KernelCall:
    """The kernel that combines the ranges of keys."""
    # A sequence's only new token reaches itself.
    reach = scores.reach and max_rows > 1
    facts = {"window": scores.window, "causal": scores.causal, "sinks": scores.sinks, "reach": reach}
    # It does not read pages.
    return kernel(attention_merge, heads=replace(heads, kv="activation"), split=split, max_rows=max_rows, **facts)


def decode_options(heads: Heads, split: int | None, numbers: AttentionNumbers) -> DecodeOptions | None:
    """The most query heads of a kv head per workgroup that fit, with the first sizes that fit."""
    usual = next(fitting_options(heads, split, numbers), None)
    if usual is None or heads.form is not None or usual.numbers(heads) <= numbers.max_numbers:
        return usual
    each_tile = replace(usual, each_tile=True)
    return each_tile if each_tile.numbers(heads) <= numbers.max_each_tile else usual


def small_options(heads: Heads, split: int | None, numbers: AttentionNumbers) -> DecodeOptions | None:
    """Among the same, the first size that needs few enough registers if results are added for each tile."""
    smaller = (replace(each, each_tile=True) for each in fitting_options(heads, split, numbers))
    return next((each for each in smaller if each.numbers(heads) <= numbers.small_numbers), None)


def fitting_options(heads: Heads, split: int | None, numbers: AttentionNumbers) -> Iterator[DecodeOptions]:
    for num_heads in range(min(heads.group, MAX_DECODE_HEADS), 0, -1):
        for threads, tile in numbers.decode_threads:
            options = DecodeOptions(num_heads, threads, tile, split)
            if tile > threads and options.key_bytes(heads) > numbers.max_key_bytes:
                continue
            if options.supports(heads) and options.shared_bytes(heads) <= numbers.max_shared_bytes:
                yield options


def stored_variants(
    heads: Heads, scores: Scores, numbers: AttentionNumbers, before: tuple[KernelCall, ...]
) -> list[Variant]:
    """Any batch, with all keys and values on their pages: ranges of keys for the sequences that have few new tokens,
    and tiles of rows for the others. ``before``: the kernels that append the new ones and write q to scratch.
    """
    facts = {"heads": heads, "scores": scores, "q_in_scratch": bool(before)}
    plain = Variant((*before, kernel(attention, **facts)))
    # Each sampled row is a sequence of one row.
    sampled = heads.rows != "S"
    max_rows = 1 if sampled else FEW_ROWS
    few = few_row_variants(heads, scores, numbers, max_rows, q_in_scratch=bool(before))
    tiles = [] if sampled else tile_calls(heads, numbers, {**facts, "few": max_rows if few else 0})
    if not few:
        many: Condition = ["<=", ["mul", "B", numbers.min_tile_rows], "S"]
        return [*(Variant((*before, tile), when=both(many, when)) for tile, when in tiles), plain]
    rows: Expr = heads.rows
    little: Condition = ["<=", ["mul", rows, "T"], MAX_PLAIN_KEYS]
    return [
        replace(plain, when=little if sampled else ["and", ["<", ["sub", "S", "B"], FEW_ROWS], little]),
        *(replace(each, kernels=(*before, *each.kernels), when=None if sampled else ONLY_FEW) for each in few),
        *(Variant((*before, tile), when=both(ONE_LONG, when)) for tile, when in tiles),
        *(replace(each, kernels=(*before, tile, *each.kernels), when=when) for tile, when in tiles for each in few),
        plain,
    ]


def both(one: Condition, other: Condition) -> Condition:
    return one if other is None else ["and", one, other]


def few_row_variants(
    heads: Heads, scores: Scores, numbers: AttentionNumbers, max_rows: int, *, q_in_scratch: bool
) -> list[Variant]:
    """The kernels for sequences of at most ``max_rows`` new tokens; none if the heads or their pages do not fit."""
    split = numbers.splits[0]

    def few(options: DecodeOptions) -> Variant:
        facts = {"options": options, "max_rows": max_rows, "q_in_scratch": q_in_scratch}
        attend = kernel(attention_few_rows, heads=heads, scores=scores, **facts)
        return Variant((attend, merge_call(heads, scores, split, max_rows)))

    return by_size(heads, split, numbers, few)


def tile_calls(heads: Heads, numbers: AttentionNumbers, facts: Mapping[str, Any]) -> list[tuple[KernelCall, Condition]]:
    """The kernels that process rows in tiles, best first, and the batches that each one suits."""
    if not numbers.tensor_core_bytes or not attention_mma.supports(heads):
        return [(kernel(attention_tile, options=options, **facts), None) for options in tile_options(heads, numbers)]
    tile = attention_mma.tile_of(heads, MMA_ROWS, numbers.tensor_core_bytes)
    return [] if tile is None else [(kernel(attention_mma.attention_mma, tile=tile, **facts), None)]


def tile_options(heads: Heads, numbers: AttentionNumbers) -> list[TileOptions]:
    """The first sizes that fit."""
    return [
        tile for tile in numbers.tiles if tile.supports(heads) and tile.shared_bytes(heads) <= numbers.max_shared_bytes
    ][: numbers.max_tiles]


def ragged_variants(
    step: Step, context: Context, numbers: AttentionNumbers, activation: str, *, y_in_scratch: bool = False
) -> list[Variant]:
    """A ragged_attention: one tile of rows per workgroup. ``y_in_scratch``: for a projection in the same step."""
    heads = known_heads(step, context, activation, 1)
    tiles = tile_options(heads, numbers)
    if not tiles:
        raise UnsupportedModel(
            f"{step.op}: head_dim is {heads.head_dim}; a tile of such heads needs more than the "
            f"{numbers.max_shared_bytes >> 10} KiB of workgroup memory that this target has"
        )
    facts: dict[str, Any] = {"heads": heads, "options": tiles[0], **({"y_in_scratch": True} if y_in_scratch else {})}
    return [Variant((kernel(ragged_attention, **facts, **context.facts(step, ragged_attention, activation)),))]


def known_heads(step: Step, context: Context, activation: str, page_size: int | None = None) -> Heads:
    """The heads of a step. Raises UnsupportedModel for heads that no kernel can run."""
    heads = context.heads_of(step, activation, page_size)
    if heads.head_dim % 2:
        raise UnsupportedModel(
            f"{step.op}: head_dim is {heads.head_dim}; kernels for GPUs read pairs of elements and need an even number"
        )
    if heads.vectors > MAX_VECTORS:
        most = MAX_VECTORS * heads.lanes
        raise UnsupportedModel(f"{step.op}: head_dim is {heads.head_dim}; a workgroup holds {most} elements at most")
    return heads


OPS: dict[str, Callable[[Step, Context, AttentionNumbers, str], list[Variant]]] = {
    "append_kv": append_variants,
    "attention": paged_variants,
    "rope_heads": rope_heads_variants,
    "ragged_attention": ragged_variants,
}

"""The variants of the attention ops on GPUs: for each step, the kernels that can run it, best first; the last row runs
anywhere.

Targets share the rows, with different numbers. Every row is correct for each batch that its structural condition
allows, such as S == B, one new token of every sequence; bounds on sizes are preferences.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nearfar.compiler.errors import UnsupportedModel
from nearfar.compiler.ir.expr import Condition
from nearfar.compiler.ir.plan import Step
from nearfar.compiler.kernels.append_kv import append_kv
from nearfar.compiler.kernels.attention import attention
from nearfar.compiler.kernels.attention_decode import attention_decode
from nearfar.compiler.kernels.attention_merge import attention_merge
from nearfar.compiler.kernels.attention_tile import TileOptions, attention_tile
from nearfar.compiler.kernels.cuda import attention_mma
from nearfar.compiler.kernels.decode_range import DecodeOptions
from nearfar.compiler.kernels.heads import Heads, Preparation, Scores
from nearfar.compiler.kernels.page_rows import row_threads
from nearfar.compiler.kernels.rope import rope
from nearfar.compiler.kernels.rope_append import rope_append

from .context import Context, attr, sizes
from .variant import KernelCall, Variant, for_activations, kernel

# Every sequence has exactly one new token, because each has at least one.
DECODE: Condition = ["==", "S", "B"]
# Up to this number of keys, one workgroup reads all of them, which costs less than parallel ranges and another
# dispatch.
SHORT_CONTEXT = 256
SHORT_DECODE: Condition = ["and", DECODE, ["<=", "T", SHORT_CONTEXT]]
# The most query heads of a decode workgroup.
MAX_DECODE_HEADS = 8
# The threads that a workgroup can have on every target.
MAX_THREADS = 256


@dataclass(frozen=True, slots=True)
class AttentionNumbers:
    """The numbers that differ between targets.

    ``splits``: keys of a range of decode attention, the default first. ``decode_threads``: (threads, keys of a tile),
    best first. ``tiles``: (rows, keys) of prefill tiles, best first; the first ``max_tiles`` that fit are offered to
    batches of at least ``min_tile_rows`` rows per sequence. ``tensor_cores``: whether kernels for CUDA's tensor cores
    may run.
    """

    max_shared_bytes: int
    splits: tuple[int, ...]
    decode_threads: tuple[tuple[int, int], ...]
    tiles: tuple[tuple[int, int], ...]
    max_tiles: int
    min_tile_rows: int
    tensor_cores: bool = False


def attention_rows(step: Step, context: Context, numbers: AttentionNumbers) -> tuple[Variant, ...]:
    """The rows of a rope, append_kv, rope_append, attention or rope_attention, in the order in which a runtime tries
    them.

    Raises UnsupportedModel for heads that no kernel can run.
    """
    return for_activations(
        {activation: rows_of(step, context, numbers, activation) for activation in context.activations}
    )


def rows_of(step: Step, context: Context, numbers: AttentionNumbers, activation: str) -> list[Variant]:
    """The rows for activations of one dtype."""
    if step.op == "rope":
        return [Variant((rope_call(step, context, activation),))]
    heads = context.heads_of(step, activation)
    check_heads(step, heads)
    if step.op == "append_kv":
        return [Variant((kernel(append_kv, heads=replace(heads, num_heads=heads.num_kv_heads)),))]
    if step.op == "attention":
        return prefill_rows(heads, context.scores(step), numbers, ())
    preparation = context.preparation(step)
    append = kernel(rope_append, heads=heads, preparation=preparation, q_in_scratch=step.op == "rope_attention")
    if step.op == "rope_append":
        return [Variant((append,))]
    assert step.op == "rope_attention", step.op
    scores = context.scores(step)
    return [
        *decode_rows(heads, preparation, scores, numbers),
        *prefill_rows(heads, scores, numbers, (append,)),
    ]


def decode_rows(heads: Heads, preparation: Preparation, scores: Scores, numbers: AttentionNumbers) -> list[Variant]:
    """One new token of every sequence: one kernel for short contexts, ranges of keys and their merge for long ones."""
    # A single new token is the last of its sequence, so it sees the same keys whether attention is causal or not.
    scores = replace(scores, causal=True)
    reach = None if scores.window is None else scores.window + heads.page_size - 1
    always_short = reach is not None and reach <= SHORT_CONTEXT
    rows = []
    for split in (None,) if always_short else (None, *numbers.splits):
        options = decode_options(heads, split, numbers)
        if options is None:
            continue
        decode = kernel(attention_decode, heads=heads, preparation=preparation, scores=scores, options=options)
        if split is None:
            rows.append(Variant((decode,), when=DECODE if always_short else SHORT_DECODE))
        else:
            merge = kernel(attention_merge, heads=replace(heads, kv="activation"), window=scores.window, split=split)
            rows.append(Variant((decode, merge), when=DECODE))
    return rows


def decode_options(heads: Heads, split: int | None, numbers: AttentionNumbers) -> DecodeOptions | None:
    """The most query heads of a kv head per workgroup that fit, with the first sizes that fit."""
    for num_heads in range(min(heads.group, MAX_DECODE_HEADS), 0, -1):
        for threads, tile in numbers.decode_threads:
            options = DecodeOptions(num_heads, threads, tile, split)
            if options.supports(heads) and options.shared_bytes(heads) <= numbers.max_shared_bytes:
                return options
    return None


def prefill_rows(
    heads: Heads, scores: Scores, numbers: AttentionNumbers, before: tuple[KernelCall, ...]
) -> list[Variant]:
    """Any batch: tiles of rows if sequences have many, else row by row. ``before``: the kernels that write q to
    scratch.
    """
    facts = {"heads": heads, "scores": scores, "q_in_scratch": bool(before)}
    if heads.rows != "S":
        # Every row is a sequence, so no two rows share a tile.
        return [Variant((*before, kernel(attention, **facts)))]
    many: Condition = ["<=", ["mul", "B", numbers.min_tile_rows], "S"]
    if numbers.tensor_cores and attention_mma.supports(heads):
        tiles = [kernel(attention_mma.attention_mma, **facts)]
    else:
        tiles = [kernel(attention_tile, options=options, **facts) for options in tile_options(heads, numbers)]
    return [
        *(Variant((*before, call), when=many) for call in tiles),
        Variant((*before, kernel(attention, **facts))),
    ]


def tile_options(heads: Heads, numbers: AttentionNumbers) -> list[TileOptions]:
    """The first sizes that fit."""
    tiles = [TileOptions(rows, keys) for rows, keys in numbers.tiles]
    fitting = [tile for tile in tiles if tile.supports(heads) and tile.shared_bytes(heads) <= numbers.max_shared_bytes]
    return fitting[: numbers.max_tiles]


def rope_call(step: Step, context: Context, activation: str) -> KernelCall:
    rows, columns = context.rows_and_columns(step.inputs["x"])
    positions, half = sizes(context.plan.shape_of(step.inputs["table"])[:2])
    return kernel(
        rope,
        rows=rows,
        columns=columns,
        head_dim=attr(step, "head_dim"),
        preparation=Preparation(positions, 2 * half, attr(step, "eps")),
        norm_width=context.sizes(step.inputs["norm"])[0] if "norm" in step.inputs else 0,
        x_dtype=context.dtype_of(step.inputs["x"], activation),
        y_dtype=context.dtype_of(step.outputs["y"], activation),
    )


def check_heads(step: Step, heads: Heads) -> None:
    """Raises UnsupportedModel for heads that no kernel can run."""
    if heads.head_dim % 2:
        raise UnsupportedModel(
            f"{step.op}: head_dim is {heads.head_dim}; kernels for GPUs read pairs of elements and need an even number"
        )
    if row_threads(heads) > MAX_THREADS:
        most = MAX_THREADS * heads.lanes
        raise UnsupportedModel(f"{step.op}: head_dim is {heads.head_dim}; a workgroup holds {most} elements at most")

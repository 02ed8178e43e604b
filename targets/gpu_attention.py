"""The rows of attention on GPUs: for one step, the kernels that can run it, best first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nearfar.compiler.errors import UnsupportedModel
from nearfar.compiler.ir.expr import Condition
from nearfar.compiler.ir.plan import Step
from nearfar.compiler.kernels.attention import attention
from nearfar.compiler.kernels.attention_decode import DecodeOptions, attention_decode
from nearfar.compiler.kernels.attention_merge import attention_merge
from nearfar.compiler.kernels.attention_tile import TileOptions, attention_tile
from nearfar.compiler.kernels.cuda import attention_mma
from nearfar.compiler.kernels.pages import Heads
from nearfar.compiler.kernels.rope_append import rope_append

from .context import Context
from .variant import Variant, kernel

# One new token of every sequence.
DECODE: Condition = ["==", "S", "B"]
# Up to this many keys, one workgroup a kv head takes less time than ranges in parallel and one dispatch more.
SHORT_DECODE: Condition = ["and", DECODE, ["<=", "T", 256]]


@dataclass(frozen=True, slots=True)
class AttentionNumbers:
    """``splits``: keys of a range of decode attention, the default first. ``decode_threads``: (threads, keys of a tile), best first.

    ``tiles``: (rows, keys) of prefill tiles, best first, of which ``max_tiles`` that fit are offered to batches of ``min_tile_rows`` rows a
    sequence. ``tensor_cores``: whether kernels for CUDA's tensor cores may run.
    """

    max_shared_bytes: int
    splits: tuple[int, ...]
    decode_threads: tuple[tuple[int, int], ...]
    tiles: tuple[tuple[int, int], ...]
    max_tiles: int
    min_tile_rows: int
    tensor_cores: bool = False


def attention_rows(step: Step, context: Context, numbers: AttentionNumbers) -> tuple[Variant, ...]:
    """The rows of a rope_attention. Raises UnsupportedModel for another op."""
    if step.op != "rope_attention":
        raise UnsupportedModel(f"{step.op} has no kernel")
    return tuple(row for facts in context.heads(step) for row in (*decode_rows(facts, numbers), *prefill_rows(facts, numbers)))


def decode_rows(facts: Heads, numbers: AttentionNumbers) -> Iterable[Variant]:
    """One new token of every sequence: one kernel for short contexts, ranges of keys and their merge for long ones."""
    for split, when in ((None, SHORT_DECODE), *((split, DECODE) for split in numbers.splits)):
        options = decode_options(facts, split, numbers)
        if options is not None:
            first = kernel(attention_decode, facts=facts, options=options)
            merge = () if split is None else (kernel(attention_merge, facts=facts, split=split),)
            yield Variant((first, *merge), facts.activation, when)


def decode_options(facts: Heads, split: int | None, numbers: AttentionNumbers) -> DecodeOptions | None:
    """As many of a kv head's query heads a workgroup as fit, up to eight."""
    for heads in range(min(facts.group, 8), 0, -1):
        for threads, tile in numbers.decode_threads:
            options = DecodeOptions(heads, threads, tile, split)
            divides = facts.group % heads == 0 and (split or tile) % tile == 0
            if divides and options.parts(facts) <= threads and options.shared_bytes(facts) <= numbers.max_shared_bytes:
                return options
    return None


def prefill_rows(facts: Heads, numbers: AttentionNumbers) -> Iterable[Variant]:
    """Any batch: tiles of rows if sequences have many, otherwise row by row."""
    append = kernel(rope_append, heads=facts)
    many: Condition = ["<=", ["mul", "B", numbers.min_tile_rows], "S"]
    if numbers.tensor_cores and attention_mma.supports(facts):
        yield Variant((append, kernel(attention_mma.attention_mma, facts=facts)), facts.activation, many)
    else:
        tiles = [TileOptions(rows, keys) for rows, keys in numbers.tiles]
        fitting = [tile for tile in tiles if facts.vectors <= tile.threads and tile.shared_bytes(facts) <= numbers.max_shared_bytes]
        for options in fitting[: numbers.max_tiles]:
            yield Variant((append, kernel(attention_tile, facts=facts, options=options)), facts.activation, many)
    yield Variant((append, kernel(attention, heads=facts)), facts.activation)

"""attention for batches in which every sequence has one new token, or every row is a sequence: norm, rotation, append
and attention in one kernel. Row s belongs to sequence s.

One workgroup: the query heads of one kv head (a part of them if they are more than eight) of one sequence, so that each
key and value is loaded once for all of them; with ``split``, a range of ``split`` keys, whose largest score, sum and
weighted values are written to scratch for `attention_merge`. Ranges start at the first page that the window reaches.
The workgroup whose range has the new token writes its key and value to the page and reads them from its own memory.
Keys are processed in tiles with a running softmax (Milakov & Gimelshein 2018; split: Dao et al. 2023, Flash-Decoding).
Sums are float32.
One thread: all elements of every nth key of a tile, with the scores and weights of all heads, so that threads need not
combine scores and a query vector is loaded once for several keys; then a block of 16 bytes, or a part of one, of two or
four consecutive values at a time.
Needs: S == B, or sampled rows; ``tile`` a multiple of the page and of the threads, ``split`` of the tile.
Measured on lavapipe (a CPU adapter), one layer of 14 query heads and 2 kv heads of 64, 8,192 keys in ranges of 256: 5
ms of one core, in float16 and in 8-bit integers; 26 ms before, when several threads shared a key.
"""

from __future__ import annotations

from ..ir.heads import Heads, Preparation, Scores
from .builder import Kernel, KernelBuilder
from .decode_new_token import NewToken
from .decode_queries import StoredRange
from .decode_range import DecodeOptions, NewTokenRange
from .decode_tiles import CachedTiles


def attention_decode(
    name: str, *, heads: Heads, preparation: Preparation, scores: Scores, options: DecodeOptions
) -> Kernel:
    """``scores`` has no sinks. A single new token sees the same keys whether attention is causal or not."""
    assert options.supports(heads), (heads, options)
    assert not scores.sinks, scores
    kernel = KernelBuilder(name, scalars=("T", heads.sequences) if options.split else (heads.sequences,))
    work = NewTokenRange(kernel, heads, preparation, scores.window, options)
    new = NewToken(work, scores)
    cached = CachedTiles(work, new.rows, scores, new if preparation.appends else None)
    # Workgroups whose range lies behind the sequence end at once.
    with kernel.when(work.count > 0 if options.split else True):
        new.load_heads()
        cached.clear()
        kernel.barrier()
        new.rotate()
        if preparation.appends:
            new.append()
            new.score()
        cached.attend()
    return kernel.finish()


def attention_few_rows(
    name: str, *, heads: Heads, scores: Scores, options: DecodeOptions, max_rows: int, q_in_scratch: bool
) -> Kernel:
    """Attention over pages for the sequences of a batch that have few new tokens: decoding, and speculative drafts,
    beside prompts in the same batch. An earlier kernel has appended all new keys and values.

    As in a split attention_decode, but for the sequence's new tokens one after the other. Workgroups of sequences with
    more new tokens than ``max_rows`` end at once: `attention_tile` and its like process these.

    ``scores.sinks`` does not matter here: `attention_merge` adds the sinks. ``q_in_scratch``: an earlier kernel, such
    as rope_append, wrote q to scratch; else q is an input of the step.
    """
    assert options.supports(heads), (heads, options)
    kernel = KernelBuilder(name, scalars=("T", heads.sequences))
    work = StoredRange(kernel, heads, scores, options, max_rows, q_in_scratch=q_in_scratch)
    cached = CachedTiles(work, work.queries, scores)
    with work.rows():
        # All threads are done with the row before.
        kernel.barrier()
        work.load_queries()
        cached.clear()
        kernel.barrier()
        cached.attend()
    return kernel.finish()

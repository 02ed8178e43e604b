"""attention over pages for the sequences of a batch that have few new tokens: decoding, and speculative drafts, beside
prompts in the same batch. An earlier kernel has appended all new keys and values.

One workgroup: the query heads of one kv head (a part of them if they are more than eight) of one sequence, and a range
of keys, as in a split attention_decode; the sequence's new tokens one after the other. It writes the largest score, the
sum and the weighted values of its range to scratch for `attention_merge`. Workgroups of sequences with more new tokens
than ``max_rows`` end at once: `attention_tile` and its like process these.
One thread: as in attention_decode.
Needs: ``tile`` a multiple of the page and of the threads, ``split`` of the tile.
"""

from __future__ import annotations

from ..ir.heads import Heads, Scores
from .builder import Kernel, KernelBuilder
from .decode_queries import StoredRange
from .decode_range import DecodeOptions
from .decode_tiles import CachedTiles


def attention_few_rows(
    name: str, *, heads: Heads, scores: Scores, options: DecodeOptions, max_rows: int, q_in_scratch: bool
) -> Kernel:
    """``scores.sinks`` does not matter here: `attention_merge` adds the sinks. ``q_in_scratch``: an earlier kernel,
    such as rope_append, wrote q to scratch; else q is an input of the step.
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
        cached.allocate()
        with cached.tiles():
            cached.score_keys()
            cached.update_softmax()
            cached.add_values()
        cached.store()
    return kernel.finish()

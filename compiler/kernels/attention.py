"""attention over pages for any batch: the plain kernel. It supports every even head_dim and all options of `Scores`.

One workgroup: one query head of one new token; keys in tiles of 64 from the first to the last visible one, with a
running softmax (Milakov & Gimelshein 2018), all sums float32.
One thread: the score of one key of a tile, then one or more vectors of the weighted values.
"""

from __future__ import annotations

from ..ir.heads import Heads, Scores
from .batch_rows import BatchRows
from .builder import Kernel, KernelBuilder, Scalar, cast, maximum, minimum
from .new_heads import query_rows
from .pages import Pages
from .scores import LOWEST, before_keys, capped, scaled, weight
from .vectors import splat, sum_lanes

TILE = 64


def attention(name: str, *, heads: Heads, scores: Scores, q_in_scratch: bool) -> Kernel:
    """``q_in_scratch``: an earlier kernel, such as rope_append, wrote q to scratch; else q is an input of the step."""
    kernel = KernelBuilder(name, scalars=(heads.sequences,))
    phases = PlainAttention(kernel, heads, scores, q_in_scratch=q_in_scratch)
    phases.load_query()
    with kernel.loop("tile", phases.tiles) as tile:
        phases.score_key(tile)
        phases.update_softmax()
        phases.add_values(tile)
    phases.store()
    return kernel.finish()


class PlainAttention:
    """The arrays of one workgroup, and the phases of its work."""

    def __init__(self, kernel: KernelBuilder, heads: Heads, scores: Scores, *, q_in_scratch: bool) -> None:
        self.kernel, self.heads, self.scores = kernel, heads, scores
        self.q = query_rows(kernel, heads, scratch=q_in_scratch)
        self.pages = Pages(kernel, heads, write=False)
        self.rows = BatchRows(kernel, heads, scores)
        self.sinks = kernel.buffer("sinks", (heads.num_heads,), "float32") if scores.sinks else None
        self.y = kernel.buffer("y", (heads.rows, heads.num_heads, heads.vectors), heads.stored_dtype, write=True)
        self.head, self.row = kernel.grid(heads.num_heads, heads.rows)
        self.thread = kernel.threads(TILE)
        self.kv_head = self.head // heads.group
        self.query = kernel.shared("query", (heads.vectors,), heads.vector_dtype)
        self.tile_scores = kernel.shared("scores", (TILE,), "float32")
        self.weights = kernel.shared("weights", (TILE,), "float32")
        # The vectors of the result that a thread sums: thread, thread + TILE, and so on.
        self.slots = -(-heads.vectors // TILE)

    def load_query(self) -> None:
        """Scale the query, find the row's keys, and start the softmax."""
        kernel, heads = self.kernel, self.heads
        for i in range(self.slots):
            with kernel.when(self.thread + i * TILE < heads.vectors):
                vector = cast(self.q[self.row, self.head, self.thread + i * TILE], heads.vector_dtype)
                self.query[self.thread + i * TILE] = scaled(heads, self.scores, vector)
        self.first_page, last = self.rows.sequence_of(self.row)
        self.first_key, self.end_key = self.rows.range_of(self.rows.positions[self.row], last)
        self.largest = kernel.local("largest", 1, "float32")
        self.total = kernel.local("total", 1, "float32")
        self.largest[0], self.total[0] = before_keys(self.sinks, self.head)
        self.previous = kernel.local("previous", 1, "float32")
        self.score = kernel.local("score", 1, heads.vector_dtype)
        self.result = kernel.local("result", self.slots, heads.vector_dtype, fill=0)

    @property
    def tiles(self) -> Scalar:
        return (self.end_key - self.first_key + TILE - 1) // TILE

    def score_key(self, tile: Scalar) -> None:
        """Score one key per thread."""
        kernel, heads, thread = self.kernel, self.heads, self.thread
        key = kernel.let("key", self.first_key + tile * TILE + thread)
        kernel.barrier()
        self.tile_scores[thread] = LOWEST
        with kernel.when(key < self.end_key):
            page = kernel.let("page", self.rows.page_of(self.first_page, key))
            self.score[0] = 0
            with kernel.loop("i", heads.vectors) as i:
                self.score[0] = self.score[0] + self.query[i] * self.pages.load(
                    page, 0, self.kv_head, key % heads.page_size, i
                )
            self.tile_scores[thread] = capped(kernel, self.scores, sum_lanes(self.score[0], heads.lanes))
        kernel.barrier()

    def update_softmax(self) -> None:
        """Turn the tile's scores into weights, and scale the sums so far to the largest score."""
        kernel, largest = self.kernel, self.largest
        self.previous[0] = largest[0]
        with kernel.loop("other_key", TILE) as other_key:
            largest[0] = maximum(largest[0], self.tile_scores[other_key])
        self.weights[self.thread] = weight(self.tile_scores[self.thread], largest[0])
        kernel.barrier()
        correction = kernel.let("correction", weight(self.previous[0], largest[0]))
        self.total[0] = self.total[0] * correction
        for i in range(self.slots):
            self.result[i] = self.result[i] * splat(correction, self.heads.lanes)

    def add_values(self, tile: Scalar) -> None:
        """Add all values of the tile; each thread adds one or more vectors."""
        kernel, heads = self.kernel, self.heads
        with kernel.loop("j", minimum(TILE, self.end_key - self.first_key - tile * TILE)) as j:
            key = self.first_key + tile * TILE + j
            page = kernel.let("page", self.rows.page_of(self.first_page, key))
            self.total[0] = self.total[0] + self.weights[j]
            for i in range(self.slots):
                with kernel.when(self.thread + i * TILE < heads.vectors):
                    value = self.pages.load(page, 1, self.kv_head, key % heads.page_size, self.thread + i * TILE)
                    self.result[i] = self.result[i] + splat(self.weights[j], heads.lanes) * value

    def store(self) -> None:
        for i in range(self.slots):
            with self.kernel.when(self.thread + i * TILE < self.heads.vectors):
                mean = self.result[i] / splat(self.total[0], self.heads.lanes)
                self.y[self.row, self.head, self.thread + i * TILE] = cast(mean, self.heads.stored_dtype)

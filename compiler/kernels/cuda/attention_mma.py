"""attention over pages for many new tokens of a sequence on tensor cores: prefill.

One workgroup: one query head of 64 new tokens; keys in tiles of 64 from the first to the last that any of those tokens
sees, with a running softmax (Milakov & Gimelshein 2018; Dao 2023, FlashAttention-2). If the rows belong to several
sequences, it processes these in turn and masks the other rows.
One warp: 16 rows; their queries, scores and results stay in registers, as tensor cores spread them over threads. Keys
are loaded into shared memory while the previous values are used, and values while scores are computed. Scores, sums and
results are float32; queries and weights are rounded to the activations' 16 bits.
Needs: sm_80; 16-bit activations; heads of a multiple of 32 elements, 128 at most; ascending positions within a
sequence.
"""

from __future__ import annotations

import math

from ..batch_rows import BatchRows, SequenceRows
from ..builder import (
    Kernel,
    KernelBuilder,
    Scalar,
    address_of,
    all_of,
    cast,
    exp2,
    lane_of,
    maximum,
    minimum,
    number,
    select,
    vector,
)
from ..heads import Heads, Scores
from ..new_heads import query_rows
from ..pages import Pages
from ..scores import LOWEST, capped, first_key, last_key
from .functions import SHORT, copy_16_bytes, load_transposed, multiply_tiles, pair, quad_max, quad_sum, wait_for_copies

ROWS = 64
KEYS = 64
WARPS = ROWS // 16
THREADS = 32 * WARPS
# Padding between rows in shared memory, in units of 16 bytes: keys are read by two rows of four threads at a time,
# values by eight rows.
KEY_PADDING = 4
VALUE_PADDING = 1


def supports(heads: Heads) -> bool:
    return heads.activation in SHORT and heads.head_dim % 32 == 0 and heads.head_dim <= 128


def attention_mma(name: str, *, heads: Heads, scores: Scores, q_in_scratch: bool) -> Kernel:
    """``q_in_scratch``: an earlier kernel, such as rope_append, wrote q to scratch; else q is an input of the step."""
    assert supports(heads), heads
    kernel = KernelBuilder(name, scalars=("B",))
    phases = MmaAttention(kernel, heads, scores, q_in_scratch=q_in_scratch)
    phases.load_queries()
    with phases.batch.sequences(phases.first_row, phases.end_row) as own:
        phases.find_keys(own)
        phases.tiles.start(0, own.first_page, own.first_key, phases.length)
        with kernel.loop("tile", phases.count) as tile:
            start = kernel.let("tile_start", own.first_key + tile * KEYS)
            wait_for_copies()
            # The keys have arrived, and no thread still reads the values before.
            kernel.barrier()
            phases.tiles.start(1, own.first_page, start, phases.length)
            phases.multiply_keys()
            phases.update_softmax(start)
            wait_for_copies()
            kernel.barrier()
            with kernel.when(tile + 1 < phases.count):
                phases.tiles.start(0, own.first_page, start + KEYS, phases.length)
            phases.add_values()
    phases.store()
    return kernel.finish()


class Tiles:
    """Keys and values of KEYS tokens in shared memory, as 16-bit floats; zeros beyond the last key.

    The argument "kv" is read in pieces of 16 bytes, or dequantized.
    """

    def __init__(self, kernel: KernelBuilder, heads: Heads, batch: BatchRows) -> None:
        self._kernel, self._heads, self._batch = kernel, heads, batch
        self._octets = heads.head_dim // 8
        self._pages = Pages(kernel, heads, write=False) if heads.kv == "q8" else None
        if self._pages is None:
            self._kv = kernel.buffer("kv", ("P", 2, heads.num_kv_heads, heads.page_size, self._octets), "uint32x4")

    def allocate(self, thread: Scalar, kv_head: Scalar) -> None:
        self._thread, self._kv_head = thread, kv_head
        self.keys = self._kernel.shared("key_tile", (KEYS, self._octets + KEY_PADDING), "uint32x4")
        self.values = self._kernel.shared("value_tile", (KEYS, self._octets + VALUE_PADDING), "uint32x4")

    def start(self, plane: int, first_page: Scalar, start_key: Scalar | int, length: Scalar) -> None:
        """Start to fill the tile of keys (plane 0) or values (plane 1), which holds behind the next wait for copies and
        barrier.
        """
        kernel, page_size, target = self._kernel, self._heads.page_size, (self.keys, self.values)[plane]
        for start in range(0, KEYS * self._octets, THREADS):
            item = kernel.let("item", self._thread + start)
            row, octet = kernel.let("row", item // self._octets), kernel.let("octet", item % self._octets)
            key = kernel.let("key", minimum(start_key + row, length - 1))
            page = kernel.let("page", self._batch.page_of(first_page, key))
            present = start_key + row < length
            if self._pages is None:
                source = address_of(self._kv, page, plane, self._kv_head, key % page_size, octet)
                copy_16_bytes(address_of(target, row, octet), source, select(present, 1, 0))
                continue
            quads = [
                kernel.let("quad", self._pages.load(page, plane, self._kv_head, key % page_size, octet * 2 + half))
                for half in range(2)
            ]
            words = [
                pair(self._heads.activation, lane_of(quad, low), lane_of(quad, low + 1))
                for quad in quads
                for low in (0, 2)
            ]
            target[row, octet] = select(present, vector(*words), number(0, "uint32x4"))


class MmaAttention:
    """The registers of a thread, which has parts of two rows of the tile, eight apart, and the phases of its work."""

    def __init__(self, kernel: KernelBuilder, heads: Heads, scores: Scores, *, q_in_scratch: bool) -> None:
        self.kernel, self.heads, self.facts = kernel, heads, scores
        self.q = query_rows(kernel, heads, scratch=q_in_scratch)
        self.batch = BatchRows(kernel, heads, scores)
        self.tiles = Tiles(kernel, heads, self.batch)
        self.sinks = kernel.buffer("sinks", (heads.num_heads,), "float32") if scores.sinks else None
        self.y = kernel.buffer("y", ("S", heads.num_heads, heads.head_dim // 2), f"{heads.activation}x2", write=True)

        self.head, group_y = kernel.grid(heads.num_heads, ["ceildiv", "S", ROWS])
        thread = kernel.threads(THREADS)
        self.tiles.allocate(thread, self.head // heads.group)
        self.lane, warp = kernel.let("lane", thread % 32), kernel.let("warp", thread // 32)
        self.member, self.quarter = kernel.let("member", self.lane // 4), kernel.let("quarter", self.lane % 4)
        self.first_row = kernel.let("first_row", group_y * ROWS)
        self.end_row = kernel.let("end_row", minimum(self.first_row + ROWS, kernel.size("S")))
        self.rows = [kernel.let("row", warp * 16 + self.member + below * 8) for below in range(2)]
        # Weights are powers of two, whose exponent takes the scores' scale with it, unless a soft-cap needs the scores
        # themselves.
        self.scale = scores.scale if scores.softcap is None else 1.0
        self.exponent_scale = number(math.log2(math.e) * self.scale, "float32")

    def load_queries(self) -> None:
        """Read the queries as tensor cores take them, and start the softmax."""
        kernel, head_dim = self.kernel, self.heads.head_dim
        self.queries = kernel.local("queries", head_dim // 32 * 8, "uint32")
        for block in range(head_dim // 32):
            for below, row in enumerate(self.rows):
                for step in range(2):
                    row_index = minimum(self.first_row + row, self.end_row - 1)
                    stored = self.q[row_index, self.head, block * 8 + self.quarter * 2 + step]
                    quad = kernel.let("quad", cast(stored, self.heads.vector_dtype))
                    for half in range(2):
                        words = pair(self.heads.activation, lane_of(quad, half * 2), lane_of(quad, half * 2 + 1))
                        self.queries[block * 8 + step * 4 + half * 2 + below] = words
        self.largest = kernel.local("largest", 2, "float32")
        self.total = kernel.local("total", 2, "float32")
        for below in range(2):
            # A sink is a key without a value; the sums of a row are spread over four threads.
            self.largest[below] = (
                LOWEST if self.sinks is None else self.sinks[self.head] * number(1 / self.scale, "float32")
            )
            self.total[below] = (
                0 if self.sinks is None else select(self.quarter == 0, number(1, "float32"), number(0, "float32"))
            )
        self.best, self.correction = kernel.local("best", 2, "float32"), kernel.local("correction", 2, "float32")
        self.first_key = None if self.facts.window is None else kernel.local("first_key_of_row", 2, "int32")
        self.last_key = kernel.local("last_key_of_row", 2, "int32")
        self.scores = kernel.local("scores", KEYS // 8 * 4, "float32")
        self.weights = kernel.local("weights", KEYS // 16 * 4, "uint32")
        self.b = kernel.local("b", 4, "uint32")
        self.loaded = kernel.local("loaded", 1, "uint32x4")
        self.result = kernel.local("result", head_dim // 8 * 4, "float32", fill=0)

    def find_keys(self, own: SequenceRows) -> None:
        """The keys that each of the thread's rows sees, and how many tiles there are."""
        kernel = self.kernel
        # A row of another sequence sees no key. Its weights are 0, or become 0 when its own sequence's turn comes.
        for below, row in enumerate(self.rows):
            is_own = all_of(row >= own.start, row < own.end)
            position = self.batch.positions[self.first_row + minimum(row, own.end - 1)]
            self.last_key[below] = select(is_own, last_key(self.facts, position, own.last), -1)
            if self.first_key is not None:
                self.first_key[below] = first_key(self.facts, position)
        self.length = kernel.let("length", own.last_key + 1)
        self.count = kernel.let("count", (self.length - own.first_key + KEYS - 1) // KEYS)

    def multiply_keys(self) -> None:
        """The dot products of queries and keys."""
        for j in range(KEYS // 8):
            for i in range(4):
                self.scores[j * 4 + i] = 0
            for block in range(self.heads.head_dim // 32):
                self.loaded[0] = self.tiles.keys[j * 8 + self.member, block * 4 + self.quarter]
                for word in range(4):
                    self.b[word] = lane_of(self.loaded[0], word)
                for step in range(2):
                    query = address_of(self.queries, block * 8 + step * 4)
                    multiply_tiles(
                        self.heads.activation, address_of(self.scores, j * 4), query, address_of(self.b, step * 2)
                    )

    def update_softmax(self, start_key: Scalar) -> None:
        """Turn scores into weights, and scale what has been added up to the largest score."""
        for below in range(2):
            self.best[below] = LOWEST
        score_indices = [(j, below, right) for j in range(KEYS // 8) for below in range(2) for right in range(2)]
        for j, below, right in score_indices:
            score_index = j * 4 + below * 2 + right
            self._mask(score_index, start_key + (j * 8 + right) + self.quarter * 2, below)
            self.best[below] = maximum(self.best[below], self.scores[score_index])
        for below in range(2):
            self.best[below] = quad_max(self.best[below])
            self.best[below] = maximum(self.best[below], self.largest[below])
            self.correction[below] = self._weight(self.largest[below], self.best[below])
            self.largest[below] = self.best[below]
            self.total[below] = self.total[below] * self.correction[below]
        for j, below, right in score_indices:
            score_index = j * 4 + below * 2 + right
            self.scores[score_index] = self._weight(self.scores[score_index], self.largest[below])
            self.total[below] = self.total[below] + self.scores[score_index]
        # Two tiles of eight keys, as tensor cores return them, are one tile of sixteen, as they take them.
        for j in range(KEYS // 8):
            for below in range(2):
                score_index = j * 4 + below * 2
                two = pair(self.heads.activation, self.scores[score_index], self.scores[score_index + 1])
                self.weights[j // 2 * 4 + j % 2 * 2 + below] = two
        for n in range(self.heads.head_dim // 8):
            for i in range(4):
                self.result[n * 4 + i] = self.result[n * 4 + i] * self.correction[i // 2]

    def add_values(self) -> None:
        for k in range(KEYS // 16):
            for pair_of_tiles in range(self.heads.head_dim // 16):
                row = k * 16 + self.lane % 16
                score_index = address_of(self.tiles.values, row, pair_of_tiles * 2 + self.lane // 16)
                load_transposed(address_of(self.b, 0), score_index)
                for n in range(2):
                    result = address_of(self.result, (pair_of_tiles * 2 + n) * 4)
                    multiply_tiles(
                        self.heads.activation, result, address_of(self.weights, k * 4), address_of(self.b, n * 2)
                    )

    def store(self) -> None:
        for below, row in enumerate(self.rows):
            self.total[below] = quad_sum(self.total[below])
            with self.kernel.when(self.first_row + row < self.end_row):
                inverse = self.kernel.let("inverse", number(1, "float32") / self.total[below])
                for n in range(self.heads.head_dim // 8):
                    two = vector(*(self.result[n * 4 + below * 2 + right] * inverse for right in range(2)))
                    self.y[self.first_row + row, self.head, n * 4 + self.quarter] = cast(
                        two, f"{self.heads.activation}x2"
                    )

    def _mask(self, score_index: int, key: Scalar, below: int) -> None:
        """Cap a score, if there is a soft-cap, and replace that of a key which the row does not see."""
        score = self.scores[score_index]
        if self.facts.softcap is not None:
            score = capped(self.kernel, self.facts, score * number(self.facts.scale, "float32"))
        seen = all_of(key <= self.last_key[below], True if self.first_key is None else key >= self.first_key[below])
        self.scores[score_index] = select(seen, score, number(LOWEST, "float32"))

    def _weight(self, score: Scalar, largest: Scalar) -> Scalar:
        """As `scores.weight`, for scores that are yet to be scaled."""
        return exp2((score - largest) * self.exponent_scale)

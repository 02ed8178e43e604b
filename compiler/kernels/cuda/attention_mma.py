"""attention over pages for many new tokens of a sequence on tensor cores: prefill. q is what rope_append left in scratch.

One workgroup: one query head of 64 new tokens, keys in tiles of 64 up to the last of those tokens, with a running softmax (Milakov &
Gimelshein 2018; Dao 2023, FlashAttention-2). Where the rows are of several sequences, it takes these one after the other; to each, the
others' rows are masked. One warp: 16 rows; their queries, scores and results stay in registers, as tensor cores spread them over threads.
Keys pass through shared memory while the values before them are used, and values while scores are computed. Scores, sums and results are
float32; queries and weights are rounded to the activations' 16 bits.
Needs: sm_80; 16-bit activations; heads of a multiple of 32 elements, 128 at most; positions of a sequence in ascending order.
"""

from __future__ import annotations

import math

from ..builder import (
    Array,
    Kernel,
    KernelBuilder,
    Scalar,
    all_of,
    cast,
    exp2,
    lane_of,
    maximum,
    minimum,
    number,
    perform,
    place_of,
    result_of,
    select,
    vector,
)
from ..pages import LOWEST, Heads, Pages
from .rows16 import SHORT, pair

ROWS = 64
KEYS = 64
WARPS = ROWS // 16
THREADS = 32 * WARPS
# Of 16 bytes between rows in shared memory: keys are read by two rows of four threads at a time, values by eight rows.
KEY_PADDING = 4
VALUE_PADDING = 1


def supports(facts: Heads) -> bool:
    return facts.activation in SHORT and facts.head_dim % 32 == 0 and facts.head_dim <= 128


class Tiles:
    """Keys and values of KEYS tokens in shared memory, as 16-bit floats; zeros beyond the sequence's end.

    The argument "kv" is read in pieces of 16 bytes, or dequantized.
    """

    def __init__(self, kernel: KernelBuilder, facts: Heads, page_ids: Array) -> None:
        self._kernel, self._facts, self._page_ids = kernel, facts, page_ids
        self._octets = facts.head_dim // 8
        self._pages = Pages(kernel, facts, write=False) if facts.kv == "q8" else None
        if self._pages is None:
            self._kv = kernel.buffer("kv", ("P", 2, facts.num_kv_heads, facts.page_size, self._octets), "uint32x4")

    def allocate(self, thread: Scalar, kv_head: Scalar) -> None:
        self._thread, self._kv_head = thread, kv_head
        self.keys = self._kernel.shared("key_tile", (KEYS, self._octets + KEY_PADDING), "uint32x4")
        self.values = self._kernel.shared("value_tile", (KEYS, self._octets + VALUE_PADDING), "uint32x4")

    def start(self, plane: int, first_page: Scalar, first_key: Scalar, length: Scalar) -> None:
        """Fill the keys' tile (plane 0) or the values', behind the next wait for copies and the barrier after it."""
        kernel, page_size, target = self._kernel, self._facts.page_size, (self.keys, self.values)[plane]
        for start in range(0, KEYS * self._octets, THREADS):
            item = kernel.let("item", self._thread + start)
            row, octet = kernel.let("row", item // self._octets), kernel.let("octet", item % self._octets)
            key = kernel.let("key", minimum(first_key + row, length - 1))
            page = kernel.let("page", self._page_ids[first_page + key // page_size])
            present = first_key + row < length
            if self._pages is None:
                source = place_of(self._kv, page, plane, self._kv_head, key % page_size, octet)
                perform("copy_16_bytes", place_of(target, row, octet), source, select(present, 1, 0))
                continue
            quads = [
                kernel.let("quad", self._pages.load(page, plane, self._kv_head, key % page_size, octet * 2 + half)) for half in range(2)
            ]
            words = [pair(self._facts.activation, lane_of(quad, low), lane_of(quad, low + 1)) for quad in quads for low in (0, 2)]
            target[row, octet] = select(present, vector(*words), number(0, "uint32x4"))


def attention_mma(name: str, facts: Heads) -> Kernel:
    assert supports(facts), facts
    head_dim, mma = facts.head_dim, f"mma_{SHORT[facts.activation]}"
    kernel = KernelBuilder(name, scalars=("B",))
    q = kernel.scratch("q", ("S", facts.num_heads, head_dim // 4), "float32x4")
    positions = kernel.buffer("positions", ("S",), "int32")
    seq_starts = kernel.buffer("seq_starts", (["add", "B", 1],), "int32")
    page_indptr = kernel.buffer("page_indptr", (["add", "B", 1],), "int32")
    page_ids = kernel.buffer("page_ids", ("L",), "int32")
    tiles = Tiles(kernel, facts, page_ids)
    y = kernel.buffer("y", ("S", facts.num_heads, head_dim // 2), f"{facts.activation}x2", write=True)

    head, group_y = kernel.grid(facts.num_heads, ["ceildiv", "S", ROWS])
    thread = kernel.threads(THREADS)
    tiles.allocate(thread, head // facts.group)
    lane, warp = kernel.let("lane", thread % 32), kernel.let("warp", thread // 32)
    member, quarter = kernel.let("member", lane // 4), kernel.let("quarter", lane % 4)
    first_row = kernel.let("first_row", group_y * ROWS)
    end_row = kernel.let("end_row", minimum(first_row + ROWS, kernel.size("S")))
    # A thread has parts of two rows of the tile, eight apart.
    rows = [kernel.let("row", warp * 16 + member + below * 8) for below in range(2)]

    queries = kernel.local("queries", head_dim // 32 * 8, "uint32")
    for block in range(head_dim // 32):
        for below, row in enumerate(rows):
            for step in range(2):
                quad = kernel.let("quad", q[minimum(first_row + row, end_row - 1), head, block * 8 + quarter * 2 + step])
                for half in range(2):
                    words = pair(facts.activation, lane_of(quad, half * 2), lane_of(quad, half * 2 + 1))
                    queries[block * 8 + step * 4 + half * 2 + below] = words

    largest = kernel.local("largest", 2, "float32", fill=LOWEST)
    total = kernel.local("total", 2, "float32", fill=0)
    best, correction = kernel.local("best", 2, "float32"), kernel.local("correction", 2, "float32")
    last_key = kernel.local("last_key", 2, "int32")
    scores = kernel.local("scores", KEYS // 8 * 4, "float32")
    weights = kernel.local("weights", KEYS // 16 * 4, "uint32")
    b = kernel.local("b", 4, "uint32")
    loaded = kernel.local("loaded", 1, "uint32x4")
    result = kernel.local("result", head_dim // 8 * 4, "float32", fill=0)
    # Weights are powers of two, whose exponent takes the scores' scale with it.
    scale = number(math.log2(math.e) / math.sqrt(head_dim), "float32")

    def add_scores() -> None:
        for j in range(KEYS // 8):
            for i in range(4):
                scores[j * 4 + i] = 0
            for block in range(head_dim // 32):
                loaded[0] = tiles.keys[j * 8 + member, block * 4 + quarter]
                for word in range(4):
                    b[word] = lane_of(loaded[0], word)
                for step in range(2):
                    perform(mma, place_of(scores, j * 4), place_of(queries, block * 8 + step * 4), place_of(b, step * 2))

    def weigh(first_key: Scalar) -> None:
        """Turn scores into weights, and scale what has been added up to the largest score."""
        for below in range(2):
            best[below] = LOWEST
        places = [(j, below, right) for j in range(KEYS // 8) for below in range(2) for right in range(2)]
        for j, below, right in places:
            place = j * 4 + below * 2 + right
            seen = first_key + (j * 8 + right) + quarter * 2 <= last_key[below]
            scores[place] = select(seen, scores[place], number(LOWEST, "float32"))
            best[below] = maximum(best[below], scores[place])
        for below in range(2):
            best[below] = result_of("float32", "quad_max", best[below])
            best[below] = maximum(best[below], largest[below])
            correction[below] = exp2((largest[below] - best[below]) * scale)
            largest[below] = best[below]
            total[below] = total[below] * correction[below]
        for j, below, right in places:
            place = j * 4 + below * 2 + right
            scores[place] = exp2((scores[place] - largest[below]) * scale)
            total[below] = total[below] + scores[place]
        # What tensor cores gave as two tiles of eight keys they take as one of sixteen.
        for j in range(KEYS // 8):
            for below in range(2):
                place = j * 4 + below * 2
                weights[j // 2 * 4 + j % 2 * 2 + below] = pair(facts.activation, scores[place], scores[place + 1])
        for n in range(head_dim // 8):
            for i in range(4):
                result[n * 4 + i] = result[n * 4 + i] * correction[i // 2]

    def add_values() -> None:
        for k in range(KEYS // 16):
            for pair_of_tiles in range(head_dim // 16):
                row = k * 16 + lane % 16
                perform("load_transposed", place_of(b, 0), place_of(tiles.values, row, pair_of_tiles * 2 + lane // 16))
                for n in range(2):
                    perform(mma, place_of(result, (pair_of_tiles * 2 + n) * 4), place_of(weights, k * 4), place_of(b, n * 2))

    # The sequences of the tile's rows: those that end behind its first row and start before its end.
    first_sequence, end_sequence = (kernel.local(each, 1, "int32", fill=0) for each in ("first_sequence", "end_sequence"))
    with kernel.loop("other", kernel.size("B")) as other:
        first_sequence[0] = first_sequence[0] + select(seq_starts[other + 1] <= first_row, 1, 0)
        end_sequence[0] = end_sequence[0] + select(seq_starts[other] < end_row, 1, 0)

    with kernel.loop("s", end_sequence[0] - first_sequence[0]) as s:
        sequence = kernel.let("sequence", first_sequence[0] + s)
        own_start = kernel.let("own_start", seq_starts[sequence] - first_row)
        own_end = kernel.let("own_end", minimum(seq_starts[sequence + 1], end_row) - first_row)
        first_page = kernel.let("first_page", page_indptr[sequence])
        length = kernel.let("length", positions[first_row + own_end - 1] + 1)
        # Of a row that is not this sequence's no key is seen: its weights are 0, or are set to 0 when its own sequence comes.
        for below, row in enumerate(rows):
            own = all_of(row >= own_start, row < own_end)
            last_key[below] = select(own, positions[first_row + minimum(row, own_end - 1)], -1)
        count = kernel.let("count", (length + KEYS - 1) // KEYS)
        tiles.start(0, first_page, 0, length)
        with kernel.loop("tile", count) as tile:
            perform("wait_for_copies")
            # The keys are there, and nobody still reads the values before.
            kernel.barrier()
            tiles.start(1, first_page, tile * KEYS, length)
            add_scores()
            weigh(tile * KEYS)
            perform("wait_for_copies")
            kernel.barrier()
            with kernel.when(tile + 1 < count):
                tiles.start(0, first_page, (tile + 1) * KEYS, length)
            add_values()

    for below, row in enumerate(rows):
        total[below] = result_of("float32", "quad_sum", total[below])
        with kernel.when(first_row + row < end_row):
            inverse = kernel.let("inverse", number(1, "float32") / total[below])
            for n in range(head_dim // 8):
                two = vector(*(result[n * 4 + below * 2 + right] * inverse for right in range(2)))
                y[first_row + row, head, n * 4 + quarter] = cast(two, f"{facts.activation}x2")
    return kernel.finish()

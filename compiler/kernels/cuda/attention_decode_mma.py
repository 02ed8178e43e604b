"""attention on tensor cores for batches in which every sequence has one new token: norm, rotation, append and
attention in one kernel.

One workgroup: the query heads of one kv head (a part of them if they are more than eight) of one sequence, and a range
of its keys. The first keys and values are copied to shared memory before the kernel waits for the previous one, which
does not write them: only the new heads depend on it. The workgroup whose range has the new token writes its key and
value to the page, and to shared memory beside the others. If a sequence has several ranges, each leaves its largest
score, sum and weighted values in scratch, and the last one to arrive merges them (Dao et al. 2023, Flash-Decoding).
One warp: the preparation of one head after the other; then the keys of a tile that are its own, 16 of them, with a
running softmax of its own. The heads are rows of the tensor cores' tiles, so that keys and values are read from shared
memory once for all heads. Scores, sums and results are float32; queries and weights are rounded to the activations' 16
bits. Keys and values of 8 bits are multiplied as codes in float16, queries as float16 scaled by a power of two; the
scales of keys multiply scores, those of values the weights, divided by the largest so far (`kv_codes`).
Needs: sm_80; 16-bit activations, which pages hold too, or 8 bits; heads of a multiple of 32 elements, 256 at most.
Measured on an H200, in a graph of the projections of Llama-3.1-8B's 32 layers, one sequence at 256 tokens of context:
2.8 us a layer; 17.3 us with `attention_decode`, of one workgroup for each kv head.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import reduce

from ...ir.heads import Heads, Preparation, Scores
from ..builder import (
    Array,
    Kernel,
    KernelBuilder,
    Scalar,
    address_of,
    all_of,
    cast,
    magnitude,
    maximum,
    minimum,
    number,
    reinterpret,
    result_of,
    select,
    truncated_quotient,
)
from ..decode_range import opaque
from ..new_heads import NewHeads
from ..pages import packed_codes, scale_of
from ..scores import LOWEST, first_page_key
from ..vectors import lane_of, splat, vector
from .decode_tile import MAX_HEADS, WARP, WARP_KEYS, DecodeTile, FilledRanges, supports
from .functions import (
    arrive,
    commit_copies,
    fast_reciprocal,
    pair,
    quad_max,
    quad_sum,
    wait_for_older_copies,
    wait_for_previous_kernel,
    warp_max,
)
from .kv_codes import KvCodes
from .kv_stages import KvStages
from .merged_parts import MergedParts, vectors_of_heads
from .mma_phases import MmaPhases
from .rows16 import scale_of as power_of_two_of

# Below the scales of any values but zeros.
SMALLEST_SCALE = 1e-30
# The partial results that a thread reads before it uses the first.
PARTS_AT_ONCE = 8


def attention_decode_mma(
    name: str, *, heads: Heads, preparation: Preparation, scores: Scores, tile: DecodeTile
) -> Kernel:
    """``scores`` has no sinks. A single new token sees the same keys whether attention is causal or not."""
    assert supports(heads, preparation), (heads, preparation)
    assert not scores.sinks, scores
    kernel = KernelBuilder(name, scalars=("T", heads.sequences))
    phases = DecodeMma(kernel, heads, preparation, scores, tile)
    ahead = tile.stages - 1
    for stage in range(ahead):
        phases.start_stage(stage)
    wait_for_previous_kernel()
    with kernel.when(phases.count > 0):
        phases.prepare_heads()
        kernel.barrier()
        phases.append()
        phases.load_queries()
        with kernel.loop("tile", phases.count) as index:
            wait_for_older_copies(ahead - 1)
            phases.add_new_row(index)
            # The tile's copies have arrived, and no thread still uses the stage of the tile before.
            kernel.barrier()
            phases.start_stage(index + ahead)
            phases.multiply_keys(index)
            phases.update_softmax(index)
            phases.add_values(index)
        phases.leave_results()
        kernel.barrier()
        phases.store()
    return kernel.finish()


class DecodeMma(MmaPhases):
    """The registers of a thread, which has parts of one head's row, and the phases of its work."""

    def __init__(
        self, kernel: KernelBuilder, heads: Heads, preparation: Preparation, scores: Scores, tile: DecodeTile
    ) -> None:
        super().__init__(scores, heads.head_dim, 1, WARP_KEYS, tile.stages)
        self.kernel, self.heads, self.tile = kernel, heads, tile
        self.parts = heads.num_heads // tile.heads
        self.ranges = FilledRanges(heads, scores.window, tile.keys, workgroups=tile.workgroups, row_parts=self.parts)
        self.new = NewHeads(kernel, heads, preparation)
        self.positions = kernel.buffer("positions", (heads.rows,), "int32")
        page_indptr = kernel.buffer("page_indptr", (["add", heads.sequences, 1],), "int32")
        self._page_ids = kernel.buffer("page_ids", ("L",), "int32")
        self.codes = None if heads.form is None else KvCodes(kernel, heads, self, tile.keys, tile.stages)
        self.stages = self.codes or KvStages(kernel, heads, self, tile.keys, tile.stages, write=True)
        self.y = kernel.buffer("y", (heads.rows, heads.num_heads, heads.vectors), heads.stored_dtype, write=True)
        self.partials = self.ranges.results(kernel, write=True)
        self.arrivals = kernel.zeroed_scratch("decode_arrivals", (heads.sequences, self.parts))

        group_x, self.row = kernel.grid(["mul", self.parts, self.ranges.count], heads.sequences)
        self.thread = kernel.threads(tile.threads)
        self.warp, self.lane = kernel.let("warp", self.thread // WARP), kernel.let("lane", self.thread % WARP)
        self.member, self.quarter = kernel.let("member", self.lane // 4), kernel.let("quarter", self.lane % 4)
        self.part = kernel.let("head_part", group_x % self.parts)
        self.range_index = kernel.let("range_index", group_x // self.parts)
        self.first_head = kernel.let("first_head", self.part * tile.heads)
        self.kv_head = kernel.let("kv_head", self.first_head // heads.group)
        self.stages.allocate(self.thread, tile.threads, self.kv_head)
        self._first_page = kernel.let("first_page", page_indptr[self.row])
        self._find_keys()

        words = heads.head_dim // 2
        self.rows = kernel.shared("rows", (tile.heads + (2 if self.codes is None else 0), words), "uint32")
        if self.codes is not None:
            self.query_factors = kernel.shared("query_factors", (tile.heads,), "float32")
            self.new_words = kernel.shared("new_words", (2, self.codes.words), "uint32")
        self.warp_results = kernel.shared("warp_results", (tile.warps, tile.heads, words), "float32x2")
        self.warp_softmax = kernel.shared("warp_softmax", (tile.warps, tile.heads), "float32x2")
        self.last = kernel.shared("last", (1,), "int32")
        self.first_of_warp = self.warp * WARP_KEYS

    def page_of(self, first_page: Scalar, key: Scalar) -> Scalar:
        """The page of a key of the sequence whose pages start at ``first_page`` of the list."""
        return self._page_ids[first_page + key // self.heads.page_size]

    def _find_keys(self) -> None:
        """The workgroup's keys: ``count`` tiles from ``first_key`` on, to the key before ``end``."""
        kernel, window = self.kernel, self.facts.window
        self.position = kernel.let("position", self.positions[self.row])
        start = first_page_key(self.heads, window, self.position)
        start = start if isinstance(start, int) else kernel.let("start_key", start)
        self.first_visible = None if window is None else kernel.let("first_visible", self.position - (window - 1))
        length = kernel.let("length", self.position + 1 - start)
        range_keys = self.ranges.keys(kernel, length)
        self.used_ranges = opaque(kernel, "used_ranges", truncated_quotient(length + range_keys - 1, range_keys))
        self.first_key = kernel.let("first_key", start + self.range_index * range_keys)
        self.end = kernel.let("end", minimum(self.first_key + range_keys, self.position + 1))
        tiles = (maximum(self.end - self.first_key, 0) + self.tile.keys - 1) // self.tile.keys
        self.count = opaque(kernel, "tiles", tiles)
        # The end of the keys that are on pages.
        self.cached_end = kernel.let("cached_end", minimum(self.end, self.position))

    def start_stage(self, index: Scalar | int) -> None:
        """Start the copies of a tile of keys and values, if there is one."""
        with self.kernel.when(index < self.count):
            place = index % self.tile.stages, self._first_page, self._first_key(index), self.cached_end
            if isinstance(self.stages, KvCodes):
                self.stages.start(*place)
            else:
                self.stages.start(*place, self.position)
        commit_copies()

    def prepare_heads(self) -> None:
        """Norm and rotate the new heads, each by one warp, and round them. A range without the new token needs only the
        queries. Ends without a barrier.
        """
        kernel, heads, new = self.kernel, self.heads, self.new
        count = self.tile.heads + 2
        needed = kernel.let("needed", select(self._owns_new(), count, self.tile.heads))
        square = kernel.local("square", 1, "float32")
        turns = -(-heads.vectors // WARP)
        for first in range(0, count, self.tile.warps):
            row = kernel.let("head_row", self.warp + first)
            with kernel.when(row < needed):
                head = kernel.let("head", self._head_of(row))
                factor = None
                if new.normed:
                    square[0] = 0
                    for turn in range(turns):
                        index = kernel.let("index", self.lane + turn * WARP)
                        with kernel.when(self._inside(index)):
                            projected = kernel.let("projected", new.projected(self.row, head, index))
                            square[0] = square[0] + new.squares(projected)
                    square[0] = result_of("float32", "subgroupAdd", square[0])
                    factor = kernel.let("factor", new.factor(square[0], row < self.tile.heads))
                prepared = kernel.local("prepared", turns, heads.vector_dtype, fill=0)
                for turn in range(turns):
                    index = kernel.let("index", self.lane + turn * WARP)
                    with kernel.when(self._inside(index)):
                        prepared[turn] = new.vector(self.row, head, self.position, index, factor)
                if self.codes is None:
                    self._round(row, [prepared[turn] for turn in range(turns)], (0, 1, 2, 3))
                    continue
                with kernel.when(row < self.tile.heads):
                    self._scale_query(row, prepared, turns)
                with kernel.when(row >= self.tile.heads):
                    self._quantize(row - self.tile.heads, prepared, turns)

    def _round(self, row: Scalar, vectors: list[Scalar], order: tuple[int, int, int, int]) -> None:
        """Write a head as pairs of 16-bit floats, with the elements of a vector in some order."""
        for turn, value in enumerate(vectors):
            index = self.kernel.let("index", self.lane + turn * WARP)
            with self.kernel.when(self._inside(index)):
                vector_of_head = self.kernel.let("value", value)
                for half in range(2):
                    two = (lane_of(vector_of_head, order[half * 2 + i]) for i in range(2))
                    self.rows[row, index * 2 + half] = pair(self.stages.dtype, *two)

    def _scale_query(self, row: Scalar, prepared: Array, turns: int) -> None:
        """Write a query as float16 in the order of `KvCodes.load_keys`, scaled by a power of two."""
        kernel, lanes = self.kernel, [(turn, lane) for turn in range(turns) for lane in range(self.heads.lanes)]
        largest = kernel.local("largest_element", 1, "float32")
        largest[0] = reduce(maximum, (magnitude(lane_of(prepared[turn], lane)) for turn, lane in lanes))
        largest[0] = warp_max(largest[0])
        scale, factor = power_of_two_of(kernel, largest[0])
        with kernel.when(self.lane == 0):
            self.query_factors[row] = factor
        self._round(row, [prepared[turn] * splat(scale) for turn in range(turns)], (0, 2, 1, 3))

    def _quantize(self, plane: Scalar, prepared: Array, turns: int) -> None:
        """Write a new key or value as pages hold it; see `ops.kv_pages.quantize_rows`."""
        kernel, form = self.kernel, self.heads.form
        assert form is not None
        lanes = [(turn, lane) for turn in range(turns) for lane in range(self.heads.lanes)]
        ends = kernel.local("ends", 2, "float32")
        for i, sign in enumerate((1.0, -1.0)):
            ends[i] = reduce(maximum, (lane_of(prepared[turn], lane) * number(sign, "float32") for turn, lane in lanes))
            ends[i] = warp_max(ends[i])
        extreme = kernel.let("extreme", select(ends[0] >= ends[1], ends[0], number(0, "float32") - ends[1]))
        for turn in range(turns):
            index = kernel.let("index", self.lane + turn * WARP)
            with kernel.when(self._inside(index)):
                self.new_words[plane, index] = packed_codes(form, prepared[turn], extreme)
        with kernel.when(self.lane == 0):
            self.new_words[plane, form.words(self.heads.head_dim) - 1] = reinterpret(scale_of(form, extreme), "uint32")

    def append(self) -> None:
        """Write the new key and value to their page."""
        kernel = self.kernel
        writes = all_of(self._owns_new(), True if self.parts == self.heads.num_kv_heads else self._writes_heads())
        with kernel.when(writes):
            page = kernel.let("page", self.page_of(self._first_page, self.position))
            if isinstance(self.stages, KvCodes):
                self.stages.write_page(page, self.position, self.new_words)
                return
            for plane, octet, exists in self._new_octets():
                with kernel.when(exists):
                    self.stages.write_page(page, plane, self.position, octet, self._new_octet(plane, octet))

    def load_queries(self) -> None:
        """Read the queries in the layout of tensor cores, and start the softmax."""
        kernel, head_dim = self.kernel, self.heads.head_dim
        self.queries = kernel.local("queries", self.blocks * 8, "uint32", fill=0)
        # Rows that do not exist are copies of the last.
        row = kernel.let("query_row", minimum(self.member, self.tile.heads - 1))
        for slot in range(self.blocks * 2):
            index = slot // 2 * 8 + self.quarter * 2 + slot % 2
            for half in range(2):
                self.queries[slot * 4 + half * 2] = self.rows[row, index * 2 + half]
        self.largest = kernel.local("largest", 1, "float32", fill=LOWEST)
        self.total = kernel.local("total", 1, "float32", fill=0)
        self.best, self.correction = kernel.local("best", 1, "float32"), kernel.local("correction", 1, "float32")
        self.scaled, self.changed = kernel.local("scaled", 1, "float32"), kernel.local("changed", 1, "int32")
        self.scores = kernel.local("scores", WARP_KEYS // 8 * 4, "float32")
        self.weights = kernel.local("weights", 4, "uint32", fill=0)
        self.b = kernel.local("b", self.stages.value_elements // 4, "uint32")
        if self.codes is not None:
            self.query_factor = kernel.let("query_factor", self.query_factors[row])
            self.value_scales = kernel.local("value_scales", WARP_KEYS // 8 * 2, "float32")
            self.largest_scale = kernel.local("largest_scale", 1, "float32", fill=SMALLEST_SCALE)
            self.scale_ratio = kernel.local("scale_ratio", 1, "float32")
        self.result = kernel.local("result", head_dim // 8 * 4, "float32", fill=0)

    def add_new_row(self, index: Scalar) -> None:
        """Write the new key and value to the tile that they belong to, in which no copy writes them."""
        kernel = self.kernel
        row = kernel.let("new_row", self.position - self._first_key(index))
        with kernel.when(all_of(self._owns_new(), row < self.tile.keys)):
            if isinstance(self.stages, KvCodes):
                self.stages.set_row(index % self.tile.stages, row, self.new_words)
                return
            for plane, octet, exists in self._new_octets():
                with kernel.when(exists):
                    self.stages.set_octet(index % self.tile.stages, plane, row, octet, self._new_octet(plane, octet))

    def update_softmax(self, index: Scalar) -> None:
        """Turn scores into weights, and scale what has been added up to the largest score."""
        start = self.kernel.let("start", self._first_key(index) + self.first_of_warp + self.quarter * 2)
        self.best[0] = self.largest[0]
        for j, _, right in self.score_indices():
            at, key = j * 4 + right, start + (j * 8 + right)
            if self.codes is not None:
                own = self.first_of_warp + self.quarter * 2 + (j * 8 + right)
                scales = [self.codes.scale(plane, index % self.tile.stages, own) for plane in range(2)]
                self.scores[at] = self.scores[at] * (scales[0] * self.query_factor)
                # Scales of keys that are not seen may be NaN.
                self.value_scales[j * 2 + right] = select(self._sees(key), scales[1], number(0, "float32"))
            if self.facts.bends:
                self.scores[at] = self.capped(self.scores[at])
            self.scores[at] = select(self._sees(key), self.scores[at], number(LOWEST, "float32"))
            self.best[0] = maximum(self.best[0], self.scores[at])
        if self.codes is not None:
            self._divide_scales()
        self.weigh()

    def _sees(self, key: Scalar) -> Scalar:
        return all_of(key < self.end, True if self.first_visible is None else key >= self.first_visible)

    def _divide_scales(self) -> None:
        """Divide the scales of values by the largest so far, so that float16 holds the weights that they multiply."""
        kernel, before = self.kernel, self.largest_scale[0]
        largest = kernel.local("largest_of_tile", 1, "float32")
        count = WARP_KEYS // 8 * 2
        largest[0] = reduce(maximum, (magnitude(self.value_scales[i]) for i in range(count)), before)
        largest[0] = quad_max(largest[0])
        inverse = kernel.let("inverse_scale", fast_reciprocal(largest[0]))
        self.scale_ratio[0] = select(before == largest[0], number(1, "float32"), before * inverse)
        self.largest_scale[0] = largest[0]
        for i in range(count):
            self.value_scales[i] = self.value_scales[i] * inverse

    def value_weight(self, score: int) -> Scalar:
        weight = super().value_weight(score)
        return weight if self.codes is None else weight * self.value_scales[score // 4 * 2 + score % 2]

    def rescaling(self, below: int) -> Scalar:
        correction = super().rescaling(below)
        return correction if self.codes is None else correction * self.scale_ratio[0]

    def leave_results(self) -> None:
        """Write the warp's results to shared memory."""
        kernel = self.kernel
        self.total[0] = quad_sum(self.total[0])
        with kernel.when(True if self.tile.heads == MAX_HEADS else self.member < self.tile.heads):
            for n in range(self.heads.head_dim // 8):
                if self.codes is None:
                    two = vector(self.result[n * 4], self.result[n * 4 + 1])
                    self.warp_results[self.warp, self.member, n * 4 + self.quarter] = two
                    continue
                # Two tiles have the even and the odd elements of 16, four of which are the thread's.
                even = n // 2 * 2 * 4 + n % 2
                two = vector(*(self.result[even + 4 * i] * self.largest_scale[0] for i in range(2)))
                self.warp_results[self.warp, self.member, n // 2 * 8 + self.quarter * 2 + n % 2] = two
            with kernel.when(self.quarter == 0):
                self.warp_softmax[self.warp, self.member] = vector(self.largest[0], self.total[0])

    def store(self) -> None:
        """Add up the warps' results. Store the weighted mean if the sequence has one range; else the range's results,
        and if all other ranges have arrived, the mean of all.
        """
        kernel, heads, vectors = self.kernel, self.heads, self.heads.vectors
        alone = self.used_ranges == 1
        result_row = kernel.let("result_row", self.row * kernel.size(self.ranges.count))
        merged = MergedParts(kernel, heads.lanes, self.exponent_scale)
        with self._items() as (own, index):
            merged.clear()
            softmaxes = [kernel.let("softmax", self.warp_softmax[warp, own]) for warp in range(self.tile.warps)]
            values = [
                kernel.let(
                    "of_warp",
                    vector(*(lane_of(self.warp_results[warp, own, index * 2 + i // 2], i % 2) for i in range(4))),
                )
                for warp in range(self.tile.warps)
            ]
            merged.add(softmaxes, values)
            head = kernel.let("head", self.first_head + own)
            with kernel.when(alone):
                self.y[self.row, head, index] = merged.mean(heads.stored_dtype)
            with kernel.when(self.used_ranges > 1):
                self.partials[result_row + self.range_index, head, index] = merged.result[0]
                with kernel.when(index == 0):
                    zero = number(0, "float32")
                    softmax = vector(merged.largest[0], merged.total[0], zero, zero)
                    self.partials[result_row + self.range_index, head, vectors] = softmax
        with kernel.when(self.used_ranges > 1):
            self._arrive()
            with kernel.when(self.last[0] == 1):
                self._merge_ranges(merged, result_row)

    def _arrive(self) -> None:
        """Set ``last`` to whether all other ranges of the row have arrived before, in which case the counter becomes 0
        again.
        """
        kernel = self.kernel
        before = kernel.local("before", 1, "uint32")
        kernel.barrier()
        with kernel.when(self.thread == 0):
            before[0] = arrive(address_of(self.arrivals, self.row, self.part))
            last = kernel.let("is_last", cast(before[0], "int32") == self.used_ranges - 1)
            self.last[0] = select(last, 1, 0)
            with kernel.when(last):
                self.arrivals[self.row, self.part] = number(0, "uint32")
        kernel.barrier()

    def _merge_ranges(self, merged: MergedParts, result_row: Scalar) -> None:
        kernel, heads, vectors = self.kernel, self.heads, self.heads.vectors
        with self._items() as (own, index):
            merged.clear()
            head = kernel.let("head", self.first_head + own)
            turns = (self.used_ranges + PARTS_AT_ONCE - 1) // PARTS_AT_ONCE
            with kernel.loop("turn", turns) as turn:
                parts = [kernel.let("of_turn", turn * PARTS_AT_ONCE + i) for i in range(PARTS_AT_ONCE)]
                rows = [kernel.let("part_row", result_row + minimum(part, self.used_ranges - 1)) for part in parts]
                softmaxes = [kernel.let("softmax", self.partials[row, head, vectors]) for row in rows]
                values = [kernel.let("of_range", self.partials[row, head, index]) for row in rows]
                merged.add(softmaxes, values, [part < self.used_ranges for part in parts])
            self.y[self.row, head, index] = merged.mean(heads.stored_dtype)

    def _items(self) -> AbstractContextManager[tuple[Scalar, Scalar]]:
        return vectors_of_heads(self.kernel, self.thread, self.tile.threads, self.tile.heads, self.heads.vectors)

    def _first_key(self, index: Scalar | int) -> Scalar:
        """The first key of a tile."""
        return self.first_key + index * self.tile.keys

    def _owns_new(self) -> Scalar:
        """Whether the range has the new token."""
        return self.end > self.position

    def _writes_heads(self) -> Scalar:
        """Whether the workgroup is the one of those of a kv head that writes."""
        return self.first_head % self.heads.group == 0

    def _head_of(self, row: Scalar) -> Scalar:
        """The projection's head that a row of ``rows`` comes from."""
        of_kv = self.heads.num_heads + (row - self.tile.heads) * self.heads.num_kv_heads + self.kv_head
        return select(row < self.tile.heads, self.first_head + row, of_kv)

    def _inside(self, index: Scalar) -> Scalar | bool:
        return True if self.heads.vectors % WARP == 0 else index < self.heads.vectors

    def _new_octets(self) -> list[tuple[Scalar, Scalar, Scalar]]:
        """Plane and index of the thread's 8 elements of the new key and value, and whether they exist."""
        octets = self.heads.head_dim // 8
        items = [self.kernel.let("item", self.thread + i) for i in range(0, 2 * octets, self.tile.threads)]
        return [(item // octets, item % octets, item < 2 * octets) for item in items]

    def _new_octet(self, plane: Scalar, octet: Scalar) -> Scalar:
        return vector(*(self.rows[self.tile.heads + plane, octet * 4 + word] for word in range(4)))

"""attention over pages for many new tokens of a sequence on tensor cores: prefill.

One workgroup: some new tokens of one sequence with the query heads of one kv head (eight at most), which are the
``rows`` of a tile, so that a key is loaded once for all of these heads; keys in tiles from the first to the last that
any of the tokens sees, with a running softmax (Milakov & Gimelshein 2018; Dao 2023, FlashAttention-2). Sequences with
at most ``few`` new tokens are left to another kernel.
One warp: 16 rows; their queries, scores and results stay in registers, as tensor cores spread them over threads;
queries of more than 128 elements stay in shared memory, from which each thread reads its own. Keys and values are
copied to shared memory one or two tiles ahead. Scores, sums and results are float32; queries and weights are rounded to
the activations' 16 bits.
Needs: sm_80; 16-bit activations; heads of a multiple of 32 elements, 256 at most; ascending positions within a
sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.heads import Heads, Scores
from ..batch_rows import BatchRows, Tiling
from ..builder import Kernel, KernelBuilder, Scalar, address_of, all_of, any_of, cast, maximum, minimum, number, select
from ..new_heads import query_rows
from ..scores import LOWEST, first_key, last_key
from ..vectors import lane_of, vector
from .functions import (
    SHORT,
    commit_copies,
    pair,
    quad_sum,
    wait_for_older_copies,
)
from .kv_stages import KvStages
from .mma_phases import MmaPhases

# The maximum number of elements of a head whose queries fit into registers beside the results.
MAX_REGISTER_HEAD = 128
# The maximum number of query heads of a tile.
MAX_HEADS = 8
# Threads of a multiprocessor, if each uses the registers of a head of 128 elements.
RESIDENT_THREADS = 256
# Shared memory that a multiprocessor reserves for each workgroup.
RESERVED_BYTES = 1 << 10


@dataclass(frozen=True, slots=True)
class MmaTile:
    """``rows`` query heads of new tokens, ``keys`` a stage, and ``stages`` of keys and values in shared memory."""

    rows: int
    keys: int
    stages: int

    @property
    def threads(self) -> int:
        """16 rows a warp."""
        return self.rows * 2

    def shared_bytes(self, heads: Heads) -> int:
        """Shared memory of the stages, and of queries that registers cannot hold."""
        queries = self.rows if heads.head_dim > MAX_REGISTER_HEAD else 0
        return 2 * heads.head_dim * (2 * self.keys * self.stages + queries)


def supports(heads: Heads) -> bool:
    return heads.activation in SHORT and heads.head_dim % 32 == 0 and heads.head_dim <= 256


def tile_of(heads: Heads, rows: int, max_bytes: int) -> MmaTile | None:
    """The tile of some rows for GPUs whose workgroups have at most ``max_bytes`` of shared memory: with three stages if
    as many workgroups fit on a multiprocessor as with two. None if two do not fit.
    """
    keys = 64 if heads.head_dim <= MAX_REGISTER_HEAD else 32
    two, three = (MmaTile(rows, keys, stages) for stages in (2, 3))

    def resident(tile: MmaTile) -> int:
        bytes_each = tile.shared_bytes(heads) + RESERVED_BYTES
        return min(RESIDENT_THREADS // tile.threads, (max_bytes + RESERVED_BYTES) // bytes_each)

    if not resident(two):
        return None
    return three if resident(three) == resident(two) else two


def attention_mma(name: str, *, heads: Heads, scores: Scores, tile: MmaTile, few: int, q_in_scratch: bool) -> Kernel:
    """``q_in_scratch``: an earlier kernel, such as rope_append, wrote q to scratch; else q is an input of the step."""
    assert supports(heads), heads
    kernel = KernelBuilder(name, scalars=("B",))
    phases = MmaAttention(kernel, heads, scores, tile, few, q_in_scratch=q_in_scratch)
    ahead = tile.stages - 1
    with kernel.when(phases.own.count > 0):
        phases.find_keys()
        for stage in range(ahead):
            phases.start_stage(stage)
        phases.load_queries()
        with kernel.loop("tile", phases.count) as index:
            # The tile's copies have arrived, and no thread still uses the stage of the tile before.
            wait_for_older_copies(ahead - 1)
            kernel.barrier()
            phases.start_stage(index + ahead)
            phases.multiply_keys(index)
            phases.mask_scores(index)
            phases.update_softmax()
            phases.add_values(index)
        phases.store()
    return kernel.finish()


class MmaAttention(MmaPhases):
    """The registers of a thread, which has parts of two rows of the tile, eight apart, and the phases of its work."""

    def __init__(
        self, kernel: KernelBuilder, heads: Heads, scores: Scores, tile: MmaTile, few: int, *, q_in_scratch: bool
    ) -> None:
        super().__init__(scores, heads.head_dim, 2, tile.keys, tile.stages)
        self.kernel, self.heads, self.tile = kernel, heads, tile
        self.q = query_rows(kernel, heads, scratch=q_in_scratch)
        self.batch = BatchRows(kernel, heads, scores)
        self.stages = KvStages(kernel, heads, self.batch, tile.keys, tile.stages)
        self.sinks = kernel.buffer("sinks", (heads.num_heads,), "float32") if scores.sinks else None
        self.y = kernel.buffer("y", ("S", heads.num_heads, heads.head_dim // 2), f"{heads.activation}x2", write=True)

        # Row r is head r % packed of token r // packed.
        self.packed = max(each for each in range(1, MAX_HEADS + 1) if heads.group % each == 0)
        self.tokens = tile.rows // self.packed
        tiling = Tiling(self.tokens, few)
        head_group, slot = kernel.grid(heads.num_heads // self.packed, tiling.slots)
        thread = kernel.threads(tile.threads)
        first_head = kernel.let("first_head", head_group * self.packed)
        self.stages.allocate(thread, tile.threads, first_head // heads.group)
        subgroup = kernel.subgroup()
        self.own = self.batch.tile(tiling, slot, subgroup)
        self.thread, self.lane = thread, subgroup.lane
        self.member, self.quarter = kernel.let("member", self.lane // 4), kernel.let("quarter", self.lane % 4)
        rows = [kernel.let("row", subgroup.index * 16 + self.member + below * 8) for below in range(2)]
        self.row_tokens = [kernel.let("row_token", row // self.packed) for row in rows]
        self.row_heads = [kernel.let("row_head", first_head + row % self.packed) for row in rows]
        # Rows that do not exist see what the last token sees.
        self.batch_rows = [
            kernel.let("batch_row", self.own.first_row + minimum(token, maximum(self.own.count, 1) - 1))
            for token in self.row_tokens
        ]
        self.queries_in_registers = heads.head_dim <= MAX_REGISTER_HEAD
        if not self.queries_in_registers:
            self.shared_queries = kernel.shared("queries", (self.blocks * 2, tile.threads), "uint32x4")

    def find_keys(self) -> None:
        """The keys that the thread's rows see, those that all rows see, and how many tiles there are."""
        kernel, own, facts = self.kernel, self.own, self.facts
        positions = [self.batch.positions[row] for row in self.batch_rows]
        lasts = [self.batch.last_of(row, own.last) for row in self.batch_rows]
        self.last_keys = [
            kernel.let("last_key_of_row", last_key(facts, position, last))
            for position, last in zip(positions, lasts, strict=True)
        ]
        self.first_keys = [kernel.let("first_key_of_row", first_key(facts, position)) for position in positions]
        first, last = (self.batch.positions[own.first_row + row] for row in (0, own.count - 1))
        self.seen_from = kernel.let("seen_from", first_key(facts, last))
        self.seen_to = kernel.let("seen_to", last_key(facts, first, self.batch.last_of(own.first_row, own.last)))
        self.length = kernel.let("length", own.last_key + 1)
        self.count = kernel.let("count", (self.length - own.first_key + self.tile.keys - 1) // self.tile.keys)

    def start_stage(self, index: Scalar | int) -> None:
        """Start the copies of a tile of keys and values, if there is one."""
        with self.kernel.when(index < self.count):
            stage = index % self.tile.stages
            self.stages.start(stage, self.own.first_page, self._first_key(index), self.length)
        commit_copies()

    def load_queries(self) -> None:
        """Read the queries in the layout of tensor cores, and start the softmax."""
        kernel, head_dim = self.kernel, self.heads.head_dim
        words = kernel.local("queries", self.blocks * 8 if self.queries_in_registers else 8, "uint32")
        self.queries = words
        for slot in range(self.blocks * 2):
            base = slot * 4 if self.queries_in_registers else 0
            for below in range(2):
                index = slot // 2 * 8 + self.quarter * 2 + slot % 2
                stored = self.q[self.batch_rows[below], self.row_heads[below], index]
                quad = kernel.let("quad", cast(stored, self.heads.vector_dtype))
                for half in range(2):
                    two = pair(self.heads.activation, lane_of(quad, half * 2), lane_of(quad, half * 2 + 1))
                    words[base + half * 2 + below] = two
            if not self.queries_in_registers:
                self.shared_queries[slot, self.thread] = vector(*(words[word] for word in range(4)))
        self.largest = kernel.local("largest", 2, "float32")
        self.total = kernel.local("total", 2, "float32")
        for below in range(2):
            # A sink is a key without a value; the sums of a row are spread over four threads.
            self.largest[below] = (
                LOWEST if self.sinks is None else self.sinks[self.row_heads[below]] * number(1 / self.scale, "float32")
            )
            self.total[below] = (
                0 if self.sinks is None else select(self.quarter == 0, number(1, "float32"), number(0, "float32"))
            )
        keys = self.tile.keys
        self.best, self.correction = kernel.local("best", 2, "float32"), kernel.local("correction", 2, "float32")
        self.scaled, self.changed = kernel.local("scaled", 2, "float32"), kernel.local("changed", 1, "int32")
        self.scores = kernel.local("scores", keys // 8 * 4, "float32")
        self.weights = kernel.local("weights", keys // 16 * 4, "uint32")
        self.b = kernel.local("b", 4, "uint32")
        self.loaded = kernel.local("loaded", 1, "uint32x4")
        self.result = kernel.local("result", head_dim // 8 * 4, "float32", fill=0)

    def mask_scores(self, index: Scalar) -> None:
        """Cap the scores, if there is a soft-cap, and replace those of keys which a row does not see; most tiles have
        none.
        """
        kernel, start = self.kernel, self.kernel.let("tile_start", self._first_key(index))
        if self.facts.bends:
            for i in range(self.tile.keys // 8 * 4):
                self.scores[i] = self.capped(self.scores[i])
        hidden = start + (self.tile.keys - 1) > self.seen_to
        if self.facts.window is not None:
            hidden = any_of(hidden, start < self.seen_from)
        with kernel.when(hidden):
            for j, below, right in self.score_indices():
                key = start + (j * 8 + right) + self.quarter * 2
                seen = all_of(
                    key <= self.last_keys[below], True if self.facts.window is None else key >= self.first_keys[below]
                )
                at = j * 4 + below * 2 + right
                self.scores[at] = select(seen, self.scores[at], number(LOWEST, "float32"))

    def update_softmax(self) -> None:
        """Turn scores into weights, and scale what has been added up to the largest score."""
        for below in range(2):
            self.best[below] = self.largest[below]
        for j, below, right in self.score_indices():
            self.best[below] = maximum(self.best[below], self.scores[j * 4 + below * 2 + right])
        self.weigh()

    def store(self) -> None:
        for below, token in enumerate(self.row_tokens):
            self.total[below] = quad_sum(self.total[below])
            with self.kernel.when(token < minimum(self.own.count, self.tokens)):
                inverse = self.kernel.let("inverse", number(1, "float32") / self.total[below])
                for n in range(self.heads.head_dim // 8):
                    two = vector(*(self.result[n * 4 + below * 2 + right] * inverse for right in range(2)))
                    self.y[self.batch_rows[below], self.row_heads[below], n * 4 + self.quarter] = cast(
                        two, f"{self.heads.activation}x2"
                    )

    def _first_key(self, index: Scalar | int) -> Scalar:
        return self.own.first_key + index * self.tile.keys

    def queries_of(self, block: int) -> list[Scalar]:
        if self.queries_in_registers:
            return super().queries_of(block)
        for step in range(2):
            self.split(self.shared_queries[block * 2 + step, self.thread], self.queries, step * 4)
        return [address_of(self.queries, step * 4) for step in range(2)]

"""Kernels of a mixture of experts besides its projections: route, combine, and the groups of rows by expert that the
kernels of projections for many rows read. `ir/ops/experts.py` defines the ops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..ir.expr import Expr
from ..ir.ops.parts import Part
from .builder import (
    Array,
    Kernel,
    KernelBuilder,
    Scalar,
    all_of,
    any_of,
    exp,
    guard_below,
    maximum,
    minimum,
    number,
    select,
    truncated_quotient,
)
from .cpu.activations import MATHS as CPU_MATHS
from .cpu.builder import Isa
from .elementwise import builder, filled
from .fold import Fold
from .maths import MATHS
from .projection import Experts
from .vectors import ramp, splat, with_lanes

THREADS = 128
# The scratch buffers of `group_pairs`.
PAIRS, GROUPS = "pair_of_row", "expert_of_tile"
GROUP_THREADS = 256


def route(
    name: str,
    rows: Expr,
    experts: int,
    chosen: int,
    router: str,
    normalized: bool,
    scale: float,
    bias: bool,
    scales: bool,
) -> Kernel:
    """One workgroup: one row. One thread: every 128th expert; its rank is the number of experts that are preferred to
    it, so nothing is sorted.
    """
    kernel = KernelBuilder(name)
    logits = kernel.buffer("logits", (rows, experts), "float32")
    biases = kernel.buffer("bias", (experts,), "float32") if bias else None
    factors = kernel.buffer("scales", (experts,), "float32") if scales else None
    y = kernel.buffer("chosen", (rows, chosen), "int32", write=True)
    weights = kernel.buffer("weights", (rows, chosen), "float32", write=True)
    row, _ = kernel.grid(rows)
    thread = kernel.threads(THREADS)
    scores, keys = kernel.shared("scores", (experts,), "float32"), kernel.shared("keys", (experts,), "float32")
    best, taken = kernel.shared("best", (chosen,), "float32"), kernel.shared("taken", (chosen,), "int32")
    turns = range(-(-experts // THREADS))

    def mine(turn: int) -> tuple[Scalar, Scalar | bool]:
        expert = turn * THREADS + thread
        return expert, guard_below(expert, experts, THREADS)

    largest = kernel.local("largest", 1, "float32", fill=-3e38)
    total = kernel.local("total", 1, "float32", fill=0)
    for turn in turns:
        expert, exists = mine(turn)
        with kernel.when(exists):
            scores[expert] = logits[row, expert]
            largest[0] = maximum(largest[0], scores[expert])
    if router == "softmax":
        top = kernel.folded("maxima", thread, THREADS, largest[0], maximum)
        for turn in turns:
            expert, exists = mine(turn)
            with kernel.when(exists):
                scores[expert] = exp(scores[expert] - top)
                total[0] = total[0] + scores[expert]
        total[0] = kernel.folded("totals", thread, THREADS, total[0], lambda one, other: one + other)
    for turn in turns:
        expert, exists = mine(turn)
        with kernel.when(exists):
            if router == "softmax":
                scores[expert] = scores[expert] / total[0]
            if router == "sigmoid":
                scores[expert] = number(1, "float32") / (number(1, "float32") + exp(-scores[expert]))
            keys[expert] = scores[expert] if biases is None else scores[expert] + biases[expert]
    kernel.barrier()
    rank = kernel.local("rank", 1, "int32")
    for turn in turns:
        expert, exists = mine(turn)
        with kernel.when(exists):
            rank[0] = 0
            with kernel.loop("other", experts) as other:
                first = all_of(keys[other] == keys[expert], other < expert)
                with kernel.when(any_of(keys[other] > keys[expert], first)):
                    rank[0] = rank[0] + 1
            with kernel.when(rank[0] < chosen):
                best[rank[0]], taken[rank[0]] = scores[expert], expert
    kernel.barrier()
    with kernel.when(thread < chosen):
        weight = kernel.local("weight", 1, "float32")

        def value(score: Scalar) -> Scalar:
            return exp(score - best[0]) if router == "softmax_chosen" else score

        weight[0] = value(best[thread])
        if normalized or router == "softmax_chosen":
            total[0] = 0
            with kernel.loop("each", chosen) as each:
                total[0] = total[0] + value(best[each])
            weight[0] = weight[0] / total[0]
        weight[0] = weight[0] * number(scale, "float32")
        if factors is not None:
            weight[0] = weight[0] * factors[taken[thread]]
        y[row, thread], weights[row, thread] = taken[thread], weight[0]
    return kernel.finish()


def combine(
    name: str, rows: Expr, chosen: int, columns: int, store: Sequence[Part] = (), isa: Isa | None = None
) -> Kernel:
    """On GPUs and, with ``isa``, on CPUs."""
    kernel = builder(name, isa)
    x = kernel.buffer("x", (["mul", rows, chosen], columns), "float32")
    weights = kernel.buffer("weights", (rows, chosen), "float32")
    fold = Fold(kernel, CPU_MATHS if isa else MATHS, store, rows, columns)
    y = kernel.buffer("y", (rows, columns), "float32", write=True)

    def value(row: Scalar, column: Scalar, lanes: int) -> Scalar:
        total = kernel.local("total", 1, with_lanes("float32", lanes), fill=0)
        with kernel.loop("pair", chosen) as pair:
            result = x[row * chosen + pair, ramp(column, lanes)]
            total[0] = total[0] + result * splat(weights[row, pair], lanes)
        return fold(row, column, total[0])

    return filled(kernel, y, rows, columns, value, threads=THREADS)


@dataclass(frozen=True, slots=True)
class Groups:
    """The pairs of a projection in tiles of ``rows`` rows, each of one expert: the scratch buffers that `group_pairs`
    writes. Unused rows have the pair -1, unused tiles the expert -1.
    """

    experts: Experts
    rows: int

    @property
    def pairs(self) -> Expr:
        return ["mul", self.experts.tokens, self.experts.chosen]

    @property
    def tiles(self) -> Expr:
        """At least the number of tiles. Every expert may have one that is not full."""
        return ["min", self.pairs, ["add", ["ceildiv", self.pairs, self.rows], self.experts.count]]

    def pair_of_row(self, kernel: KernelBuilder, *, write: bool = False) -> Array:
        return kernel.scratch(PAIRS, (["mul", self.tiles, self.rows],), "int32", write=write)

    def expert_of_tile(self, kernel: KernelBuilder, *, write: bool = False) -> Array:
        return kernel.scratch(GROUPS, (self.tiles,), "int32", write=write)


def group_pairs(name: str, experts: Experts, tile_rows: int) -> Kernel:
    """Group pairs by expert, in their order, in tiles of ``tile_rows``. Pairs without an expert are in no tile.

    One workgroup. One thread: the pairs of one expert in one segment of all pairs; with more than 256 experts, of
    several experts. It counts them, waits until the starts of all tiles are known, and writes them.
    """
    kernel = KernelBuilder(name)
    groups, rows = Groups(experts, tile_rows), tile_rows
    chosen = kernel.buffer("chosen", (experts.tokens, experts.chosen), "int32")
    pair_of_row, expert_of_tile = (
        groups.pair_of_row(kernel, write=True),
        groups.expert_of_tile(kernel, write=True),
    )
    kernel.grid(1)
    thread = kernel.threads(GROUP_THREADS)
    lanes = min(GROUP_THREADS, 1 << (experts.count - 1).bit_length())
    segments, turns = GROUP_THREADS // lanes, -(-experts.count // lanes)
    pairs, tiles = kernel.size(groups.pairs), kernel.size(groups.tiles)
    length = truncated_quotient(pairs + (segments - 1), segments)
    first = kernel.let("first_pair", thread // lanes * length)
    last = kernel.let("last_pair", minimum(first + length, pairs))
    counts = kernel.shared("counts", (segments, turns * lanes), "int32")
    starts = kernel.shared("starts", (turns * lanes + 1,), "int32")
    place = kernel.local("place", 1, "int32")

    def each_pair(expert: Scalar, body: Callable[[Scalar], None]) -> None:
        with kernel.loop("offset", maximum(last - first, 0)) as offset:
            pair = first + offset
            token, of_token = truncated_quotient(pair, experts.chosen), pair % experts.chosen
            with kernel.when(chosen[token, of_token] == expert):
                body(pair)

    def count(pair: Scalar) -> None:  # noqa: ARG001
        place[0] = place[0] + 1

    def write(pair: Scalar) -> None:
        pair_of_row[place[0]] = pair
        place[0] = place[0] + 1

    for turn in range(turns):
        expert = turn * lanes + thread % lanes
        place[0] = 0
        each_pair(expert, count)
        counts[thread // lanes, expert] = place[0]
    kernel.barrier()
    # Starts count tiles.
    with kernel.when(thread == 0):
        place[0] = 0
        with kernel.loop("expert", turns * lanes) as expert:
            starts[expert] = place[0]
            total = kernel.local("total", 1, "int32", fill=0)
            with kernel.loop("segment", segments) as segment:
                total[0] = total[0] + counts[segment, expert]
            place[0] = place[0] + truncated_quotient(total[0] + (rows - 1), rows)
        starts[turns * lanes] = place[0]
    kernel.barrier()
    for turn in range(turns):
        expert = turn * lanes + thread % lanes
        place[0] = starts[expert] * rows
        with kernel.loop("segment", thread // lanes) as segment:
            place[0] = place[0] + counts[segment, expert]
        each_pair(expert, write)
        with kernel.when(thread // lanes == segments - 1):
            end = kernel.let("end", starts[expert + 1] * rows)
            with kernel.loop("unused", end - place[0]) as unused:
                pair_of_row[place[0] + unused] = -1
            with kernel.loop("tile", starts[expert + 1] - starts[expert]) as tile:
                expert_of_tile[starts[expert] + tile] = expert
    used = kernel.let("used", starts[turns * lanes])
    with kernel.loop("round", truncated_quotient(tiles - used + (GROUP_THREADS - 1), GROUP_THREADS)) as turn:
        tile = used + turn * GROUP_THREADS + thread
        with kernel.when(tile < tiles):
            expert_of_tile[tile] = -1
            with kernel.loop("row", rows) as row:
                pair_of_row[tile * rows + row] = -1
    return kernel.finish()


def used(index: Scalar) -> Scalar:
    """The entry, or 0 if it is unused."""
    return select(index >= 0, index, 0)

"""A mixture of experts on CPUs: route, and expert_linear over weights in tiles of 16 rows.

`ir/ops/experts.py` defines the ops. An expert_linear reads rows that `prepare_rows.py` wrote, as `linear_tiles.py`
does.
"""

from __future__ import annotations

from ...ir.expr import Expr
from ...quant.layout import TILE_ROWS
from ..builder import Array, Kernel, Scalar, all_of, any_of, maximum, minimum, number, truncated_quotient
from ..projection import Experts, Projection
from .builder import CpuKernelBuilder, Isa
from .linear_tiles import ChosenExperts, Result, first_tile
from .math import exp
from .tile_dots import FloatDots, IntegerDots

# The scratch buffers of `sort_pairs`.
ORDER, ENDS = "pairs_by_expert", "ends_of_experts"


def route(
    name: str,
    *,
    isa: Isa,  # noqa: ARG001
    rows: Expr,
    experts: int,
    chosen: int,
    router: str,
    normalized: bool,
    scale: float,
    bias: bool,
    scales: bool,
) -> Kernel:
    """One task: one row."""
    kernel = CpuKernelBuilder(name)
    logits = kernel.buffer("logits", (rows, experts), "float32")
    biases = kernel.buffer("bias", (experts,), "float32") if bias else None
    factors = kernel.buffer("scales", (experts,), "float32") if scales else None
    y = kernel.buffer("chosen", (rows, chosen), "int32", write=True)
    weights = kernel.buffer("weights", (rows, chosen), "float32", write=True)
    with kernel.tasks("row", rows) as row:
        scores, keys = kernel.local("scores", experts, "float32"), kernel.local("keys", experts, "float32")
        best, total = kernel.local("best", chosen, "float32"), kernel.local("total", 1, "float32", fill=0)
        largest = kernel.local("largest", 1, "float32", fill=-3e38)
        with kernel.loop("expert", experts) as expert:
            largest[0] = maximum(largest[0], logits[row, expert])
        with kernel.loop("expert", experts) as expert:
            logit = kernel.let("logit", logits[row, expert])
            if router == "softmax":
                scores[expert] = exp(kernel.let("below", logit - largest[0]))
                total[0] = total[0] + scores[expert]
            elif router == "sigmoid":
                scores[expert] = number(1, "float32") / (number(1, "float32") + exp(kernel.let("minus", -logit)))
            else:
                scores[expert] = logit
        with kernel.loop("expert", experts) as expert:
            if router == "softmax":
                scores[expert] = scores[expert] / total[0]
            keys[expert] = scores[expert] if biases is None else scores[expert] + biases[expert]
        with kernel.loop("expert", experts) as expert:
            rank = kernel.local("rank", 1, "int32", fill=0)
            with kernel.loop("other", experts) as other:
                first = all_of(keys[other] == keys[expert], other < expert)
                with kernel.when(any_of(keys[other] > keys[expert], first)):
                    rank[0] = rank[0] + 1
            with kernel.when(rank[0] < chosen):
                best[rank[0]], y[row, rank[0]] = scores[expert], expert
        if router == "softmax_chosen":
            largest[0] = best[0]
            with kernel.loop("each", chosen) as each:
                best[each] = exp(kernel.let("below", best[each] - largest[0]))
        if normalized or router == "softmax_chosen":
            total[0] = 0
            with kernel.loop("each", chosen) as each:
                total[0] = total[0] + best[each]
            with kernel.loop("each", chosen) as each:
                best[each] = best[each] / total[0]
        with kernel.loop("each", chosen) as each:
            weight = best[each] * number(scale, "float32")
            weights[row, each] = weight if factors is None else weight * factors[y[row, each]]
    return kernel.finish()


def expert_tiles(name: str, *, isa: Isa, facts: Projection, bits: int | None) -> Kernel:
    """expert_linear, for every batch. One task: one pair and one or two tiles of its expert."""
    kernel = CpuKernelBuilder(name)
    work = ExpertTiles(kernel, isa, facts, 1, bits)
    with kernel.tasks("task", facts.batch, work.num_tasks) as task:
        pair, task_of_pair = kernel.split(task, work.num_tasks, ("pair", "task_of_pair"))
        work.compute(work.chosen.expert_of(pair), task_of_pair, [pair], number(0, "int32"))
    work.result.gate(isa)
    return kernel.finish()


def grouped_expert_tiles(name: str, *, isa: Isa, facts: Projection, tokens: int, bits: int | None) -> Kernel:
    """expert_linear behind `sort_pairs`. One task: one or two tiles of an expert, for all its pairs, ``tokens`` at a
    time.
    """
    kernel = CpuKernelBuilder(name)
    assert facts.experts is not None
    order, ends = sorted_pairs(kernel, facts.experts)
    work = ExpertTiles(kernel, isa, facts, tokens, bits)
    with kernel.tasks("task", facts.experts.count, work.num_tasks) as task:
        expert, task_of_expert = kernel.split(task, work.num_tasks, ("expert", "task_of_expert"))
        first = kernel.local("first", 1, "int32", fill=0)
        with kernel.when(expert > 0):
            first[0] = ends[expert - 1]
        end = kernel.let("end", ends[expert])
        with kernel.loop("block", truncated_quotient(end - first[0] + (tokens - 1), tokens)) as block:
            # The last block repeats its last pair.
            places = [minimum(first[0] + block * tokens + token, end - 1) for token in range(tokens)]
            work.compute(expert, task_of_expert, [kernel.let("pair", order[place]) for place in places], block)
    work.result.gate(isa)
    return kernel.finish()


class ExpertTiles:
    """Dot products of some pairs with tiles of their expert."""

    def __init__(self, kernel: CpuKernelBuilder, isa: Isa, facts: Projection, tokens: int, bits: int | None) -> None:
        assert facts.experts is not None
        self._kernel, self._isa, self._facts = kernel, isa, facts
        self._dots = (
            FloatDots(kernel, isa, facts, tokens) if bits is None else IntegerDots(kernel, isa, facts, tokens, bits)
        )
        self.chosen = ChosenExperts(kernel, facts, facts.experts)
        self.result = Result(kernel, facts, self.chosen)
        # Rows that do not begin with a tile are in one more.
        straddles = TILE_ROWS - 1 if self.chosen.straddle else 0
        self._tiles = -(-(self.result.outputs + straddles) // TILE_ROWS)
        self._at_once = self._dots.vectors if self._tiles > 1 else min(self._dots.vectors, TILE_ROWS // isa.lanes)
        self._tiles_a_task = max(1, self._at_once * isa.lanes // TILE_ROWS)

    @property
    def num_tasks(self) -> int:
        """The tasks of an expert."""
        return -(-self._tiles // self._tiles_a_task)

    def compute(self, expert: Scalar, task: Scalar, pairs: list[Scalar], turn: Scalar) -> None:
        """Compute a task for some pairs of an expert, which may be equal."""
        kernel, lanes, at_once, result = self._kernel, self._isa.lanes, self._at_once, self.result
        first_row = kernel.let("first_row", expert * self._facts.weight_rows)
        result.of_expert(expert)
        all_tiles = -(-self._facts.all_weight_rows // TILE_ROWS)
        base = kernel.let("base", truncated_quotient(first_row, TILE_ROWS))
        tile, stores_first = first_tile(kernel, task, self._tiles, self._tiles_a_task)
        # The tile behind the last expert's does not exist.
        here = kernel.let("here", minimum(base + tile, all_tiles - self._tiles_a_task))
        rows = [self.chosen.input_row(pair) for pair in pairs]
        for first in range(0, self._tiles_a_task * TILE_ROWS, at_once * lanes):
            starts = [first + vector * lanes for vector in range(at_once)]
            sums = [self._dots.sums(here + half * self._tiles, rows, starts, turn) for half in range(result.halves)]
            for token, pair in enumerate(pairs):
                for vector, start in enumerate(starts):
                    found = [each[token * at_once + vector] for each in sums]
                    if self.chosen.straddle:
                        result.store_shifted(pair, here * TILE_ROWS + start - first_row, found[0])
                        continue
                    with kernel.when(stores_first if start < TILE_ROWS else True):
                        result.store(pair, tile + start // TILE_ROWS, start % TILE_ROWS, found)


def sort_pairs(name: str, *, isa: Isa, experts: Experts) -> Kernel:  # noqa: ARG001
    """Sort pairs by their experts, by counting. One thread does it: there are few pairs."""
    kernel = CpuKernelBuilder(name)
    chosen = kernel.buffer("chosen", (experts.tokens, experts.chosen), "int32")
    order, ends = sorted_pairs(kernel, experts, write=True)

    def expert_of(pair: Scalar) -> Scalar:
        token, of_token = kernel.split(pair, experts.chosen, ("token", "of_token"))
        return kernel.let("expert", experts.index(chosen[token, of_token]))

    pairs = kernel.size(experts.tokens) * experts.chosen
    with kernel.loop("expert", experts.count) as expert:
        ends[expert] = 0
    with kernel.loop("pair", pairs) as pair:
        expert = expert_of(pair)
        ends[expert] = ends[expert] + 1
    first = kernel.local("first", 1, "int32", fill=0)
    with kernel.loop("expert", experts.count) as expert:
        count = kernel.let("count", ends[expert])
        # The place of its next pair, which is its end after the last one.
        ends[expert] = first[0]
        first[0] = first[0] + count
    with kernel.loop("pair", pairs) as pair:
        expert = expert_of(pair)
        order[ends[expert]] = pair
        ends[expert] = ends[expert] + 1
    return kernel.finish()


def sorted_pairs(kernel: CpuKernelBuilder, experts: Experts, *, write: bool = False) -> tuple[Array, Array]:
    """The pairs in the order of their experts, and the end of each expert's pairs."""
    pairs: Expr = ["mul", experts.tokens, experts.chosen]
    order = kernel.scratch(ORDER, (pairs,), "int32", write=write)
    return order, kernel.scratch(ENDS, (experts.count,), "int32", write=write)

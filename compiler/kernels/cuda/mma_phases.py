"""What the attention kernels on tensor cores share: the products with keys and values, and a running softmax whose
weights are powers of two.
"""

from __future__ import annotations

import math

from ...ir.heads import Heads, Scores
from ..builder import Array, KernelBuilder, Scalar, address_of, any_of, number, select
from ..scores import LOWEST
from ..vectors import lane_of
from .functions import any_in_warp, fast_exp2, fast_reciprocal, multiply_tiles, pair, quad_max
from .kv_codes import KvCodes
from .kv_stages import KvStages


class MmaPhases:
    """The registers of a thread, which has parts of one row of the tensor cores' tiles, or of two that are eight rows
    apart, and the phases that are the same for both.

    ``lane`` is the thread of its warp, ``member`` a quarter of it and ``quarter`` the rest. A warp has ``keys`` keys of
    a tile, from ``first_of_warp`` on. ``scores`` are those of two adjacent keys of each eight, for each row.
    """

    kernel: KernelBuilder
    heads: Heads
    stages: KvStages | KvCodes
    lane: Scalar
    member: Scalar
    quarter: Scalar
    # Registers: for each row, and for each key or element.
    queries: Array
    largest: Array
    total: Array
    best: Array
    correction: Array
    scaled: Array
    changed: Array
    scores: Array
    weights: Array
    b: Array
    loaded: Array
    result: Array

    def __init__(self, facts: Scores, head_dim: int, rows: int, keys: int, stages: int) -> None:
        self.facts, self.num_rows, self.keys_of_warp, self._num_stages = facts, rows, keys, stages
        self.first_of_warp: Scalar | int = 0
        # Weights are powers of two, whose exponent takes the scores' scale with it, unless something bends the scores
        # themselves.
        self.scale = 1.0 if facts.bends else facts.scale
        self.exponent_scale = number(math.log2(math.e) * self.scale, "float32")
        self.blocks = head_dim // 32

    def multiply_keys(self, index: Scalar) -> None:
        """The dot products of queries and keys."""
        stage = index % self._num_stages
        for i in range(self.keys_of_warp // 8 * 4):
            self.scores[i] = 0
        # Products that follow each other add to different sums, so that none waits for the one before.
        for block in range(self.blocks):
            fragments = self.queries_of(block)
            for j in range(self.keys_of_warp // 8):
                row = self.first_of_warp + j * 8 + self.member
                self.stages.load_keys(stage, row, block, self.quarter, self.b)
                for step, query in enumerate(fragments):
                    sums = address_of(self.scores, j * 4)
                    multiply_tiles(self.stages.dtype, sums, query, address_of(self.b, step * 2))

    def queries_of(self, block: int) -> list[Scalar]:
        """The addresses of the thread's queries for two steps of 16 elements."""
        return [address_of(self.queries, (block * 2 + step) * 4) for step in range(2)]

    def split(self, octet: Scalar, words: Array, first: int) -> None:
        """Store 16 bytes as four words."""
        self.loaded[0] = octet
        for word in range(4):
            words[first + word] = lane_of(self.loaded[0], word)

    def score_indices(self) -> list[tuple[int, int, int]]:
        """The thread's scores: key of each eight, row, and which of two adjacent keys."""
        keys = range(self.keys_of_warp // 8)
        return [(j, below, right) for j in keys for below in range(self.num_rows) for right in range(2)]

    def weigh(self) -> None:
        """Turn scores into weights, and scale what has been added up to the ``best`` score of each row."""
        for below in range(self.num_rows):
            self.best[below] = quad_max(self.best[below])
            # While a row has seen no key, its largest score is LOWEST, and all of its weights are 0.
            seen = self.best[below] > number(LOWEST / 2, "float32")
            self.scaled[below] = select(seen, self.best[below] * self.exponent_scale, number(0, "float32"))
            self.correction[below] = self._weight(self.largest[below], below)
            self.largest[below] = self.best[below]
            self.total[below] = self.total[below] * self.correction[below]
        for j, below, right in self.score_indices():
            at = j * 4 + below * 2 + right
            self.scores[at] = self._weight(self.scores[at], below)
            self.total[below] = self.total[below] + self.scores[at]
        # Two tiles of eight keys in the output layout of tensor cores are one tile of sixteen keys in their input
        # layout.
        for j in range(self.keys_of_warp // 8):
            for below in range(self.num_rows):
                at = j * 4 + below * 2
                two = pair(self.stages.dtype, *(self.value_weight(at + right) for right in range(2)))
                self.weights[j // 2 * 4 + j % 2 * 2 + below] = two
        # After the first tiles, the largest score of a row rarely changes.
        rescaling = [self.rescaling(below) for below in range(self.num_rows)]
        changed = [each != number(1, "float32") for each in rescaling]
        self.changed[0] = any_in_warp(any_of(*changed) if len(changed) > 1 else changed[0])
        with self.kernel.when(self.changed[0] != 0):
            for n in range(self.heads.head_dim // 8):
                for i in range(2 * self.num_rows):
                    self.result[n * 4 + i] = self.result[n * 4 + i] * rescaling[i // 2]

    def value_weight(self, score: int) -> Scalar:
        """What multiplies a value, of which `scores` has the weight."""
        return self.scores[score]

    def rescaling(self, below: int) -> Scalar:
        """What multiplies the values that a row has added up."""
        return self.correction[below]

    def add_values(self, index: Scalar) -> None:
        """Add the weighted values."""
        stage = index % self._num_stages
        tiles = self.stages.value_elements // 8
        for k in range(self.keys_of_warp // 16):
            for group in range(self.heads.head_dim // self.stages.value_elements):
                self.stages.load_values(stage, self.first_of_warp + k * 16, self.lane, group, self.b)
                for n in range(tiles):
                    result = address_of(self.result, (group * tiles + n) * 4)
                    weights, values = address_of(self.weights, k * 4), address_of(self.b, n * 2)
                    multiply_tiles(self.stages.dtype, result, weights, values)

    def capped(self, score: Scalar) -> Scalar:
        """cap * tanh(scale * score / cap), as cap - 2 cap / (1 + exp(2 scale * score / cap)). Near 0 its relative error
        grows, but a weight depends on the absolute one.
        """
        cap = self.facts.softcap
        assert cap is not None
        power = fast_exp2(score * number(2 * math.log2(math.e) * self.facts.scale / cap, "float32"))
        return number(cap, "float32") - number(2 * cap, "float32") * fast_reciprocal(number(1, "float32") + power)

    def _weight(self, score: Scalar, below: int) -> Scalar:
        """As `scores.weight`, for scores that are yet to be scaled: one multiply-add and a power."""
        return fast_exp2(score * self.exponent_scale - self.scaled[below])

"""The heads of new tokens, from the joint q/k/v projection: q and k normed where the model norms them, and rotated.

The projection's heads are H of q, then K of k, then K of v. One task: one head of one row. Queries go to scratch, divided by sqrt(D); keys
and values to their pages.
"""

from __future__ import annotations

import math

from ..builder import Array, Scalar, all_of, cast, magnitude, maximum, number
from ..pages import Heads
from .builder import CpuKernelBuilder, Isa, floats, pieces, ramp, wide
from .math import fused, join, largest_of_lanes, rounded
from .pages import Pages, code_factor
from .rows import rms_factor


class NewHeads:
    """The arguments "qkv", "table", "positions", "slots" and "qk_norm" (q's weights above k's) of a kernel, and scratch "q"."""

    def __init__(self, kernel: CpuKernelBuilder, isa: Isa, heads: Heads) -> None:
        self._kernel, self._isa, self._heads = kernel, isa, heads
        self._qkv = kernel.buffer("qkv", ("S", heads.num_heads + 2 * heads.num_kv_heads, heads.head_dim), heads.activation)
        self._table = kernel.buffer("table", (heads.positions, heads.head_dim), "float32")
        self._norm = kernel.buffer("qk_norm", (2, heads.head_dim), "float32") if heads.norm_eps is not None else None
        self.positions = kernel.buffer("positions", ("S",), "int32")
        self._slots = kernel.buffer("slots", ("S",), "int32")
        self.q = kernel.scratch("q", ("S", heads.num_heads, heads.head_dim), "float32", write=True)

    def process(self, pages: Pages, task: Scalar) -> None:
        """Task number ``task`` of S * (H + 2 K)."""
        heads, kernel = self._heads, self._kernel
        all_heads = heads.num_heads + 2 * heads.num_kv_heads
        row, head = kernel.split(task, all_heads, ("row", "head"))
        page, place = kernel.split(self._slots[row], heads.page_size, ("page", "place"))
        values_start = heads.num_heads + heads.num_kv_heads
        turned = kernel.local("turned", heads.head_dim, "float32")
        with kernel.when(head < heads.num_heads):
            self._turn(row, head, 0, turned)
            for start, lanes in pieces(heads.head_dim, self._isa.lanes):
                scale = number(1 / math.sqrt(heads.head_dim), floats(lanes))
                self.q[row, head, ramp(start, lanes)] = turned[ramp(start, lanes)] * scale
        with kernel.when(all_of(head >= heads.num_heads, head < values_start)):
            self._turn(row, head, 1, turned)
            self._append(pages, page, 0, head - heads.num_heads, place, turned)
        with kernel.when(head >= values_start):
            for start, lanes in pieces(heads.head_dim, self._isa.lanes):
                turned[ramp(start, lanes)] = self._load(row, head, start, lanes)
            self._append(pages, page, 1, head - values_start, place, turned)

    def _load(self, row: Scalar, head: Scalar, start: Scalar, lanes: int) -> Scalar:
        return cast(self._qkv[row, head, ramp(start, lanes)], floats(lanes))

    def _turn(self, row: Scalar, head: Scalar, norm_row: int, turned: Array) -> None:
        """Norm and rotate one head into ``turned``."""
        heads, kernel, half = self._heads, self._kernel, self._heads.head_dim // 2
        factor = None
        if heads.norm_eps is not None:
            factor = rms_factor(kernel, self._isa, lambda start, lanes: self._load(row, head, start, lanes), heads.head_dim, heads.norm_eps)

        def normed(start: int, lanes: int) -> Scalar:
            x = self._load(row, head, start, lanes)
            if factor is None or self._norm is None:
                return x
            return x * wide(factor, lanes) * self._norm[norm_row, ramp(start, lanes)]

        position = kernel.let("position", self.positions[row])
        for start, lanes in pieces(half, self._isa.lanes):
            cosine, sine = self._angles(position, start, lanes)
            low, high = kernel.let("low", normed(start, lanes)), kernel.let("high", normed(half + start, lanes))
            turned[ramp(start, lanes)] = fused(low, cosine, -(high * sine))
            turned[ramp(half + start, lanes)] = fused(high, cosine, low * sine)

    def _angles(self, position: Scalar, start: int, lanes: int) -> tuple[Scalar, Scalar]:
        """Cosines and sines, which lie in turn."""
        if lanes == 1:
            return self._table[position, 2 * start], self._table[position, 2 * start + 1]
        first, second = (self._table[position, ramp(2 * start + lanes * part, lanes)] for part in range(2))
        cosines, sines = (join(first, second, lanes=list(range(odd, 2 * lanes, 2))) for odd in range(2))
        return self._kernel.let("cosine", cosines), self._kernel.let("sine", sines)

    def _append(self, pages: Pages, page: Scalar, plane: int, kv_head: Scalar, place: Scalar, turned: Array) -> None:
        heads, kernel = self._heads, self._kernel
        factor = None
        if pages.quantized:
            largest = kernel.local("largest", 1, "float32", fill=0)
            for start, lanes in pieces(heads.head_dim, self._isa.lanes):
                largest[0] = maximum(largest[0], largest_of_lanes(magnitude(turned[ramp(start, lanes)])))
            factor = kernel.let("code_factor", code_factor(largest[0]))
            pages.store_scale(page, plane, kv_head, place, largest[0])
        with kernel.loop("element", heads.head_dim) as element:
            value = turned[element]
            if factor is not None:
                value = rounded(value * factor)
            pages.store(page, plane, kv_head, place, element, value)

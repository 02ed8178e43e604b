"""The layout of KV pages for CPU kernels, within the memory of a page, plane and KV head in the plan's state.

Keys lie element by element, (D, page), so that a vector holds one element of neighbouring keys. Values lie token by
token, (page, D). Pages of 8-bit integers hold the codes in the same order, then the float32 scales of the page's
tokens.
"""

from __future__ import annotations

from ..builder import Array, Scalar, cast, magnitude, maximum, number, select
from ..heads import Heads
from .builder import CpuKernelBuilder, Isa, floats, of, pieces, ramp
from .math import largest_of_lanes, rounded


class Pages:
    """A layer's keys (plane 0) and values (plane 1) as the argument "kv"."""

    def __init__(self, kernel: CpuKernelBuilder, heads: Heads, *, write: bool) -> None:
        self._kernel, self._heads = kernel, heads
        size, page = heads.head_dim * heads.page_size, heads.page_size
        self.quantized = heads.kv == "q8"
        if not self.quantized:
            self._kv = kernel.buffer("kv", ("P", 2, heads.num_kv_heads, size), heads.activation, write=write)
            return
        self._kv = kernel.buffer("kv", ("P", 2, heads.num_kv_heads, size + 4 * page), "int8", write=write)
        self._scales = kernel.view(self._kv, ("P", 2, heads.num_kv_heads, size // 4 + page), "float32")

    def key(self, page: Scalar, kv_head: Scalar, in_page: Scalar, element: Scalar, lanes: int) -> Scalar:
        """One element of ``lanes`` neighbouring keys from ``in_page`` on, as float32; quantized pages omit the
        scale.
        """
        return self._load(page, 0, kv_head, element * self._heads.page_size + in_page, lanes)

    def value(self, page: Scalar, kv_head: Scalar, in_page: Scalar, element: Scalar, lanes: int) -> Scalar:
        """Neighbouring elements of one value, in the same form."""
        return self._load(page, 1, kv_head, in_page * self._heads.head_dim + element, lanes)

    def scales(self, page: Scalar, plane: int, kv_head: Scalar, in_page: Scalar, lanes: int) -> Scalar:
        """The scales of neighbouring tokens. Only for quantized pages."""
        return self._scales[
            page, plane, kv_head, ramp(self._heads.head_dim * self._heads.page_size // 4 + in_page, lanes)
        ]

    def prefetch(self, page: Scalar, plane: int, kv_head: Scalar, index: Scalar) -> None:
        """Prefetch an element of a page's keys or values by its index among all of them."""
        self._kernel.prefetch(self._kv, (page, plane, kv_head, index))

    def _load(self, page: Scalar, plane: int, kv_head: Scalar, index: Scalar, lanes: int) -> Scalar:
        stored = self._kv[page, plane, kv_head, ramp(index, lanes)]
        return cast(cast(stored, of("int32", lanes)) if self.quantized else stored, floats(lanes))

    def append(self, isa: Isa, page: Scalar, plane: int, kv_head: Scalar, in_page: Scalar, row: Array) -> None:
        """Store the key (plane 0) or value (plane 1) of one token and kv head, (D,) float32."""
        heads, kernel = self._heads, self._kernel
        factor = None
        if self.quantized:
            largest = kernel.local("largest", 1, "float32", fill=0)
            for start, lanes in pieces(heads.head_dim, isa.lanes):
                largest[0] = maximum(largest[0], largest_of_lanes(magnitude(row[ramp(start, lanes)])))
            factor = kernel.let("code_factor", code_factor(largest[0]))
            index = heads.head_dim * heads.page_size // 4 + in_page
            self._scales[page, plane, kv_head, index] = largest[0] / number(127, "float32")
        with kernel.loop("element", heads.head_dim) as element:
            value = row[element] if factor is None else rounded(row[element] * factor)
            index = element * heads.page_size + in_page if plane == 0 else in_page * heads.head_dim + element
            self._kv[page, plane, kv_head, index] = cast(value, "int8" if self.quantized else heads.activation)


def code_factor(largest: Scalar) -> Scalar:
    """The factor of elements before they are rounded to codes."""
    return select(largest > 0, number(127, "float32") / largest, number(0, "float32"))

"""KV pages as CPU kernels lay them out, in the places and the size that the plan's state gives them.

Of a page and kv head the keys are element by element, (D, page), so that a vector holds one element of neighbouring keys; the values are
token by token, (page, D). Pages of 8-bit integers hold the codes in the same order, then the float32 scales of the page's tokens.
"""

from __future__ import annotations

from ..builder import Scalar, cast, number, select
from ..pages import Heads
from .builder import CpuKernelBuilder, floats, of, ramp


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

    def key(self, page: Scalar, kv_head: Scalar, place: Scalar, element: Scalar, lanes: int) -> Scalar:
        """One element of ``lanes`` neighbouring keys from ``place`` on, float32; of quantized pages without the scale."""
        return self._load(page, 0, kv_head, element * self._heads.page_size + place, lanes)

    def value(self, page: Scalar, kv_head: Scalar, place: Scalar, element: Scalar, lanes: int) -> Scalar:
        """Neighbouring elements of one value, likewise."""
        return self._load(page, 1, kv_head, place * self._heads.head_dim + element, lanes)

    def scales(self, page: Scalar, plane: int, kv_head: Scalar, place: Scalar, lanes: int) -> Scalar:
        """Of neighbouring tokens. Only of quantized pages."""
        return self._scales[page, plane, kv_head, ramp(self._heads.head_dim * self._heads.page_size // 4 + place, lanes)]

    def prefetch(self, page: Scalar, plane: int, kv_head: Scalar, index: Scalar) -> None:
        """Ask for the memory of an element of a page's keys or values, by its place among all of them."""
        self._kernel.prefetch(self._kv, (page, plane, kv_head, index))

    def _load(self, page: Scalar, plane: int, kv_head: Scalar, index: Scalar, lanes: int) -> Scalar:
        stored = self._kv[page, plane, kv_head, ramp(index, lanes)]
        return cast(cast(stored, of("int32", lanes)) if self.quantized else stored, floats(lanes))

    def store(self, page: Scalar, plane: int, kv_head: Scalar, place: Scalar, element: Scalar, value: Scalar) -> None:
        """One element, float32; of quantized pages its code."""
        size, page_size = self._heads.head_dim, self._heads.page_size
        index = element * page_size + place if plane == 0 else place * size + element
        self._kv[page, plane, kv_head, index] = cast(value, "int8" if self.quantized else self._heads.activation)

    def store_scale(self, page: Scalar, plane: int, kv_head: Scalar, place: Scalar, largest: Scalar) -> None:
        """The scale of a token whose largest magnitude is given."""
        index = self._heads.head_dim * self._heads.page_size // 4 + place
        self._scales[page, plane, kv_head, index] = largest / number(127, "float32")


def code_factor(largest: Scalar) -> Scalar:
    """What to multiply elements with before they are rounded to codes."""
    return select(largest > 0, number(127, "float32") / largest, number(0, "float32"))

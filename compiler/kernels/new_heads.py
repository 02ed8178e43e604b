"""The heads of new tokens as kernels read them from the joint q/k/v projection: normed where the model norms q and k, q and k rotated.

The projection's heads are H of q, then K of k, then K of v.
"""

from __future__ import annotations

from .builder import KernelBuilder, Scalar, cast, number, rsqrt, select, vector
from .pages import Heads


class NewHeads:
    """The arguments "qkv", "table", and "qk_norm" (q's weights above k's) of a kernel."""

    def __init__(self, kernel: KernelBuilder, heads: Heads) -> None:
        self._heads = heads
        self._qkv = kernel.buffer("qkv", ("S", heads.num_heads + 2 * heads.num_kv_heads, heads.head_dim), heads.activation)
        self._table = kernel.buffer("table", (heads.positions, heads.head_dim // 2, 2), "float32")
        self._norm = kernel.buffer("qk_norm", (2, heads.head_dim), "float32") if heads.norm_eps is not None else None

    def element(self, row: Scalar, head: Scalar, element: Scalar) -> Scalar:
        """One element as projected, float32."""
        return cast(self._qkv[row, head, element], "float32")

    def factor(self, sum_of_squares: Scalar) -> Scalar:
        """What a head's elements are multiplied with, beside the norm's weights."""
        assert self._heads.norm_eps is not None
        return rsqrt(sum_of_squares * number(1 / self._heads.head_dim, "float32") + number(self._heads.norm_eps, "float32"))

    def vector(self, row: Scalar, head: Scalar, position: Scalar, index: Scalar, factor: Scalar | None) -> Scalar:
        """Vector ``index`` of a head, float32; ``factor`` where q and k are normed. Heads of v are taken as they are."""
        heads, half = self._heads, self._heads.head_dim // 2
        turned = []
        for lane in range(heads.lanes):
            element = index * heads.lanes + lane
            low = element < half
            other, pair = select(low, element + half, element - half), select(low, element, element - half)
            mine, partner = (self._normed(row, head, each, factor) for each in (element, other))
            cosine, sine = self._table[position, pair, 0], self._table[position, pair, 1]
            rotated = mine * cosine + select(low, -partner, partner) * sine
            turned.append(select(head < heads.num_heads + heads.num_kv_heads, rotated, self.element(row, head, element)))
        return vector(*turned)

    def _normed(self, row: Scalar, head: Scalar, element: Scalar, factor: Scalar | None) -> Scalar:
        value = self.element(row, head, element)
        if self._norm is None:
            return value
        return value * factor * self._norm[select(head < self._heads.num_heads, 0, 1), element]

"""Heads of new tokens: read from the joint q/k/v projection, normalized and rotated as `Preparation` specifies; and the
rows of q.
"""

from __future__ import annotations

from .builder import Array, KernelBuilder, Scalar, cast, minimum, select, vector
from .heads import Heads, Preparation
from .maths import rms_factor


def query_rows(kernel: KernelBuilder, heads: Heads, *, scratch: bool, write: bool = False) -> Array:
    """The argument "q", (S, H, vectors): in scratch, float32, or as a value of the step, of the activations' dtype."""
    shape = (heads.rows, heads.num_heads, heads.vectors)
    if scratch:
        return kernel.scratch("q", shape, heads.vector_dtype, write=write)
    return kernel.buffer("q", shape, heads.stored_dtype, write=write)


class RotationTable:
    """The argument "table" of a kernel: cosine and sine for each position and pair of elements. Su et al. 2021."""

    def __init__(self, kernel: KernelBuilder, preparation: Preparation, head_dim: int) -> None:
        self._half, self._head_dim = preparation.rotary_dim // 2, head_dim
        self._table = kernel.buffer("table", (preparation.positions, self._half, 2), "float32")

    def partner(self, element: Scalar) -> Scalar:
        """The element that an element is rotated with; an arbitrary element of the head for one that is not rotated."""
        return select(element < self._half, element + self._half, element - self._half)

    def rotated(self, position: Scalar, element: Scalar, value: Scalar, partner: Scalar) -> Scalar:
        """An element after the rotation, from its own value and its partner's."""
        half = self._half
        low = element < half
        rotates_all = 2 * half == self._head_dim
        pair = select(low, element, element - half if rotates_all else minimum(element - half, half - 1))
        cosine, sine = self._table[position, pair, 0], self._table[position, pair, 1]
        rotated = value * cosine + select(low, -partner, partner) * sine
        return rotated if rotates_all else select(element < 2 * half, rotated, value)


class NewHeads:
    """The arguments "qkv", "table" and "qk_norm" (q's weights, then k's). The projection's heads are H of q, K of k and
    K of v; if the step appends nothing, they are H of q, and "qk_norm" has only q's weights.

    A kernel has "table" only if there is a rotation, and "qk_norm" only if there is a norm.
    """

    def __init__(self, kernel: KernelBuilder, heads: Heads, preparation: Preparation) -> None:
        self._heads, self._preparation = heads, preparation
        appended = 2 * heads.num_kv_heads if preparation.appends else 0
        self._qkv = kernel.buffer("qkv", (heads.rows, heads.num_heads + appended, heads.head_dim), heads.activation)
        self._table = RotationTable(kernel, preparation, heads.head_dim) if preparation.rotary_dim else None
        norms = (2 if preparation.appends else 1, heads.head_dim)
        self._norm = kernel.buffer("qk_norm", norms, "float32") if self.normed else None

    @property
    def normed(self) -> bool:
        return self._preparation.norm_eps is not None

    @property
    def norms_values(self) -> bool:
        return self._preparation.norms_values

    @property
    def appends(self) -> bool:
        return self._preparation.appends

    def element(self, row: Scalar, head: Scalar, element: Scalar) -> Scalar:
        """One element of the projection's result, float32."""
        return cast(self._qkv[row, head, element], "float32")

    def factor(self, sum_of_squares: Scalar) -> Scalar:
        """The factor of a head's elements: 1 / sqrt(mean of squares + eps). Zhang & Sennrich 2019."""
        eps = self._preparation.norm_eps
        assert eps is not None
        return rms_factor(sum_of_squares, self._heads.head_dim, eps)

    def vector(self, row: Scalar, head: Scalar, position: Scalar, index: Scalar, factor: Scalar | None) -> Scalar:
        """Vector ``index`` of a prepared head, float32. ``factor`` is None if heads are not normalized. Heads of v are
        not rotated.
        """
        heads, lanes = self._heads, []
        for lane in range(heads.lanes):
            element = index * heads.lanes + lane
            value = self._normed(row, head, element, factor)
            if self._table is not None:
                partner = self._normed(row, head, self._table.partner(element), factor)
                value = self._table.rotated(position, element, value, partner)
            if not self.appends:
                lanes.append(value)
                continue
            projected = self.element(row, head, element)
            if self.norms_values:
                projected = projected * factor
            lanes.append(select(head < heads.num_heads + heads.num_kv_heads, value, projected))
        return vector(*lanes)

    def _normed(self, row: Scalar, head: Scalar, element: Scalar, factor: Scalar | None) -> Scalar:
        value = self.element(row, head, element)
        if self._norm is None:
            return value
        norm_row = select(head < self._heads.num_heads, 0, 1) if self.appends else 0
        return value * factor * self._norm[norm_row, element]

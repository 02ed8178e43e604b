"""Heads of new tokens: read from the joint q/k/v projection, normalized and rotated as `Preparation` specifies; and the
rows of q.
"""

from __future__ import annotations

from ..ir.heads import Heads, Preparation
from .builder import Array, KernelBuilder, Scalar, cast, minimum, number, select
from .maths import position_factor, rms_factor
from .vectors import vector


def query_rows(kernel: KernelBuilder, heads: Heads, *, scratch: bool, write: bool = False) -> Array:
    """The argument "q", (S, H, vectors): in scratch, float32, or as a value of the step, of the activations' dtype."""
    shape = (heads.rows, heads.num_heads, heads.vectors)
    if scratch:
        return kernel.scratch("q", shape, heads.vector_dtype, write=write)
    return kernel.buffer("q", shape, heads.stored_dtype, write=write)


class RotationTable:
    """The argument "table" of a kernel: cosine and sine for each position, or each row of the step, and pair of
    elements. Su et al. 2021.
    """

    def __init__(self, kernel: KernelBuilder, preparation: Preparation, head_dim: int) -> None:
        self._half, self._head_dim, self._by_row = preparation.rotary_dim // 2, head_dim, preparation.by_row
        self._table = kernel.buffer("table", (preparation.positions, self._half, 2), "float32")

    def partner(self, element: Scalar) -> Scalar:
        """The element that an element is rotated with; an arbitrary element of the head for one that is not rotated."""
        return select(element < self._half, element + self._half, element - self._half)

    def rotated(self, row: Scalar, position: Scalar, element: Scalar, value: Scalar, partner: Scalar) -> Scalar:
        """An element of a row after the rotation, from its own value and its partner's."""
        half = self._half
        low = element < half
        rotates_all = 2 * half == self._head_dim
        pair = select(low, element, element - half if rotates_all else minimum(element - half, half - 1))
        turn = row if self._by_row else position
        cosine, sine = self._table[turn, pair, 0], self._table[turn, pair, 1]
        rotated = value * cosine + select(low, -partner, partner) * sine
        return rotated if rotates_all else select(element < 2 * half, rotated, value)


class NewHeads:
    """The arguments "qkv", "table" and "qk_norm" (q's weights, then k's). The projection's heads are H of q, K of k and
    K of v; if the step appends nothing, the argument "q" has H heads, and "qk_norm" only q's weights. It has one row of
    weights for q and one for k, or with wide norms a row for each head.

    A kernel has "table" only if there is a rotation, and "qk_norm" only if there is a norm.
    """

    def __init__(self, kernel: KernelBuilder, heads: Heads, preparation: Preparation) -> None:
        self._kernel, self._heads, self._preparation = kernel, heads, preparation
        appended = 2 * heads.num_kv_heads if preparation.appends else 0
        role = "qkv" if preparation.appends else "q"
        self._qkv = kernel.buffer(role, (heads.rows, heads.num_heads + appended, heads.head_dim), heads.activation)
        self._table = RotationTable(kernel, preparation, heads.head_dim) if preparation.rotary_dim else None
        assert preparation.appends or not (self.wide or preparation.norm_after), preparation
        rows = heads.num_heads + heads.num_kv_heads if self.wide else 2 if preparation.appends else 1
        self._norm = kernel.buffer("qk_norm", (rows, heads.head_dim), "float32") if self.normed else None

    @property
    def normed(self) -> bool:
        return self._preparation.eps is not None

    @property
    def norms_values(self) -> bool:
        return self._preparation.norms_values

    @property
    def appends(self) -> bool:
        return self._preparation.appends

    @property
    def wide(self) -> bool:
        return self._preparation.norm_wide

    def wide_heads(self, is_query: Scalar, is_key: Scalar | bool) -> tuple[Scalar, Scalar]:
        """The first head, and the number of heads, of the wide norm of a query or a key; no heads for neither."""
        heads = self._heads
        of_k = heads.num_kv_heads if is_key is True else select(is_key, heads.num_kv_heads, 0)
        return select(is_query, 0, heads.num_heads), select(is_query, heads.num_heads, of_k)

    def element(self, row: Scalar, head: Scalar, element: Scalar) -> Scalar:
        """One element of the projection's result, float32."""
        return cast(self._qkv[row, head, element], "float32")

    def factor(self, sum_of_squares: Scalar, is_query: Scalar) -> Scalar:
        """The factor of the elements of a head, or of all heads of a wide norm: 1 / sqrt(mean of squares + eps). Zhang
        & Sennrich 2019.
        """
        heads, eps = self._heads, self._preparation.eps
        assert eps is not None
        if not self.wide:
            return rms_factor(sum_of_squares, heads.head_dim, eps)
        of_q, of_k = (
            rms_factor(sum_of_squares, count * heads.head_dim, eps) for count in (heads.num_heads, heads.num_kv_heads)
        )
        return of_q if heads.num_heads == heads.num_kv_heads else select(is_query, of_q, of_k)

    def vector(self, row: Scalar, head: Scalar, position: Scalar, index: Scalar, factor: Scalar | None) -> Scalar:
        """Vector ``index`` of a prepared head, float32. ``factor`` is None if heads are not normalized. Heads of v are
        not rotated.
        """
        heads, lanes, norm_after = self._heads, [], self._preparation.norm_after
        read = self._raw if norm_after else self._normed
        of_query = None
        if self._preparation.position_scale is not None:
            scale = position_factor(self._preparation.position_scale, position)
            of_query = self._kernel.let("of_query", select(head < heads.num_heads, scale, number(1, "float32")))
        for lane in range(heads.lanes):
            element = index * heads.lanes + lane
            value = read(row, head, element, factor)
            if self._table is not None:
                partner = read(row, head, self._table.partner(element), factor)
                value = self._table.rotated(row, position, element, value, partner)
            if norm_after:
                value = value * factor * self._weight(head, element)
            if of_query is not None:
                value = value * of_query
            if not self.appends:
                lanes.append(value)
                continue
            projected = self.element(row, head, element)
            if self.norms_values:
                projected = projected * factor
            lanes.append(select(head < heads.num_heads + heads.num_kv_heads, value, projected))
        return vector(*lanes)

    def _raw(self, row: Scalar, head: Scalar, element: Scalar, factor: Scalar | None) -> Scalar:  # noqa: ARG002
        return self.element(row, head, element)

    def _normed(self, row: Scalar, head: Scalar, element: Scalar, factor: Scalar | None) -> Scalar:
        value = self.element(row, head, element)
        return value if self._norm is None else value * factor * self._weight(head, element)

    def _weight(self, head: Scalar, element: Scalar) -> Scalar:
        """The norm's weight of an element of q or k; an arbitrary one for v."""
        assert self._norm is not None
        heads = self._heads
        if self.wide:
            return self._norm[minimum(head, heads.num_heads + heads.num_kv_heads - 1), element]
        return self._norm[select(head < heads.num_heads, 0, 1) if self.appends else 0, element]

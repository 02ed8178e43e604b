"""Heads of new tokens: read from the joint q/k/v projection, normalized and rotated as `Preparation` specifies; and the
rows of q.
"""

from __future__ import annotations

import math

from ..ir.heads import Heads, Preparation
from .builder import Array, KernelBuilder, Scalar, cast, minimum, number, select
from .maths import position_factor, rms_factor
from .vectors import floats, lane_of, lanes_of, splat, sum_lanes, vector, with_lanes


def query_rows(kernel: KernelBuilder, heads: Heads, *, scratch: bool, write: bool = False) -> Array:
    """The argument "q", (S, H, vectors): in scratch, float32, or as a value of the step, of the activations' dtype."""
    shape = (heads.rows, heads.num_heads, heads.vectors)
    if scratch:
        return kernel.scratch("q", shape, heads.vector_dtype, write=write)
    return kernel.buffer("q", shape, heads.stored_dtype, write=write)


class RotationTable:
    """The argument "table" of a kernel: cosine and sine for each position, or each row of the step, and pair of
    elements. Su et al. 2021.

    A head is rotated in units of ``lanes`` adjacent elements, which divide half of the rotated ones.
    """

    def __init__(self, kernel: KernelBuilder, preparation: Preparation, head_dim: int, lanes: int = 1) -> None:
        self._kernel, self._lanes, self._by_row = kernel, lanes, preparation.by_row
        self._half, self._units = preparation.rotary_dim // 2 // lanes, head_dim // lanes
        self._numbers = min(4, 2 * lanes)
        shape = (preparation.positions, 2 * lanes * self._half // self._numbers)
        self._table = kernel.buffer("table", shape, floats(self._numbers))

    def partner(self, unit: Scalar) -> Scalar:
        """The unit that a unit is rotated with; an arbitrary unit of the head for one that is not rotated."""
        return select(unit < self._half, unit + self._half, unit - self._half)

    def rotated(self, row: Scalar, position: Scalar, unit: Scalar, value: Scalar, partner: Scalar) -> Scalar:
        """A unit of a row after the rotation, from its own value and its partner's."""
        half = self._half
        low = unit < half
        rotates_all = 2 * half == self._units
        pair = select(low, unit, unit - half if rotates_all else minimum(unit - half, half - 1))
        cosine, sine = self.turn(row, position, pair)
        rotated = value * cosine + select(low, -partner, partner) * sine
        return rotated if rotates_all else select(unit < 2 * half, rotated, value)

    def rotated_pair(
        self, unit: Scalar, low: Scalar, high: Scalar, turn: tuple[Scalar, Scalar]
    ) -> tuple[Scalar, Scalar]:
        """``unit`` and its partner after the rotation; two units that are not rotated if it is not a low one."""
        cosine, sine = turn
        both = low * cosine - high * sine, high * cosine + low * sine
        if 2 * self._half == self._units:
            return both
        rotates = unit < self._half
        return select(rotates, both[0], low), select(rotates, both[1], high)

    def pair_of(self, unit: Scalar) -> Scalar:
        """The pair of a low unit; an arbitrary pair of another."""
        return unit if 2 * self._half == self._units else minimum(unit, self._half - 1)

    def turn(self, row: Scalar, position: Scalar, pair: Scalar) -> tuple[Scalar, Scalar]:
        """The cosines and the sines of a pair of units."""
        pairs_a_load = self._numbers // 2
        loads = self._lanes // pairs_a_load
        turn = row if self._by_row else position
        numbers = [self._kernel.let("turn", self._table[turn, pair * loads + i]) for i in range(loads)]
        cosine, sine = (
            [lane_of(each, 2 * i + part) for each in numbers for i in range(pairs_a_load)] for part in range(2)
        )
        return (vector(*cosine), vector(*sine)) if self._lanes > 1 else (cosine[0], sine[0])


class NewHeads:
    """The arguments "qkv", "table" and "qk_norm" (q's weights, then k's). The projection's heads are H of q, K of k and
    K of v; if the step appends nothing, the argument "q" has H heads, and "qk_norm" only q's weights. It has one row of
    weights for q and one for k, or with wide norms a row for each head.

    A kernel has "table" only if there is a rotation, and "qk_norm" only if there is a norm. All are read in units: a
    vector, or a part of it if half of the rotated elements are not whole vectors.
    """

    def __init__(self, kernel: KernelBuilder, heads: Heads, preparation: Preparation) -> None:
        self._kernel, self._heads, self._preparation = kernel, heads, preparation
        self._unit = math.gcd(heads.lanes, preparation.rotary_dim // 2)
        self._units = heads.lanes // self._unit
        appended = 2 * heads.num_kv_heads if preparation.appends else 0
        shape = (heads.rows, heads.num_heads + appended, heads.head_dim // self._unit)
        role = "qkv" if preparation.appends else "q"
        self._qkv = kernel.buffer(role, shape, with_lanes(heads.activation, self._unit))
        self._table = RotationTable(kernel, preparation, heads.head_dim, self._unit) if preparation.rotary_dim else None
        assert preparation.appends or not (self.wide or preparation.norm_after), preparation
        rows = heads.num_heads + heads.num_kv_heads if self.wide else 2 if preparation.appends else 1
        self._norm = (
            kernel.buffer("qk_norm", (rows, heads.head_dim // self._unit), floats(self._unit)) if self.normed else None
        )

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

    @property
    def whole_vectors(self) -> bool:
        """Whether a unit is a vector."""
        return self._units == 1

    @property
    def rotated_pairs(self) -> int:
        """The number of pairs of whole vectors that are rotated together: each of the first vectors with the one that
        many vectors after it.
        """
        return self._preparation.rotary_dim // 2 // self._heads.lanes if self.whole_vectors else 0

    def wide_heads(self, is_query: Scalar, is_key: Scalar | bool) -> tuple[Scalar, Scalar]:
        """The first head, and the number of heads, of the wide norm of a query or a key; no heads for neither."""
        heads = self._heads
        of_k = heads.num_kv_heads if is_key is True else select(is_key, heads.num_kv_heads, 0)
        return select(is_query, 0, heads.num_heads), select(is_query, heads.num_heads, of_k)

    def projected(self, row: Scalar, head: Scalar, index: Scalar) -> Scalar:
        """Vector ``index`` of the projection's result, float32."""
        units = [self._raw(row, head, index * self._units + i) for i in range(self._units)]
        return self._joined(units)

    def squares(self, projected: Scalar) -> Scalar:
        """The sum of the squares of a vector."""
        return sum_lanes(projected * projected, self._heads.lanes)

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
        units = []
        for i in range(self._units):
            unit = index * self._units + i
            projected = self._kernel.let("projected", self._raw(row, head, unit))
            value = self._before_rotation(projected, head, unit, factor)
            if self._table is not None:
                other = self._table.partner(unit)
                partner = self._before_rotation(self._raw(row, head, other), head, other, factor)
                value = self._table.rotated(row, position, unit, value, partner)
            value = self._after_rotation(value, head, position, unit, factor)
            if self.appends:
                is_value = head >= self._heads.num_heads + self._heads.num_kv_heads
                value = select(is_value, self.value(projected, factor), value)
            units.append(value)
        return self._joined(units)

    def turn(self, row: Scalar, position: Scalar, index: Scalar) -> tuple[Scalar, Scalar] | None:
        """The cosines and sines of vector ``index``, if it is one of the `rotated_pairs`, for `vector_pair`."""
        if self._table is None or not self.whole_vectors:
            return None
        return self._table.turn(row, position, self._table.pair_of(index))

    def vector_pair(
        self,
        head: Scalar,
        position: Scalar,
        indices: tuple[Scalar, Scalar],
        projected: tuple[Scalar, Scalar],
        factor: Scalar | None,
        turn: tuple[Scalar, Scalar] | None,
    ) -> tuple[Scalar, Scalar]:
        """Two vectors of a prepared head of q or k, from those of the projection's result. If the first is one of the
        `rotated_pairs`, the second is its partner; else neither is rotated.
        """
        assert self.whole_vectors, self._heads
        first, second = indices
        one, other = (
            self._kernel.let("normed", self._before_rotation(each, head, index, factor))
            for each, index in zip(projected, indices, strict=True)
        )
        if self._table is not None and turn is not None:
            one, other = self._table.rotated_pair(first, one, other, turn)
        return (
            self._after_rotation(one, head, position, first, factor),
            self._after_rotation(other, head, position, second, factor),
        )

    def value(self, projected: Scalar, factor: Scalar | None) -> Scalar:
        """Elements of a prepared head of v, from those of the projection's result."""
        return projected if factor is None or not self.norms_values else times(projected, factor)

    def _joined(self, units: list[Scalar]) -> Scalar:
        """The units of a vector as one."""
        if self._units == 1:
            return units[0]
        if self._unit > 1:
            # TVM's CUDA does not join vectors of several lanes.
            units = [self._kernel.let("unit", unit) for unit in units]
            units = [lane_of(unit, lane) for unit in units for lane in range(self._unit)]
        return vector(*units)

    def _raw(self, row: Scalar, head: Scalar, unit: Scalar) -> Scalar:
        return cast(self._qkv[row, head, unit], floats(self._unit))

    def _before_rotation(self, value: Scalar, head: Scalar, unit: Scalar, factor: Scalar | None) -> Scalar:
        if factor is None or self._preparation.norm_after:
            return value
        return times(value, factor) * self._weight(head, unit)

    def _after_rotation(
        self, value: Scalar, head: Scalar, position: Scalar, unit: Scalar, factor: Scalar | None
    ) -> Scalar:
        if factor is not None and self._preparation.norm_after:
            value = times(value, factor) * self._weight(head, unit)
        if self._preparation.position_scale is None:
            return value
        scale = position_factor(self._preparation.position_scale, position)
        of_query = self._kernel.let("of_query", select(head < self._heads.num_heads, scale, number(1, "float32")))
        return times(value, of_query)

    def _weight(self, head: Scalar, unit: Scalar) -> Scalar:
        """The norm's weights of a unit of q or k; arbitrary ones for v."""
        assert self._norm is not None
        heads = self._heads
        if self.wide:
            return self._norm[minimum(head, heads.num_heads + heads.num_kv_heads - 1), unit]
        return self._norm[select(head < heads.num_heads, 0, 1) if self.appends else 0, unit]


def times(value: Scalar, factor: Scalar) -> Scalar:
    """Elements times one factor."""
    return value * splat(factor, lanes_of(value))

"""The rotation of heads by position (Su et al. 2021), and the kernel rope, which only rotates."""

from __future__ import annotations

from collections.abc import Callable

from ...ir.expr import Expr
from ..builder import Array, Kernel, KernelBuilder, Scalar, cast
from .builder import CpuKernelBuilder, Isa, floats, of, pieces, ramp
from .math import fused, join


class Rotation:
    """The argument "table" (positions, R/2, 2) of a kernel: the cosine and sine of each pair (i, i + R/2) of a head's
    first R elements.
    """

    def __init__(self, kernel: KernelBuilder, isa: Isa, positions: int, rotary_dim: int) -> None:
        self._kernel, self._isa, self._rotary_dim = kernel, isa, rotary_dim
        self._table = kernel.buffer("table", (positions, rotary_dim), "float32")

    def apply(
        self, position: Scalar, load: Callable[[int, int], Scalar], store: Callable[[int, int, Scalar], None]
    ) -> None:
        """Load R elements of a head by start and lanes, and store them rotated."""
        kernel, half = self._kernel, self._rotary_dim // 2
        for start, lanes in pieces(half, self._isa.lanes):
            cosine, sine = self._angles(position, start, lanes)
            low, high = kernel.let("low", load(start, lanes)), kernel.let("high", load(half + start, lanes))
            store(start, lanes, fused(low, cosine, -(high * sine)))
            store(half + start, lanes, fused(high, cosine, low * sine))

    def _angles(self, position: Scalar, start: int, lanes: int) -> tuple[Scalar, Scalar]:
        """Cosines and sines, which alternate in the table."""
        if lanes == 1:
            return self._table[position, 2 * start], self._table[position, 2 * start + 1]
        first, second = (self._table[position, ramp(2 * start + lanes * part, lanes)] for part in range(2))
        cosines, sines = (join(first, second, lanes=list(range(odd, 2 * lanes, 2))) for odd in range(2))
        return self._kernel.let("cosine", cosines), self._kernel.let("sine", sines)


def rope(
    name: str,
    *,
    isa: Isa,
    batch: Expr,
    num_heads: int,
    head_dim: int,
    positions: int,
    rotary_dim: int,
    x_dtype: str,
    y_dtype: str,
) -> Kernel:
    """x (batch, heads, D), positions (batch,) -> like x. One task: one head of one row."""
    kernel = CpuKernelBuilder(name)
    x: Array = kernel.buffer("x", (batch, num_heads, head_dim), x_dtype)
    row_positions = kernel.buffer("positions", (batch,), "int32")
    rotation = Rotation(kernel, isa, positions, rotary_dim)
    y = kernel.buffer("y", (batch, num_heads, head_dim), y_dtype, write=True)
    with kernel.tasks("task", batch, num_heads) as task:
        row, head = kernel.split(task, num_heads, ("row", "head"))

        def load(start: int, lanes: int) -> Scalar:
            return cast(x[row, head, ramp(start, lanes)], floats(lanes))

        def store(start: int, lanes: int, value: Scalar) -> None:
            y[row, head, ramp(start, lanes)] = cast(value, of(y_dtype, lanes))

        rotation.apply(kernel.let("position", row_positions[row]), load, store)
        for start, lanes in pieces(head_dim - rotary_dim, isa.lanes):
            store(rotary_dim + start, lanes, load(rotary_dim + start, lanes))
    return kernel.finish()

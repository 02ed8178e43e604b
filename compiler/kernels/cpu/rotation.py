"""The rotation of heads by position (Su et al. 2021), and the kernel rope, which only rotates."""

from __future__ import annotations

from collections.abc import Callable

from ...ir.expr import Expr
from ...ir.heads import Preparation
from ..builder import Array, Kernel, KernelBuilder, Scalar, cast
from ..vectors import floats, join, ramp, splat, with_lanes
from .builder import CpuKernelBuilder, Isa, pieces
from .math import fused, position_factor
from .rows import rms_factor


class Rotation:
    """The argument "table" (positions, R/2, 2) of a kernel: the cosine and sine of each pair (i, i + R/2) of a head's
    first R elements, at each position, or of each row of the step.
    """

    def __init__(self, kernel: KernelBuilder, isa: Isa, preparation: Preparation) -> None:
        self._kernel, self._isa, self._rotary_dim = kernel, isa, preparation.rotary_dim
        self._by_row = preparation.by_row
        self._table = kernel.buffer("table", (preparation.positions, self._rotary_dim), "float32")

    def apply(
        self,
        row: Scalar,
        position: Scalar,
        load: Callable[[int, int], Scalar],
        store: Callable[[int, int, Scalar], None],
    ) -> None:
        """Load R elements of a head of a row by start and lanes, and store them rotated."""
        kernel, half = self._kernel, self._rotary_dim // 2
        for start, lanes in pieces(half, self._isa.lanes):
            cosine, sine = self._angles(row if self._by_row else position, start, lanes)
            low, high = kernel.let("low", load(start, lanes)), kernel.let("high", load(half + start, lanes))
            store(start, lanes, fused(low, cosine, -(high * sine)))
            store(half + start, lanes, fused(high, cosine, low * sine))

    def _angles(self, turn: Scalar, start: int, lanes: int) -> tuple[Scalar, Scalar]:
        """Cosines and sines, which alternate in the table."""
        if lanes == 1:
            return self._table[turn, 2 * start], self._table[turn, 2 * start + 1]
        first, second = (self._table[turn, ramp(2 * start + lanes * part, lanes)] for part in range(2))
        cosines, sines = (join(first, second, lanes=list(range(odd, 2 * lanes, 2))) for odd in range(2))
        return self._kernel.let("cosine", cosines), self._kernel.let("sine", sines)


def rope(
    name: str,
    *,
    isa: Isa,
    batch: Expr,
    columns: int,
    head_dim: int,
    preparation: Preparation,
    norm_width: int,
    x_dtype: str,
    y_dtype: str,
) -> Kernel:
    """x (batch, heads, D), positions (batch,), norm (E,) -> like x. One task: one head of one row, or all heads of a
    group of E columns, which is normalized first.
    """
    num_heads, rotary_dim, eps = columns // head_dim, preparation.rotary_dim, preparation.eps
    kernel, scale = CpuKernelBuilder(name), preparation.position_scale
    x: Array = kernel.buffer("x", (batch, num_heads, head_dim), x_dtype)
    row_positions = kernel.buffer("positions", (batch,), "int32")
    rotation = Rotation(kernel, isa, preparation)
    y = kernel.buffer("y", (batch, num_heads, head_dim), y_dtype, write=True)
    norm = kernel.buffer("norm", (norm_width,), "float32") if eps is not None else None
    heads = norm_width // head_dim or 1
    with kernel.tasks("task", batch, num_heads // heads) as task:
        row, group = kernel.split(task, num_heads // heads, ("row", "group"))
        first_head = kernel.let("first_head", group * heads)
        position = kernel.let("position", row_positions[row])
        of_position = None if scale is None else kernel.let("of_position", position_factor(scale, position))
        factor = None
        if eps is not None:
            flat = kernel.view(x, (batch, num_heads * head_dim), x_dtype)

            def of_group(start: Scalar, lanes: int) -> Scalar:
                return cast(flat[row, ramp(first_head * head_dim + start, lanes)], floats(lanes))

            factor = rms_factor(kernel, of_group, norm_width, eps)
        with kernel.loop("head", heads) as index:
            head = kernel.let("each_head", first_head + index)

            def load(start: int, lanes: int) -> Scalar:
                value = cast(x[row, head, ramp(start, lanes)], floats(lanes))
                if norm is None or factor is None:
                    return value
                return value * splat(factor, lanes) * norm[ramp(index * head_dim + start, lanes)]

            def store(start: int, lanes: int, value: Scalar) -> None:
                if of_position is not None:
                    value = value * splat(of_position, lanes)
                y[row, head, ramp(start, lanes)] = cast(value, with_lanes(y_dtype, lanes))

            rotation.apply(row, position, load, store)
            for start, lanes in pieces(head_dim - rotary_dim, isa.lanes):
                store(rotary_dim + start, lanes, load(rotary_dim + start, lanes))
    return kernel.finish()

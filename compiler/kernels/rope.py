"""rope: rotate the first elements of each head by position; the rest of the head is unchanged. Su et al. 2021.

One workgroup: 64 elements of one new token.
One thread: one element.
"""

from __future__ import annotations

from ..ir.expr import Expr
from .builder import Kernel, KernelBuilder, Scalar, cast
from .heads import Preparation
from .new_heads import RotationTable

THREADS = 64


def rope(
    name: str, *, rows: Expr, columns: int, head_dim: int, preparation: Preparation, x_dtype: str, y_dtype: str
) -> Kernel:
    """x (rows, columns) -> y (rows, columns); ``columns`` is a multiple of ``head_dim``. ``preparation`` has a rotation
    and no norm.
    """
    assert columns % head_dim == 0, (columns, head_dim)
    assert 0 < preparation.rotary_dim <= head_dim, preparation
    kernel = KernelBuilder(name)
    x = kernel.buffer("x", (rows, columns), x_dtype)
    table = RotationTable(kernel, preparation, head_dim)
    positions = kernel.buffer("positions", (rows,), "int32")
    y = kernel.buffer("y", (rows, columns), y_dtype, write=True)

    group_x, row = kernel.grid(-(-columns // THREADS), rows)
    column = kernel.let("column", group_x * THREADS + kernel.threads(THREADS))
    with kernel.when(column < columns if columns % THREADS else True):
        element = kernel.let("element", column % head_dim)

        def value_at(index: Scalar) -> Scalar:
            return cast(x[row, column - element + index], "float32")

        rotated = table.rotated(positions[row], element, value_at(element), value_at(table.partner(element)))
        y[row, column] = cast(rotated, y_dtype)
    return kernel.finish()

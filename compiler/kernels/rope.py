"""rope: rotate the first elements of each head by position; the rest of the head is unchanged. Su et al. 2021.

One workgroup: 64 elements of one new token, or with a norm one of its groups of columns.
One thread: one element, or with a norm every 64th element of the group (every 256th of a large one).
"""

from __future__ import annotations

from ..ir.expr import Expr
from ..ir.heads import Preparation
from .builder import Kernel, KernelBuilder, Scalar, cast, guard_below
from .maths import position_factor, rms_factor
from .new_heads import RotationTable

THREADS = 64
# The threads of a group with more columns than a head usually has.
MANY_THREADS, MANY_COLUMNS = 256, 512


def rope(
    name: str,
    *,
    rows: Expr,
    columns: int,
    head_dim: int,
    preparation: Preparation,
    norm_width: int,
    x_dtype: str,
    y_dtype: str,
) -> Kernel:
    """x (rows, columns) -> y (rows, columns); ``columns`` is a multiple of ``head_dim``. ``preparation`` has a
    rotation. Groups of ``norm_width`` columns are normalized first, unless it is 0; they are complete heads.
    """
    assert columns % head_dim == 0, (columns, head_dim)
    assert 0 < preparation.rotary_dim <= head_dim, preparation
    kernel = KernelBuilder(name)
    x = kernel.buffer("x", (rows, columns), x_dtype)
    table = RotationTable(kernel, preparation, head_dim)
    positions = kernel.buffer("positions", (rows,), "int32")
    y = kernel.buffer("y", (rows, columns), y_dtype, write=True)

    def scaled(rotated: Scalar, row: Scalar) -> Scalar:
        scale = preparation.position_scale
        return rotated if scale is None else rotated * position_factor(scale, positions[row])

    if preparation.eps is not None:
        assert norm_width % head_dim == 0 == columns % norm_width, (columns, norm_width, head_dim)
        norm = kernel.buffer("norm", (norm_width,), "float32")
        threads = MANY_THREADS if norm_width > MANY_COLUMNS else THREADS
        group, row = kernel.grid(columns // norm_width, rows)
        thread = kernel.threads(threads)

        def stored(index: Scalar) -> Scalar:
            return cast(x[row, group * norm_width + index], "float32")

        total = kernel.local("total", 1, "float32", fill=0)
        steps = -(-norm_width // threads)
        with kernel.loop("step", steps) as step:
            index = kernel.let("index", step * threads + thread)
            with kernel.when(guard_below(index, norm_width, threads)):
                each = kernel.let("each", stored(index))
                total[0] = total[0] + each * each
        squares = kernel.folded("squares", thread, threads, total[0], lambda one, other: one + other)
        factor = kernel.let("factor", rms_factor(squares, norm_width, preparation.eps))
        with kernel.loop("step", steps) as step:
            index = kernel.let("index", step * threads + thread)
            with kernel.when(guard_below(index, norm_width, threads)):
                element = kernel.let("element", index % head_dim)
                first = kernel.let("first", index - element)

                def normed(of_head: Scalar) -> Scalar:
                    return stored(first + of_head) * factor * norm[first + of_head]

                rotated = table.rotated(row, positions[row], element, normed(element), normed(table.partner(element)))
                y[row, group * norm_width + index] = cast(scaled(rotated, row), y_dtype)
        return kernel.finish()

    group_x, row = kernel.grid(-(-columns // THREADS), rows)
    column = kernel.let("column", group_x * THREADS + kernel.threads(THREADS))
    with kernel.when(column < columns if columns % THREADS else True):
        element = kernel.let("element", column % head_dim)

        def value_at(index: Scalar) -> Scalar:
            return cast(x[row, column - element + index], "float32")

        rotated = table.rotated(row, positions[row], element, value_at(element), value_at(table.partner(element)))
        y[row, column] = cast(scaled(rotated, row), y_dtype)
    return kernel.finish()

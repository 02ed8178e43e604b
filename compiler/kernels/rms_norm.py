"""rms_norm: groups of columns scaled to unit root mean square, then each column by its weight, plus a bias; then its
parts. A centered norm subtracts the group's mean first (LayerNorm).

One workgroup: one group of one row.
One thread: every 64th column of the group; then the threads' sums are added up: for a centered norm those of the
columns, then those of the squares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ..ir.expr import Expr
from ..ir.ops.parts import Part
from .builder import Kernel, KernelBuilder, Scalar, cast, guard_below, number
from .fold import Fold
from .maths import MATHS, rms_factor

THREADS = 64


def rms_norm(
    name: str,
    rows: Expr,
    columns: int,
    group: int,
    x_dtype: str,
    y_dtype: str,
    norm: Part,
    then: Sequence[Part] = (),
    y_in_scratch: bool = False,
) -> Kernel:
    """``group`` columns are normalized together: an entire row, or one of its heads. ``y_in_scratch``: y is the scratch
    buffer "normed", for the next kernel of the step.
    """
    kernel, width = KernelBuilder(name), group
    first = (norm["row"] or 0) * columns
    x = kernel.buffer("x", (rows, columns), x_dtype)
    # Groups may have weights of their own.
    own = columns if norm["groups"] > 1 else width
    weight = kernel.buffer("weight", (first + own,), "float32")
    bias = kernel.buffer("bias", (own,), "float32") if norm["bias"] else None
    store = Fold(kernel, MATHS, then, rows, columns)
    declare = partial(kernel.scratch, "normed") if y_in_scratch else partial(kernel.buffer, "y")
    y = declare((rows, columns), y_dtype, write=True)
    head, row = kernel.grid(columns // width, rows)
    thread = kernel.threads(THREADS)
    steps = -(-width // THREADS)

    def summed(what: str, term: Callable[[Scalar], Scalar]) -> Scalar:
        """The sum of a term of each column."""
        total = kernel.local(f"total_{what}", 1, "float32", fill=0)
        with kernel.loop("step", steps) as step:
            column = kernel.let("column", step * THREADS + thread)
            with kernel.when(guard_below(column, width, THREADS)):
                total[0] = total[0] + term(kernel.let("each", load(column)))
        return kernel.folded(what, thread, THREADS, total[0], lambda one, other: one + other)

    def load(column: Scalar) -> Scalar:
        value = cast(x[row, head * width + column], "float32")
        return value if mean is None else value - mean

    mean = None
    if norm["centered"]:
        mean = kernel.let("mean", summed("columns", lambda each: each) * number(1 / width, "float32"))
    squares = summed("squares", lambda each: each * each)
    scale = kernel.let("scale", rms_factor(squares, width, norm["eps"]))
    with kernel.loop("step", steps) as step:
        column = kernel.let("column", step * THREADS + thread)
        with kernel.when(guard_below(column, width, THREADS)):
            place = head * width + column
            mine = place if norm["groups"] > 1 else column
            value = load(column) * scale * weight[first + mine]
            if bias is not None:
                value = value + bias[mine]
            y[row, place] = cast(store(row, place, value), y_dtype)
    return kernel.finish()

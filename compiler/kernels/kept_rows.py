"""What the kernels of `ir/ops/drafts.py` share on GPUs and CPUs: the buffers of keep_rows, and join_kept."""

from __future__ import annotations

from collections.abc import Callable

from ..ir.expr import Expr
from ..ir.pages import KEPT
from .builder import Array, Kernel, KernelBuilder, Scalar, cast
from .cpu.builder import Isa
from .elementwise import builder
from .vectors import floats, ramp


def keep_rows_buffers(
    kernel: KernelBuilder, rows: str, columns: int, kept_dtype: str, *, by_token: bool, normed: bool
) -> tuple[Array, Array | None, Callable[[Scalar], Scalar], Array]:
    """x, the weight if rows are ``normed``, the slot of a row, and the memory as one row for each slot."""
    x = kernel.buffer("x", (rows, columns), "float32")
    weight = kernel.buffer("weight", (columns,), "float32") if normed else None
    if by_token:
        tokens = kernel.buffer("slots", ("S",), "int32")
        slot_of = lambda row: tokens[row]  # noqa: E731
        if rows != "S":
            sampled = kernel.buffer("rows", (rows,), "int32")
            slot_of = lambda row: tokens[sampled[row]]  # noqa: E731
    else:
        sampled = kernel.buffer("sample_slots", (rows, 2), "int32")
        slot_of = lambda row: sampled[row, 0]  # noqa: E731
    return x, weight, slot_of, kernel.buffer("kept", ("N", columns), kept_dtype, write=True)


def kept_count(rows: str, *, by_token: bool) -> Expr:
    """How many rows are kept: by token, none are if the heads are not used. More rows than tokens may be sampled."""
    if not by_token:
        return rows
    return KEPT if rows == "S" else ["min", ["mul", KEPT, rows], rows]


def join_kept(name: str, rows: str, columns: int, kept_dtype: str, isa: Isa | None = None) -> Kernel:
    """The rows of x, each followed by the kept row that it names. One element, or one vector, of both at a time."""
    kernel = builder(name, isa)
    x = kernel.buffer("x", (rows, columns), "float32")
    kept = kernel.buffer("kept", ("N", columns), kept_dtype)
    own = kernel.buffer("own", ("N", columns), kept_dtype)
    indices = kernel.buffer("kept_rows", (rows,), "int32")
    y = kernel.buffer("y", (rows, 2 * columns), "float32", write=True)

    def store(row: Scalar, column: Scalar, lanes: int) -> None:
        index = kernel.let("index", indices[row])
        y[row, ramp(column, lanes)] = x[row, ramp(column, lanes)]
        with kernel.when(index >= 0):
            y[row, ramp(column + columns, lanes)] = cast(kept[index, ramp(column, lanes)], floats(lanes))
        with kernel.when(index < 0):
            y[row, ramp(column + columns, lanes)] = cast(own[-1 - index, ramp(column, lanes)], floats(lanes))

    kernel.each(rows, columns, store, 64)
    return kernel.finish()

"""Kernels of encoders for rows of texts: embed_positions, near_rows and pool_rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .builder import Array, Kernel, KernelBuilder, Scalar, cast, maximum, minimum, number, rsqrt, select
from .packed import PackedMatrix, WeightFormat
from .vectors import lane_of

# The threads of a workgroup that pools.
THREADS = 64


def embed_positions(
    name: str, columns: int, weight: WeightFormat, positions: int, types: int, first_position: int
) -> Kernel:
    """Add the row of each token's position, and that of its type, to its embedding. ``positions`` and ``types`` are the
    rows of the two tables, 0 for one that does not exist.

    One thread: 8 columns of one row. One workgroup: 64 threads, 512 columns.
    """
    kernel = KernelBuilder(name)
    x = kernel.buffer("x", ("S", columns), "float32")
    tables = [
        (
            PackedMatrix(kernel, role, rows, columns, weight, blocks=False),
            kernel.buffer(index, ("S",), "int32"),
            first,
        )
        for role, index, rows, first in (
            ("position_table", "positions", positions, first_position),
            ("type_table", "token_types", types, 0),
        )
        if rows
    ]
    y = kernel.buffer("y", ("S", columns), "float32", write=True)
    block, row = kernel.grid(["ceildiv", -(-columns // 8), 64], "S")
    octet = block * 64 + kernel.threads(64)
    with kernel.when(octet * 8 < columns):
        sums: list[Scalar] | None = None
        for table, indices, first in tables:
            found = kernel.let("found", indices[row] + first)
            factor = table.scale(found, 0) if weight.per_row else None
            own = []
            for codes in table.octet(found, octet // 4, octet % 4):
                quad = kernel.let("quad", table.weights(codes, found, octet // 4, octet % 4 // 2))
                own += [lane_of(quad, lane) if factor is None else lane_of(quad, lane) * factor for lane in range(4)]
            sums = own if sums is None else [one + other for one, other in zip(sums, own, strict=True)]
        assert sums is not None
        for lane, value in enumerate(sums):
            column = octet * 8 + lane
            with kernel.when(True if columns % 8 == 0 else column < columns):
                y[row, column] = x[row, column] + value
    return kernel.finish()


def near_rows(name: str, *, columns: int, size: int) -> Kernel:
    """x (S, columns), positions (S,) -> (S, size, columns): the rows around each of its text, see `ops.encoders`.

    One thread: one column of ``size`` rows. One workgroup: 64 columns of one row.
    """
    kernel = KernelBuilder(name)
    x = kernel.buffer("x", ("S", columns), "float32")
    positions = kernel.buffer("positions", ("S",), "int32")
    y = kernel.buffer("y", ("S", size, columns), "float32", write=True)

    def copy(row: Scalar, column: Scalar, lanes: int) -> None:  # noqa: ARG001
        for index, (near, own) in enumerate(rows_around(kernel, positions, row, size)):
            y[row, index, column] = select(own, x[near, column], number(0, "float32"))

    kernel.each("S", columns, copy, THREADS)
    return kernel.finish()


def rows_around(kernel: KernelBuilder, positions: Array, row: Scalar, size: int) -> Iterator[tuple[Scalar, Scalar]]:
    """A row at each place around ``row``, and whether it is of the same text."""
    position, last = kernel.let("position", positions[row]), kernel.size("S") - 1
    for away in range(-(size // 2), size // 2 + 1):
        near = kernel.let("near", minimum(maximum(row + away, 0), last))
        yield near, positions[near] == position + away


def pool_rows(name: str, *, columns: int, mode: str) -> Kernel:
    """One row of those of each text. ``mode`` is one of `ops.encoders.POOLINGS`.

    One thread: one column. One workgroup: 64 columns of one text.
    """
    kernel = KernelBuilder(name)
    x = kernel.buffer("x", ("S", columns), "float32")
    seq_starts = kernel.buffer("seq_starts", (["add", "B", 1],), "int32")
    y = kernel.buffer("y", ("B", columns), "float32", write=True)

    def pool(text: Scalar, column: Scalar, lanes: int) -> None:  # noqa: ARG001
        start, stop = (kernel.let("bound", seq_starts[text + behind]) for behind in range(2))
        y[text, column] = pooled(kernel, mode, lambda row: x[row, column], start, stop)

    kernel.each("B", columns, pool, THREADS)
    return kernel.finish()


def pooled(kernel: KernelBuilder, mode: str, load: Callable[[Scalar], Scalar], start: Scalar, stop: Scalar) -> Scalar:
    """The pooled value of rows [start, stop)."""
    if mode in ("cls", "last_token"):
        return load(start if mode == "cls" else stop - 1)
    total = kernel.local("total", 1, "float32")
    total[0] = load(start)
    with kernel.loop("other", stop - start - 1) as other:
        each = load(start + 1 + other)
        total[0] = maximum(total[0], each) if mode == "max" else total[0] + each
    if mode == "max":
        return total[0]
    length = cast(stop - start, "float32")
    return total[0] * (number(1, "float32") / length if mode == "mean" else rsqrt(length))

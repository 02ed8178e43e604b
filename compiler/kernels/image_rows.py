"""The ops of `ir/ops/images.py`: mix_rows on GPUs; fold_rows, place_rows and rope_rows on GPUs and, with ``isa``, on
CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence

from .builder import Kernel, KernelBuilder, Scalar, all_of, number, select
from .cpu.builder import CpuKernelBuilder, Isa
from .elementwise import builder, filled
from .packed import PackedMatrix, WeightFormat
from .vectors import floats, lane_of, ramp, splat


def mix_rows(name: str, *, batch: str, columns: int, weight: WeightFormat, positions: int, taps: int) -> Kernel:
    """Add ``taps`` weighted rows of a table of ``positions`` rows to each row of x.

    One thread: 8 columns of one row. One workgroup: 64 threads, 512 columns.
    """
    kernel = KernelBuilder(name)
    x = kernel.buffer("x", (batch, columns), "float32")
    table = PackedMatrix(kernel, "table", positions, columns, weight, blocks=False)
    indices = kernel.buffer("patch_rows", (batch, taps), "int32")
    factors = kernel.buffer("patch_weights", (batch, taps), "float32")
    y = kernel.buffer("y", (batch, columns), "float32", write=True)
    block, row = kernel.grid(["ceildiv", -(-columns // 8), 64], batch)
    octet = block * 64 + kernel.threads(64)
    with kernel.when(octet * 8 < columns):
        sums = kernel.local("sums", 8, "float32", fill=0)
        with kernel.loop("tap", taps) as tap:
            found = kernel.let("found", indices[row, tap])
            factor = kernel.let("factor", factors[row, tap])
            if weight.per_row:
                factor = kernel.let("factor", factor * table.scale(found, 0))
            for half, codes in enumerate(table.octet(found, octet // 4, octet % 4)):
                quad = kernel.let("quad", table.weights(codes, found, octet // 4, octet % 4 // 2))
                for lane in range(4):
                    sums[half * 4 + lane] = sums[half * 4 + lane] + factor * lane_of(quad, lane)
        for lane in range(8):
            column = octet * 8 + lane
            with kernel.when(True if columns % 8 == 0 else column < columns):
                y[row, column] = x[row, column] + sums[lane]
    return kernel.finish()


def fold_rows(name: str, columns: int, size: int, mode: str, isa: Isa | None = None) -> Kernel:
    """Each ``size`` consecutive rows of ``columns`` become one. One element, or one vector, of the result at a time."""
    kernel = builder(name, isa)
    if mode == "join":
        # The rows of a block are one behind the other already.
        x = kernel.buffer("x", ("F", size * columns), "float32")
        y = kernel.buffer("y", ("F", size * columns), "float32", write=True)
        return filled(kernel, y, "F", size * columns, lambda row, column, lanes: x[row, ramp(column, lanes)])
    x = kernel.buffer("x", ("F", size, columns), "float32")
    y = kernel.buffer("y", ("F", columns), "float32", write=True)

    def mean(row: Scalar, column: Scalar, lanes: int) -> Scalar:
        total = kernel.local("total", 1, floats(lanes), fill=0)
        with kernel.loop("of_block", size) as index:
            total[0] = total[0] + x[row, index, ramp(column, lanes)]
        return total[0] * splat(number(1 / size, "float32"), lanes)

    return filled(kernel, y, "F", columns, mean)


def place_rows(
    name: str,
    columns: int,
    width: int,
    first: int = 0,
    adds: bool = False,
    batch: str = "S",
    features: str = "F",
    isa: Isa | None = None,
) -> Kernel:
    """Copy ``columns`` of the ``width`` of each feature, from ``first`` on, into its row of y, which holds the batch's
    embeddings, or add them. ``batch`` and ``features`` are the dims of their rows.
    """
    kernel = builder(name, isa)
    given = kernel.buffer("features", (features, width), "float32")
    rows = kernel.buffer("feature_rows", (features,), "int32")
    y = kernel.buffer("y", (batch, columns), "float32", write=True)

    def store(feature: Scalar, column: Scalar, lanes: int) -> None:
        own = given[feature, ramp(first + column, lanes)]
        place = rows[feature], ramp(column, lanes)
        y[place] = y[place] + own if adds else own

    kernel.each(features, columns, store, 64)
    return kernel.finish()


def rope_rows(
    name: str,
    batch: str,
    positions: int,
    half: int,
    num_axes: int,
    axes: Sequence[Sequence[int]],
    isa: Isa | None = None,
) -> Kernel:
    """The cosines and sines of each row, of which each pair turns by its axis. One thread, or one step of a task: one
    pair of one row.
    """
    kernel = builder(name, isa)
    table = kernel.buffer("table", (positions, half, 2), "float32")
    turns = kernel.buffer("axis_positions", (batch, num_axes), "int32")
    y = kernel.buffer("y", (batch, half, 2), "float32", write=True)

    def store(row: Scalar, pair: Scalar) -> None:
        turn = turns[row, 0]
        for axis, first, stop, step in axes:
            own = all_of(pair >= first, pair < stop, (pair - first) % step == 0 if step > 1 else True)
            turn = select(own, turns[row, axis], turn)
        turn = kernel.let("turn", turn)
        for lane in range(2):
            y[row, pair, lane] = table[turn, pair, lane]

    if isinstance(kernel, CpuKernelBuilder):
        with kernel.tasks("row", batch) as row, kernel.loop("pair", half) as pair:
            store(row, pair)
    else:
        kernel.each(batch, half, lambda row, pair, _: store(row, pair), 64)
    return kernel.finish()

"""embed_positions: the row of each token's position, and that of its type, added to its embedding.

One thread: 8 columns of one row.
One workgroup: 64 threads, 512 columns.
"""

from __future__ import annotations

from .builder import Kernel, KernelBuilder, Scalar
from .packed import PackedMatrix, WeightFormat
from .vectors import lane_of


def embed_positions(
    name: str, columns: int, weight: WeightFormat, positions: int, types: int, first_position: int
) -> Kernel:
    """``positions`` and ``types`` are the rows of the two tables, 0 for one that does not exist."""
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

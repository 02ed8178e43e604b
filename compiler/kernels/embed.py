"""embed: rows of a packed table by token id, or by the token last sampled in a slot.

One thread: 8 columns of one row.
One workgroup: 64 threads, 512 columns.
"""

from __future__ import annotations

from .builder import Kernel, KernelBuilder, all_of, maximum, minimum, number, select
from .packed import PackedMatrix, WeightFormat
from .vectors import lane_of


def embed(
    name: str,
    rows: int,
    columns: int,
    weight: WeightFormat,
    first_row: int | None,
    scale: float,
    into: bool,
    samples: bool = True,
) -> Kernel:
    """``first_row`` None means that the table has a row for every token. Otherwise tokens may lie outside it; their
    rows are unchanged with ``into``, and zero without. ``samples``: tokens may be those last sampled in a slot.
    """
    split = first_row is not None
    kernel = KernelBuilder(name)
    table = PackedMatrix(kernel, "table", rows, columns, weight, blocks=False)
    token_ids = kernel.buffer("token_ids", ("S",), "int32")
    sampled = kernel.buffer("sampled", ("N",), "int32") if samples else None
    y = kernel.buffer("y", ("S", columns), "float32", write=True)
    block, row = kernel.grid(["ceildiv", -(-columns // 8), 64], "S")
    octet = block * 64 + kernel.threads(64)
    token_id = kernel.let("token_id", token_ids[row])
    known = token_id if sampled is None else select(token_id < 0, sampled[maximum(-1 - token_id, 0)], token_id)
    table_row = kernel.let("table_row", known - (first_row or 0))
    in_table = all_of(table_row >= 0, table_row < rows) if split else True
    factor = kernel.local("factor", 1, "float32")
    with kernel.when(all_of(octet * 8 < columns, in_table if into else True)):
        chunk = octet // 4
        found = table_row if into or not split else kernel.let("found", minimum(maximum(table_row, 0), rows - 1))
        factor[0] = (table.scale(found, 0) if weight.per_row else number(1, "float32")) * number(scale, "float32")
        if split and not into:
            factor[0] = select(in_table, factor[0], number(0, "float32"))
        for half, codes in enumerate(table.octet(found, chunk, octet % 4)):
            quad = kernel.let("quad", table.weights(codes, found, chunk, octet % 4 // 2))
            for lane in range(4):
                column = octet * 8 + half * 4 + lane
                with kernel.when(True if columns % 8 == 0 else column < columns):
                    y[row, column] = lane_of(quad, lane) * factor[0]
    return kernel.finish()

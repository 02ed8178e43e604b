"""embed: rows of a packed table by token id, or by the token last sampled in a slot.

One thread: 8 columns of one row. One workgroup: 64 threads, 512 columns. A part of a split table writes only the rows that it holds.
"""

from __future__ import annotations

from .builder import Kernel, KernelBuilder, all_of, lane_of, maximum, select
from .packed import PackedMatrix, WeightFormat


def embed(name: str, rows: int, columns: int, fmt: WeightFormat, first_row: int, *, split: bool) -> Kernel:
    """``split``: the table is a part, and token ids outside of it are left to the other parts."""
    kernel = KernelBuilder(name)
    table = PackedMatrix(kernel, "table", rows, columns, fmt, blocks=False)
    token_ids = kernel.buffer("token_ids", ("S",), "int32")
    sampled = kernel.buffer("sampled", ("N",), "int32")
    y = kernel.buffer("y", ("S", columns), "float32", write=True)
    block, row = kernel.grid(["ceildiv", -(-columns // 8), 64], "S")
    octet = block * 64 + kernel.threads(64)
    token_id = kernel.let("token_id", token_ids[row])
    table_row = kernel.let("table_row", select(token_id < 0, sampled[maximum(-1 - token_id, 0)], token_id) - first_row)
    in_table = all_of(table_row >= 0, table_row < rows) if split else True
    scale = kernel.local("scale", 1, "float32")
    with kernel.when(all_of(octet * 8 < columns, in_table)):
        chunk = octet // 4
        scale[0] = table.scale(table_row, chunk)
        for half, quad in enumerate(table.octet(table_row, chunk, octet % 4)):
            for lane in range(4):
                column = octet * 8 + half * 4 + lane
                with kernel.when(True if columns % 8 == 0 else column < columns):
                    y[row, column] = (lane_of(quad, lane) - float(table.zero)) * scale[0]
    return kernel.finish()

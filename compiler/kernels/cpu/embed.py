"""embed: rows of a packed table by token id, or by the token last sampled in a slot.

One task: one row. A part of a split table writes only the rows that it holds.
"""

from __future__ import annotations

from ...quant.base import GROUP
from ..builder import Kernel, Scalar, all_of, maximum
from ..packed import WeightFormat
from ..vectors import like, ramp, take_lanes
from .builder import CpuKernelBuilder, Isa, pieces
from .packed import PackedRows


def embed(
    name: str,
    *,
    isa: Isa,
    rows: int,
    columns: int,
    weight: WeightFormat,
    first_row: int | None,
    scale: float,
    samples: bool = True,
) -> Kernel:
    """``first_row`` None: the table has a row for every token id. Otherwise it is a part; other parts write the other
    rows. ``samples``: tokens may be those last sampled in a slot.
    """
    kernel = CpuKernelBuilder(name)
    table = PackedRows(kernel, "table", rows, columns, weight, isa.lanes)
    token_ids = kernel.buffer("token_ids", ("S",), "int32")
    sampled = kernel.buffer("sampled", ("N",), "int32") if samples else None
    y = kernel.buffer("y", ("S", columns), "float32", write=True)
    with kernel.tasks("row", "S") as row:
        token_id = kernel.let("token_id", token_ids[row])
        source = kernel.local("source", 1, "int32")
        source[0] = token_id
        if sampled is not None:
            with kernel.when(token_id < 0):
                source[0] = sampled[maximum(-1 - token_id, 0)]
        table_row = kernel.let("table_row", source[0] - (first_row or 0))
        with kernel.when(all_of(table_row >= 0, table_row < rows) if first_row is not None else True):
            with kernel.loop("group", columns // GROUP) as group:
                for index, weights in enumerate(scaled(table.group(table_row, group), scale)):
                    y[row, ramp(group * GROUP + index * isa.lanes, isa.lanes)] = weights
            if columns % GROUP:
                last = columns // GROUP
                for index, weights in enumerate(scaled(table.group(table_row, last), scale)):
                    first = index * isa.lanes
                    for start, lanes in pieces(min(isa.lanes, columns % GROUP - first), isa.lanes):
                        y[row, ramp(last * GROUP + first + start, lanes)] = take_lanes(
                            weights, range(start, start + lanes)
                        )
    return kernel.finish()


def scaled(vectors: list[Scalar], scale: float) -> list[Scalar]:
    return vectors if scale == 1 else [each * like(each, scale) for each in vectors]

"""mark_logits: raise the logits of a green list in the rows that are marked, and copy the other rows.

One task: one chunk of the columns of one row.
"""

from __future__ import annotations

from ...ir.sampling import MARK
from ...ir.watermark import COLUMNS
from ..builder import Kernel, Scalar, number, reinterpret, select, truncated_quotient
from ..green_list import green_list, token_before
from ..vectors import floats, ramp, splat
from .builder import CpuKernelBuilder, Isa, pieces
from .logits import chunk_of, num_chunks


def mark_logits(name: str, *, isa: Isa, columns: int) -> Kernel:
    kernel = CpuKernelBuilder(name)
    adjusted = kernel.buffer("adjusted", ("A", columns), "float32")
    token_ids = kernel.buffer("token_ids", ("S",), "int32")
    rows = kernel.buffer("rows", ("R",), "int32")
    slots = kernel.buffer("slots", ("R", 2), "int32")
    sampled = kernel.buffer("sampled", ("N",), "int32")
    watermark = kernel.buffer("watermark", (1, COLUMNS), "int32")
    y = kernel.buffer("y", ("A", columns), "float32", write=True)

    with kernel.tasks("task", "A", num_chunks(columns)) as task:
        row, chunk = kernel.split(task, num_chunks(columns), ("row", "chunk"))
        part = chunk_of(kernel, isa, chunk, columns)
        before = token_before(kernel, token_ids, rows, sampled, row)
        listed = green_list(kernel, watermark, before, wraps=False)
        is_marked = kernel.let("is_marked", slots[row, 1] & MARK)
        strength = kernel.let("strength", reinterpret(watermark[0, COLUMNS - 1], "float32"))
        raised = kernel.let("raised", select(is_marked != 0, strength, number(0, "float32")))

        def mark(start: Scalar, lanes: int) -> None:
            here, zero = ramp(start, lanes), number(0, floats(lanes))
            y[row, here] = adjusted[row, here] + select(listed.has(here), splat(raised, lanes), zero)

        lanes = isa.lanes
        with kernel.loop("vector", truncated_quotient(part.stop - part.first, lanes)) as number_of:
            mark(part.first + number_of * lanes, lanes)
        if columns % lanes:
            with kernel.when(part.stop == columns):
                for start, rest in pieces(columns % lanes, lanes):
                    mark(columns // lanes * lanes + start, rest)
    return kernel.finish()

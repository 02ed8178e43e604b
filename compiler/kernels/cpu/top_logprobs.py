"""top_logprobs: the most likely tokens of a row, best first, and their log-probabilities.

First tasks: one chunk of the columns of one row, for its largest logit and sum of exp. Then one task: one row. Each
round finds the next best column: the first of the largest values below the round before, or equal to it and behind.
"""

from __future__ import annotations

from ...ir.sampling import ALTERNATIVES
from ..builder import Kernel, Scalar, minimum, number, select
from ..vectors import ramp, splat
from .builder import CpuKernelBuilder, Isa
from .logits import LOWEST, Columns, chunk_of, first_largest, merge_chunks, num_chunks, sum_chunk
from .math import log


def top_logprobs(name: str, *, isa: Isa, columns: int) -> Kernel:
    chunks, lanes = num_chunks(columns), isa.lanes
    kernel = CpuKernelBuilder(name)
    logits = kernel.buffer("logits", ("R", columns), "float32")
    ids = kernel.buffer("ids", ("W", min(ALTERNATIVES, columns)), "int32", write=True)
    logprobs = kernel.buffer("logprobs", ("W", min(ALTERNATIVES, columns)), "float32", write=True)
    partials = kernel.scratch("top_partials", ("W", chunks, 2), "float32", write=True)
    with kernel.tasks("task", "W", chunks) as task:
        row, chunk = kernel.split(task, chunks, ("row", "chunk"))
        high, sums = kernel.local("high", 1, "float32"), kernel.local("sums", 1, "float32")
        sum_chunk(
            kernel,
            isa,
            chunk_of(kernel, isa, chunk, columns),
            lambda start: logits[row, ramp(start, lanes)],
            high,
            sums,
        )
        partials[row, chunk, 0] = high[0]
        partials[row, chunk, 1] = sums[0]
    with kernel.tasks("row", "W") as row:
        high, sums = kernel.local("high", 1, "float32"), kernel.local("sums", 1, "float32")
        merge_chunks(kernel, partials, row, chunks, high, sums)
        log_sum = kernel.let("log_sum", log(sums[0]))
        last, last_column = (
            kernel.local("last", 1, "float32", fill=-LOWEST),
            kernel.local("last_column", 1, "int32", fill=-1),
        )
        best, column = kernel.local("best", 1, "float32"), kernel.local("column", 1, "int32")
        everything = Columns(kernel, isa, kernel.size(0), kernel.size(columns))
        with kernel.loop("rank", min(ALTERNATIVES, columns)) as rank:

            def left(start: Scalar) -> Scalar:
                """The logits that no earlier round chose."""
                x = kernel.let("x", logits[row, ramp(start, lanes)])
                numbers = ramp(start, lanes)
                behind = (x == splat(last[0], lanes)) & (numbers > splat(last_column[0], lanes))
                return select((x < splat(last[0], lanes)) | behind, x, number(LOWEST, f"float32x{lanes}"))

            first_largest(kernel, isa, everything, left, best, column)
            last[0] = best[0]
            # NaN logits are never chosen.
            last_column[0] = minimum(column[0], columns - 1)
            ids[row, rank] = last_column[0]
            logprobs[row, rank] = best[0] - high[0] - log_sum
    return kernel.finish()

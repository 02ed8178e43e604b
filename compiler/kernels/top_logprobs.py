"""top_logprobs: the most likely tokens of a row, best first, and their log-probabilities.

One workgroup: one row. Each round finds the next best column: the first of the largest values below the previous
round's, or equal to it at a later column.
One thread: every 256th column, in rising order; then the threads' candidates are folded.
"""

from __future__ import annotations

from ..ir.sampling import ALTERNATIVES
from .builder import Kernel, KernelBuilder, all_of, any_of, log, minimum
from .sample import LOWEST, THREADS, Columns, fold_largest, fold_sums


def top_logprobs(name: str, columns: int) -> Kernel:
    kernel = KernelBuilder(name)
    logits = kernel.buffer("logits", ("R", columns), "float32")
    ids = kernel.buffer("ids", ("W", min(ALTERNATIVES, columns)), "int32", write=True)
    logprobs = kernel.buffer("logprobs", ("W", min(ALTERNATIVES, columns)), "float32", write=True)
    row, _ = kernel.grid("W")
    thread = kernel.threads(THREADS)
    row_logits = Columns(kernel, thread, columns, lambda column: logits[row, column])
    values = kernel.shared("values", (THREADS,), "float32")
    sums = kernel.shared("sums", (THREADS,), "float32")
    best_columns = kernel.shared("best_columns", (THREADS,), "int32")

    fold_sums(kernel, row_logits, values, sums)
    largest = kernel.local("row_largest", 1, "float32")
    largest[0] = values[0]
    log_sum = kernel.local("log_sum", 1, "float32")
    log_sum[0] = log(sums[0])
    last_value = kernel.local("last_value", 1, "float32", fill=-LOWEST)
    last_column = kernel.local("last_column", 1, "int32", fill=-1)
    best = kernel.local("best", 1, "float32")
    best_column = kernel.local("best_column", 1, "int32")
    with kernel.loop("rank", min(ALTERNATIVES, columns)) as rank:
        best[0] = LOWEST
        best_column[0] = columns
        with row_logits.each() as (column, x):
            after = any_of(x < last_value[0], all_of(x == last_value[0], column > last_column[0]))
            # Among equals, choose the lowest column: a thread visits its columns in rising order.
            with kernel.when(all_of(after, any_of(x > best[0], best_column[0] == columns))):
                best[0] = x
                best_column[0] = column
        # All threads have read the result of the previous round.
        kernel.barrier()
        values[thread] = best[0]
        best_columns[thread] = best_column[0]
        fold_largest(kernel, thread, values, best_columns)
        last_value[0] = values[0]
        last_column[0] = best_columns[0]
        with kernel.when(thread == 0):
            # NaN logits are never chosen.
            ids[row, rank] = minimum(best_columns[0], columns - 1)
            logprobs[row, rank] = values[0] - largest[0] - log_sum[0]
    return kernel.finish()

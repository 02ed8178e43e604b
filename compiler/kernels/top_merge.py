"""top_merge: the second kernel of a `top_logprobs` of many workgroups per row. It orders the most likely tokens of all
chunks, and computes their log-probabilities.

One workgroup: one row. The chunks' best tokens are compared first: of the chunk at place p of this order, only the
first 20 - p tokens have fewer than 20 before them. One thread: some chunks; then one of the tokens that remain.
"""

from __future__ import annotations

from .builder import Kernel, KernelBuilder, Scalar, exp, log, maximum, minimum, number, select
from .sample import LOWEST, THREADS, add_up, fold_in_loop
from .sample_chunks import logit_of
from .top_chunks import CHUNK, TopRecord, kept, place_among, place_of, top_records


def top_merge(name: str, columns: int, width: int = CHUNK) -> Kernel:
    count, chunks = kept(columns), -(-columns // width)
    # The tokens of the chunk at place p begin at count + (count - 1) + .. (p terms).
    remaining = count * (count + 1) // 2
    assert remaining <= THREADS, (columns, remaining)
    kernel = KernelBuilder(name)
    records = top_records(kernel, columns, width)
    ids = kernel.buffer("ids", ("W", count), "int32", write=True)
    logprobs = kernel.buffer("logprobs", ("W", count), "float32", write=True)
    row, _ = kernel.grid("W")
    thread = kernel.threads(THREADS)
    best_keys = kernel.shared("best_keys", (chunks,), "uint32")
    keys = kernel.shared("keys", (remaining,), "uint32")
    key_columns = kernel.shared("key_columns", (remaining,), "int32")
    values = kernel.shared("values", (THREADS,), "float32")
    sums = kernel.shared("sums", (THREADS,), "float32")
    largest, total = kernel.local("largest", 1, "float32", fill=LOWEST), kernel.local("total", 1, "float32", fill=0)

    def record_of(chunk: Scalar) -> TopRecord:
        return TopRecord(records, row, chunk, count)

    turns = -(-chunks // THREADS)
    with kernel.loop("turn", turns) as turn:
        chunk = kernel.let("chunk", turn * THREADS + thread)
        with kernel.when(chunk < chunks):
            best_keys[chunk] = record_of(chunk).key(0)
            largest[0] = maximum(largest[0], record_of(chunk).largest)
    with kernel.when(thread < remaining):
        # There may be fewer chunks than places.
        keys[thread] = number(0, "uint32")
        key_columns[thread] = columns + thread
    values[thread] = largest[0]

    def fold(one: Scalar, other: Scalar) -> None:
        values[one] = maximum(values[one], values[other])

    fold_in_loop(kernel, thread, fold)
    with kernel.loop("turn", turns) as turn:
        chunk = kernel.let("chunk", turn * THREADS + thread)
        with kernel.when(chunk < chunks):
            record = record_of(chunk)
            total[0] = total[0] + record.total * exp(record.largest - values[0])
            place = kernel.let("place", place_of(kernel, best_keys, chunks, chunk, best_keys[chunk]))
            with kernel.when(place < count):
                start = kernel.let("start", place * count - place * (place - 1) // 2)
                with kernel.loop("i", count - place) as i:
                    keys[start + i] = record.key(i)
                    key_columns[start + i] = record.column(i)
    sums[thread] = total[0]
    add_up(kernel, thread, sums)
    with kernel.when(thread < remaining):
        key, column = kernel.let("key", keys[thread]), kernel.let("column", key_columns[thread])
        place = place_among(kernel, keys, key_columns, remaining, key, column)
        with kernel.when(place < count):
            # NaN logits are never chosen.
            ids[row, place] = minimum(column, columns - 1)
            value = select(key > number(0, "uint32"), logit_of(key), number(LOWEST, "float32"))
            logprobs[row, place] = value - values[0] - log(sums[0])
    return kernel.finish()

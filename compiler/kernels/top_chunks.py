"""top_chunks: the first kernel of a `top_logprobs` of many workgroups per row. It finds the most likely tokens of each
chunk of columns, and the chunk's share of the sum of exp.

One workgroup: one chunk of one row. One thread: a few adjacent columns. Nothing is sorted: a place in the order is the
number of elements before it. First the threads' best elements are compared; an element of a thread that is not among
the first 20 has at least 20 elements before it. Then the elements of these 20 threads are compared.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.sampling import ALTERNATIVES
from .builder import (
    Array,
    Kernel,
    KernelBuilder,
    Scalar,
    all_of,
    any_of,
    cast,
    exp,
    maximum,
    minimum,
    number,
    reinterpret,
    select,
)
from .sample import INFINITY, LOWEST, THREADS, add_up, fold_in_loop, key_of

# Columns of a chunk, of which each thread has adjacent ones: a compromise between the work that all chunks share and
# the number of a large GPU's cores.
CHUNK = 2048


@dataclass(frozen=True, slots=True)
class TopRecord:
    """One chunk's words in scratch: the keys of its most likely tokens and their columns, in order, and the bits of its
    largest logit and of the sum of exp(x - largest).
    """

    records: Array
    row: Scalar
    chunk: Scalar
    count: int

    def key(self, place: Scalar) -> Scalar:
        return self.records[self.row, self.chunk, place]

    def column(self, place: Scalar) -> Scalar:
        return cast(self.records[self.row, self.chunk, self.count + place], "int32")

    @property
    def largest(self) -> Scalar:
        return reinterpret(self.records[self.row, self.chunk, 2 * self.count], "float32")

    @property
    def total(self) -> Scalar:
        return reinterpret(self.records[self.row, self.chunk, 2 * self.count + 1], "float32")

    def store_token(self, place: Scalar, key: Scalar, column: Scalar) -> None:
        self.records[self.row, self.chunk, place] = key
        self.records[self.row, self.chunk, self.count + place] = cast(column, "uint32")

    def store_sums(self, largest: Scalar, total: Scalar) -> None:
        for index, value in enumerate((largest, total)):
            self.records[self.row, self.chunk, 2 * self.count + index] = reinterpret(value, "uint32")


def kept(columns: int) -> int:
    """The number of tokens that a row returns, and a chunk keeps."""
    return min(ALTERNATIVES, columns)


def top_records(kernel: KernelBuilder, columns: int, width: int, *, write: bool = False) -> Array:
    """The scratch of all records, (W, chunks, words)."""
    return kernel.scratch("top_records", ("W", -(-columns // width), 2 * kept(columns) + 2), "uint32", write=write)


def top_chunks(name: str, columns: int, width: int = CHUNK) -> Kernel:
    count, own = kept(columns), width // THREADS
    kernel = KernelBuilder(name)
    logits = kernel.buffer("logits", ("R", columns), "float32")
    records = top_records(kernel, columns, width, write=True)
    chunk, row = kernel.grid(-(-columns // width), "W")
    thread = kernel.threads(THREADS)
    best_keys = kernel.shared("best_keys", (THREADS,), "uint32")
    keys = kernel.shared("keys", (count * own,), "uint32")
    key_columns = kernel.shared("key_columns", (count * own,), "int32")
    values = kernel.shared("values", (THREADS,), "float32")
    sums = kernel.shared("sums", (THREADS,), "float32")
    record = TopRecord(records, row, chunk, count)

    mine = kernel.local("mine", own, "float32")
    own_keys = kernel.local("own_keys", own, "uint32")
    largest, total = kernel.local("largest", 1, "float32", fill=LOWEST), kernel.local("total", 1, "float32", fill=0)
    best = kernel.local("best", 1, "uint32", fill=0)
    first = kernel.let("first", chunk * width + thread * own)
    for i in range(own):
        mine[i] = logits[row, minimum(first + i, columns - 1)]
    for i in range(own):
        inside = True if columns % width == 0 else first + i < columns
        own_keys[i] = (
            ranked_key(mine[i]) if inside is True else select(inside, ranked_key(mine[i]), number(0, "uint32"))
        )
        best[0] = maximum(best[0], own_keys[i])
        with kernel.when(inside):
            largest[0] = maximum(largest[0], mine[i])
    best_keys[thread] = best[0]
    values[thread] = largest[0]

    def fold(one: Scalar, other: Scalar) -> None:
        values[one] = maximum(values[one], values[other])

    fold_in_loop(kernel, thread, fold)
    for i in range(own):
        with kernel.when(True if columns % width == 0 else first + i < columns):
            total[0] = total[0] + exp(mine[i] - values[0])
    sums[thread] = total[0]
    add_up(kernel, thread, sums)
    with kernel.when(thread == 0):
        record.store_sums(values[0], sums[0])

    # Threads are in the order of their columns.
    place = kernel.let("place", place_of(kernel, best_keys, THREADS, thread, best[0]))
    with kernel.when(place < count):
        for i in range(own):
            keys[place * own + i] = own_keys[i]
            key_columns[place * own + i] = first + i
    kernel.barrier()
    for start in range(0, count * own, THREADS):
        item = kernel.let("item", thread + start)
        with kernel.when(item < count * own):
            key, column = kernel.let("key", keys[item]), kernel.let("column", key_columns[item])
            before = place_among(kernel, keys, key_columns, count * own, key, column)
            with kernel.when(before < count):
                record.store_token(before, key, column)
    return kernel.finish()


def ranked_key(x: Scalar) -> Scalar:
    """`key_of`; NaNs, which WGSL may assume not to exist, are below all numbers."""
    is_nan = (reinterpret(x, "uint32") & number(0x7FFFFFFF, "uint32")) > number(INFINITY, "uint32")
    return select(is_nan, number(0, "uint32"), key_of(x))


def place_of(kernel: KernelBuilder, keys: Array, count: int, index: Scalar, key: Scalar) -> Scalar:
    """The number of keys before that at ``index``: greater ones, and equal ones at a lower index."""
    before = kernel.local("before", 1, "int32", fill=0)
    with kernel.loop("other", count) as other:
        precedes = any_of(keys[other] > key, all_of(keys[other] == key, other < index))
        before[0] = before[0] + select(precedes, 1, 0)
    return before[0]


def place_among(
    kernel: KernelBuilder, keys: Array, columns: Array, count: Scalar | int, key: Scalar, column: Scalar
) -> Scalar:
    """The number of elements before one: those with a greater key, and those with an equal key in a lower column."""
    before = kernel.local("before_it", 1, "int32", fill=0)
    with kernel.loop("other", count) as other:
        precedes = any_of(keys[other] > key, all_of(keys[other] == key, columns[other] < column))
        before[0] = before[0] + select(precedes, 1, 0)
    return kernel.let("place_among", before[0])

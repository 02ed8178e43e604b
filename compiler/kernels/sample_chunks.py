"""sample_chunks: the first kernel of a `sample` of many workgroups per row. It reads the logits once and describes
each chunk of columns by a record.

One workgroup: one chunk of one row. A record contains the chunk's largest logits and sum of exp and, for rows with a
temperature, its logits in falling order (bitonic sort, Batcher 1968) with the running sums of their weights, so that
`sample_merge` learns from a few elements how many logits, and what weight, are at or above a threshold.
One thread: every 256th column; then, of the sorted chunk, a few adjacent elements.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.sampling import Settings
from .builder import Array, Kernel, KernelBuilder, Scalar, any_of, cast, exp, maximum, number, reinterpret, select
from .sample import (
    SMALLEST_EXPONENT,
    THREADS,
    TOP_BIT,
    Columns,
    Largest,
    adjusted_logit,
    find_largest,
    key_of,
)

# Columns of a chunk, a power of two of at least 256. The sorted keys and a few values per thread fit into 16 KB of
# shared memory, and the vocabulary of a large model has as many chunks as a large GPU has cores.
CHUNK = 1024


@dataclass(frozen=True, slots=True)
class Record:
    """One chunk's words in scratch: keys in falling order, running sums of weights, four results and the row's
    settings. All but the keys and the column are the bits of a float32.

    The sums are relative to the chunk's largest adjusted logit. If a row has no temperature, its keys and sums are
    undefined; if it has no filter, its keys have the order of the columns.
    """

    records: Array
    row: Scalar
    chunk: Scalar
    width: int

    def key(self, index: Scalar) -> Scalar:
        return self._word(index)

    def running(self, index: Scalar) -> Scalar:
        return self._float(self.width + index)

    @property
    def raw(self) -> Scalar:
        return self._float(2 * self.width)

    @property
    def total(self) -> Scalar:
        return self._float(2 * self.width + 1)

    @property
    def best(self) -> Scalar:
        return self._float(2 * self.width + 2)

    @property
    def column(self) -> Scalar:
        return cast(self._word(2 * self.width + 3), "int32")

    @property
    def settings(self) -> Settings:
        return Settings(*(self._float(2 * self.width + 4 + index) for index in range(len(Settings._fields))))

    def store_key(self, index: Scalar, key: Scalar) -> None:
        self.records[self.row, self.chunk, index] = key

    def store_running(self, index: Scalar, value: Scalar) -> None:
        self._store(self.width + index, value)

    def store_results(self, found: Largest, settings: Settings) -> None:
        for index, value in enumerate((found.raw[0], found.total[0], found.best[0])):
            self._store(2 * self.width + index, value)
        self.records[self.row, self.chunk, 2 * self.width + 3] = cast(found.column[0], "uint32")
        for index, value in enumerate(settings):
            self._store(2 * self.width + 4 + index, value)

    def _word(self, index: Scalar) -> Scalar:
        return self.records[self.row, self.chunk, index]

    def _float(self, index: Scalar) -> Scalar:
        return reinterpret(self._word(index), "float32")

    def _store(self, index: Scalar, value: Scalar) -> None:
        self.records[self.row, self.chunk, index] = reinterpret(value, "uint32")


def records_of(kernel: KernelBuilder, columns: int, width: int, *, write: bool = False) -> Array:
    """The scratch of all records, (R, chunks, words)."""
    words = 2 * width + 4 + len(Settings._fields)
    return kernel.scratch("sample_records", ("R", -(-columns // width), words), "uint32", write=write)


def sample_chunks(name: str, columns: int, width: int = CHUNK) -> Kernel:
    kernel = KernelBuilder(name, scalars=("A",))
    logits = kernel.buffer("logits", ("R", columns), "float32")
    adjusted = kernel.buffer("adjusted", ("A", columns), "float32")
    settings = kernel.buffer("settings", ("R", len(Settings._fields)), "float32")
    records = records_of(kernel, columns, width, write=True)
    chunk, row = kernel.grid(-(-columns // width), "R")
    thread = kernel.threads(THREADS)
    setting = Settings(*(settings[row, index] for index in range(len(Settings._fields))))
    values = kernel.shared("values", (THREADS,), "float32")
    keys = kernel.shared("keys", (width,), "uint32")
    first = kernel.let("first", chunk * width)
    record = Record(records, row, chunk, width)

    # Elements after the last column sort to the end.
    with kernel.loop("i", width // THREADS) as i:
        keys[i * THREADS + thread] = number(0, "uint32")

    def keep_key(column: Scalar, x: Scalar) -> None:
        keys[column - first] = key_of(x)

    raw = Columns(kernel, thread, columns, lambda column: logits[row, column], first, width)
    found = find_largest(kernel, raw, adjusted_logit(kernel, logits, adjusted, row), values, keep_key)
    with kernel.when(thread == 0):
        record.store_results(found, setting)
    with kernel.when(setting.temperature > 0):
        filtered = any_of(setting.top_k > 0, setting.top_p < 1, setting.min_p > 0)
        # Without a filter, only the sum of all weights is used.
        with kernel.when(filtered):
            sort_falling(kernel, thread, keys, width)
        kernel.barrier()
        store_sums(kernel, thread, keys, record, found.best[0], setting.temperature, values)
    return kernel.finish()


def sort_falling(kernel: KernelBuilder, thread: Scalar, keys: Array, width: int) -> None:
    """Sort shared memory; barriers before and after are included."""
    one = number(1, "int32")
    taken = kernel.local("taken", 2, "uint32")
    kernel.barrier()
    with kernel.loop("level", width.bit_length() - 1) as level, kernel.loop("step", level + 1) as step:
        distance = kernel.let("distance", level - step)
        with kernel.loop("i", width // 2 // THREADS or 1) as i:
            pair = kernel.let("pair", i * THREADS + thread)
            with kernel.when(True if width >= 2 * THREADS else pair < width // 2):
                low = kernel.let("low", ((pair >> distance) << (distance + 1)) | (pair & ((one << distance) - 1)))
                high = kernel.let("high", low + (one << distance))
                taken[0] = keys[low]
                taken[1] = keys[high]
                falling = ((low >> (level + 1)) & 1) == 0
                with kernel.when(select(falling, taken[0] < taken[1], taken[0] > taken[1])):
                    keys[low] = taken[1]
                    keys[high] = taken[0]
        kernel.barrier()


def store_sums(
    kernel: KernelBuilder,
    thread: Scalar,
    keys: Array,
    record: Record,
    largest: Scalar,
    temperature: Scalar,
    sums: Array,
) -> None:
    """Store the sorted keys and the running sums of their weights exp((x - largest) / temperature)."""
    part = record.width // THREADS
    total = kernel.local("sorted_total", 1, "float32", fill=0)

    def weight(index: Scalar) -> Scalar:
        exponent = maximum((logit_of(keys[index]) - largest) / temperature, number(SMALLEST_EXPONENT, "float32"))
        return select(keys[index] > number(0, "uint32"), exp(exponent), number(0, "float32"))

    with kernel.loop("i", part) as i:
        total[0] = total[0] + weight(thread * part + i)
    sums[thread] = total[0]
    before = kernel.local("before_part", 1, "float32")
    kernel.barrier()
    # The sums of all threads up to each (Hillis & Steele 1986).
    with kernel.loop("level", THREADS.bit_length() - 1) as level:
        distance = kernel.let("distance", number(1, "int32") << level)
        before[0] = number(0, "float32")
        with kernel.when(thread >= distance):
            before[0] = sums[thread - distance]
        kernel.barrier()
        sums[thread] = sums[thread] + before[0]
        kernel.barrier()
    before[0] = number(0, "float32")
    with kernel.when(thread > 0):
        before[0] = sums[thread - 1]
    with kernel.loop("i", part) as i:
        index = kernel.let("index", thread * part + i)
        before[0] = before[0] + weight(index)
        record.store_running(index, before[0])
    with kernel.loop("i", part) as i:
        record.store_key(i * THREADS + thread, keys[i * THREADS + thread])


def logit_of(key: Scalar) -> Scalar:
    """The float of a key; see `key_of`."""
    top = number(TOP_BIT, "uint32")
    return reinterpret(select(key >= top, key ^ top, ~key), "float32")

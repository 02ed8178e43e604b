"""sample_chunks: the first kernel of a `sample` of many workgroups per row. It describes each chunk of columns by a
record.

One workgroup: one chunk of one row. A record contains the chunk's largest logits and sum of exp; for rows with a
temperature, the sum of its weights; and for rows with top-k or top-p, how many logits, and what weight, are at or above
each of 7 steps of a ladder, whose steps are the same in all chunks of a row. From these, `sample_merge` knows between
which steps a filter's threshold is. Nothing is sorted.
One thread: every 256th vector of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..ir.sampling import Settings
from .builder import (
    Array,
    Kernel,
    KernelBuilder,
    Scalar,
    all_of,
    any_of,
    cast,
    exp,
    floor,
    guard_below,
    magnitude,
    maximum,
    minimum,
    number,
    reinterpret,
    select,
)
from .sample import (
    INFINITY,
    LOWEST,
    SMALLEST_EXPONENT,
    THREADS,
    TOP_BIT,
    Largest,
    fold_results,
)
from .vectors import floats, lane_at, lane_of

# Columns of a chunk, a multiple of 256. Large chunks have fewer sums per column; the vocabulary of a large model still
# has 32 of them.
CHUNK = 4096
# The sums that threads add up at once.
SUMS = 8
# The steps of a ladder, and the natural logarithm of the ratio of weights between two steps. Below the last step, a
# logit has at most e^-12 of the weight of the row's largest. One more sum is that of all logits.
STEPS = SUMS - 1
STEP = 2.0
# Steps with larger numbers are not exact, nor are those of a lower temperature.
MOST_STEPS = float(1 << 21)
LOWEST_TEMPERATURE = 1e-20


@dataclass(frozen=True, slots=True)
class Record:
    """One chunk's words in scratch: four results, the row's settings, and for each step of the ladder, from the highest
    on, the number and the weight of the logits at or above it; at the end those of all. All but the column are the bits
    of a float32.

    Weights are relative to that of the chunk's largest adjusted logit. If a row has no temperature, they are undefined;
    the counts are so without top-k, and the weights of steps without top-p.
    """

    records: Array
    row: Scalar
    chunk: Scalar

    @property
    def raw(self) -> Scalar:
        return self._float(0)

    @property
    def total(self) -> Scalar:
        return self._float(1)

    @property
    def best(self) -> Scalar:
        return self._float(2)

    @property
    def column(self) -> Scalar:
        return cast(self.records[self.row, self.chunk, 3], "int32")

    @property
    def weight(self) -> Scalar:
        """The weight of all logits."""
        return self.at_step(1, STEPS)

    @property
    def settings(self) -> Settings:
        return Settings(*(self._float(4 + index) for index in range(len(Settings._fields))))

    def at_step(self, kind: Scalar, step: Scalar) -> Scalar:
        """The number (kind 0) or the weight (kind 1) of the logits at or above a step."""
        return self._float(FIXED_WORDS + kind * SUMS + step)

    def store(self, index: Scalar | int, value: Scalar) -> None:
        """Store a float32 as the word ``index``."""
        self.records[self.row, self.chunk, index] = reinterpret(value, "uint32")

    def store_largest(self, found: Largest, settings: Settings) -> None:
        self.store(0, found.raw[0])
        self.store(2, found.best[0])
        self.records[self.row, self.chunk, 3] = cast(found.column[0], "uint32")
        for index, value in enumerate(settings):
            self.store(4 + index, value)

    def store_sum(self, which: Scalar, value: Scalar) -> None:
        """Store the sum of exp (0) or the weight of all logits (1)."""
        self.store(select(which == 0, 1, FIXED_WORDS + SUMS + STEPS), value)

    def store_at_step(self, kind: Scalar, step: Scalar, value: Scalar) -> None:
        self.store(FIXED_WORDS + kind * SUMS + step, value)

    def _float(self, index: Scalar | int) -> Scalar:
        return reinterpret(self.records[self.row, self.chunk, index], "float32")


FIXED_WORDS = 4 + len(Settings._fields)


@dataclass(frozen=True, slots=True)
class Ladder:
    """Logits n * distance for all integers n, by which all chunks of a row divide their logits in the same way: one
    multiplication rounds equally everywhere.
    """

    distance: Scalar

    def at(self, number_of_step: Scalar) -> Scalar:
        return number_of_step * self.distance

    def below(self, x: Scalar) -> Scalar:
        """The number of the highest step that is not above a logit, as float32; exact up to MOST_STEPS."""
        # The quotient may be rounded across a step.
        guess = floor(x / self.distance)
        one, zero = number(1, "float32"), number(0, "float32")
        up, down = self.at(guess + one) <= x, self.at(guess) > x
        return guess + select(up, one, zero) - select(down, one, zero)

    def is_exact_at(self, x: Scalar) -> Scalar:
        return all_of(
            self.distance > number(LOWEST_TEMPERATURE * STEP, "float32"),
            magnitude(x / self.distance) < number(MOST_STEPS, "float32"),
        )


def ladder_of(temperature: Scalar) -> Ladder:
    return Ladder(temperature * number(STEP, "float32"))


def coldness_of(temperature: Scalar) -> Scalar:
    """The reciprocal of a temperature. At the lowest ones, only logits that equal the largest have a weight anyway."""
    return number(1, "float32") / maximum(temperature, number(1e-30, "float32"))


def weight_at(below_largest: Scalar, coldness: Scalar) -> Scalar:
    """The weight of a logit, relative to that of the largest, from the difference between them."""
    return exp(maximum(below_largest * coldness, number(SMALLEST_EXPONENT, "float32")))


def records_of(kernel: KernelBuilder, columns: int, width: int, *, write: bool = False) -> Array:
    """The scratch of all records, (R, chunks, words)."""
    words = FIXED_WORDS + 2 * SUMS
    return kernel.scratch("sample_records", ("R", -(-columns // width), words), "uint32", write=write)


@dataclass(frozen=True, slots=True)
class Vectors:
    """One row's logits in vectors of adjacent columns: the raw ones, and the adjusted ones, which are the raw ones if
    no row of the batch is adjusted.
    """

    kernel: KernelBuilder
    row: Scalar
    columns: int
    width: int
    raw: Array
    adjusted: Array

    @property
    def lanes(self) -> int:
        """The columns of a vector: 4 if each of 256 threads has the same number of whole vectors of a chunk."""
        return lanes_of_loads(self.columns, self.width)

    def index_in(self, chunk: Scalar, index: Scalar) -> Scalar:
        """The index in the row of a chunk's vector."""
        return chunk * (self.width // self.lanes) + index

    def inside(self, index: Scalar) -> Scalar | bool:
        return guard_below(index, self.columns // self.lanes, self.width // self.lanes)

    def load(self, index: Scalar, into: Array, place: Scalar | int, raw: Array | None = None) -> None:
        """Load an adjusted vector, and the raw one, into registers. An index after the row's last one loads that."""
        kernel = self.kernel
        if self.inside(index) is not True:
            index = minimum(index, self.columns // self.lanes - 1)
        if raw is not None:
            raw[place] = self.raw[self.row, index]
        with kernel.when(kernel.size("A") > 0):
            into[place] = self.adjusted[self.row, index]
        with kernel.when(kernel.size("A") == 0):
            into[place] = self.raw[self.row, index] if raw is None else raw[place]

    def raw_logit(self, column: Scalar) -> Scalar:
        return self._one(self.raw[self.row, column // self.lanes], column)

    def logit(self, column: Scalar, loaded: Array) -> Scalar:
        """An adjusted logit; ``loaded`` (1,) are registers of a vector."""
        self.load(column // self.lanes, loaded, 0)
        return self._one(loaded[0], column)

    def _one(self, vector: Scalar, column: Scalar) -> Scalar:
        return vector if self.lanes == 1 else lane_at(vector, column % self.lanes)


def lanes_of_loads(columns: int, width: int) -> int:
    return 4 if columns % 4 == 0 and width % (4 * THREADS) == 0 else 1


def logits_of(kernel: KernelBuilder, columns: int, width: int) -> tuple[Array, Array]:
    """The arguments "logits" and "adjusted", by vectors."""
    lanes = lanes_of_loads(columns, width)
    raw = kernel.buffer("logits", ("R", columns // lanes), floats(lanes))
    return raw, kernel.buffer("adjusted", ("A", columns // lanes), floats(lanes))


def sample_chunks(name: str, columns: int, width: int = CHUNK) -> Kernel:
    kernel = KernelBuilder(name, scalars=("A",))
    buffers = logits_of(kernel, columns, width)
    settings = kernel.buffer("settings", ("R", len(Settings._fields)), "float32")
    records = records_of(kernel, columns, width, write=True)
    chunk, row = kernel.grid(-(-columns // width), "R")
    thread = kernel.threads(THREADS)
    setting = Settings(*(kernel.let(name, settings[row, index]) for index, name in enumerate(Settings._fields)))
    values = kernel.shared("values", (THREADS,), "float32")
    bests = kernel.shared("bests", (THREADS,), "float32")
    best_columns = kernel.shared("best_columns", (THREADS,), "int32")
    scratch = kernel.shared("scratch", (SUMS * THREADS,), "float32")
    record = Record(records, row, chunk)
    vectors = Vectors(kernel, row, columns, width, *buffers)
    lanes, own = vectors.lanes, width // THREADS // vectors.lanes
    raws, adjusted = (kernel.local(name, own, floats(lanes)) for name in ("raws", "window"))

    def index_of(i: Scalar) -> Scalar:
        return vectors.index_in(chunk, i * THREADS + thread)

    found = Largest(
        kernel.local("raw_largest", 1, "float32", fill=LOWEST),
        kernel.local("raw_total", 1, "float32", fill=0),
        kernel.local("best", 1, "float32", fill=LOWEST),
        kernel.local("token", 1, "int32", fill=0),
    )
    with kernel.loop("i", own) as i:
        vectors.load(index_of(i), adjusted, i, raws)
    x, weight = kernel.local("x", 1, "float32"), kernel.local("one_weight", 1, "float32")
    with kernel.loop("i", own) as i, kernel.when(vectors.inside(index_of(i))):
        for lane in range(lanes):
            x[0] = lane_of(raws[i], lane)
            found.raw[0] = maximum(found.raw[0], x[0])
            # WGSL may assume that no float is a NaN, so this tests the bits.
            with kernel.when((reinterpret(x[0], "uint32") & number(INFINITY, "uint32")) == number(INFINITY, "uint32")):
                found.best[0] = -LOWEST
            x[0] = lane_of(adjusted[i], lane)
            with kernel.when(x[0] > found.best[0]):
                found.best[0] = x[0]
                found.column[0] = index_of(i) * lanes + lane
    fold_results(kernel, thread, found, values, bests, best_columns)
    with kernel.when(thread == 0):
        record.store_largest(found, setting)

    weights = kernel.local("weights", 1, "float32", fill=0)
    coldness = kernel.let("coldness", coldness_of(setting.temperature))

    def weight_of(x: Scalar) -> Scalar:
        return weight_at(x - found.best[0], coldness)

    # With top-p, the weights are added below.
    all_weights = kernel.let("all_weights", all_of(setting.temperature > 0, setting.top_p >= 1))
    with kernel.loop("i", own) as i, kernel.when(vectors.inside(index_of(i))):
        for lane in range(lanes):
            found.total[0] = found.total[0] + exp(lane_of(raws[i], lane) - found.raw[0])
        with kernel.when(all_weights):
            for lane in range(lanes):
                weights[0] = weights[0] + weight_of(lane_of(adjusted[i], lane))
    kernel.barrier()

    def store_sum(which: Scalar, value: Scalar) -> None:
        with kernel.when(any_of(which == 0, all_weights)):
            record.store_sum(which, value)

    add_up_all(kernel, thread, [found.total[0], weights[0]], scratch, values, store_sum)

    ladder = ladder_of(setting.temperature)
    sums = kernel.local("sums", SUMS, "float32")
    steps = kernel.local("steps", STEPS, "float32")
    with (
        kernel.when(setting.temperature > 0),
        kernel.loop("kind", 2) as kind,
        kernel.when(select(kind == 0, setting.top_k > 0, setting.top_p < 1)),
    ):
        highest = kernel.let("highest", ladder.below(found.best[0]))
        for step in range(STEPS):
            steps[step] = ladder.at(highest - number(step, "float32"))
        for each in range(SUMS):
            sums[each] = 0
        with kernel.loop("i", own) as i, kernel.when(vectors.inside(index_of(i))):
            for lane in range(lanes):
                x[0] = lane_of(adjusted[i], lane)
                weight[0] = select(kind == 0, number(1, "float32"), weight_of(x[0]))
                for step in range(STEPS):
                    sums[step] = sums[step] + cast(x[0] >= steps[step], "float32") * weight[0]
                sums[STEPS] = sums[STEPS] + weight[0]
        kernel.barrier()
        add_up_all(
            kernel,
            thread,
            [sums[each] for each in range(SUMS)],
            scratch,
            values,
            lambda step, value: record.store_at_step(kind, step, value),
        )
    return kernel.finish()


def add_up_all(
    kernel: KernelBuilder,
    thread: Scalar,
    values: Sequence[Scalar],
    scratch: Array,
    parts: Array,
    store: Callable[[Scalar, Scalar], None],
) -> None:
    """Call ``store`` with each index and the sum of that value over all 256 threads. ``scratch`` (SUMS * 256,) and
    ``parts`` (256,) are shared memory.
    """
    assert len(values) <= SUMS, len(values)
    lanes = THREADS // SUMS
    total = kernel.local("sum_of_threads", 1, "float32")
    for i, value in enumerate(values):
        scratch[i * THREADS + thread] = value
    kernel.barrier()
    with kernel.when(True if len(values) == SUMS else thread < len(values) * lanes):
        total[0] = number(0, "float32")
        with kernel.loop("part", THREADS // lanes) as part:
            total[0] = total[0] + scratch[thread // lanes * THREADS + part * lanes + thread % lanes]
        parts[thread] = total[0]
    kernel.barrier()
    with kernel.when(thread < len(values)):
        total[0] = number(0, "float32")
        with kernel.loop("lane", lanes) as lane:
            total[0] = total[0] + parts[thread * lanes + lane]
        store(thread, total[0])


def logit_of(key: Scalar) -> Scalar:
    """The float of a key; see `key_of`."""
    top = number(TOP_BIT, "uint32")
    return reinterpret(select(key >= top, key ^ top, ~key), "float32")

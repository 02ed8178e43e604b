"""sample_merge: the second kernel of a `sample` of many workgroups per row. It chooses the token from the records of
`sample_chunks`, and reads only the chunks that may contain it.

One workgroup: one row. The records place a filter's threshold between two steps of the ladder. Each round then divides
the range by 7 pivots and sums, for each, the logits at or above it. The first rounds read the row's logits and collect
those in the range; once they fit into workgroup memory, the other rounds read them from there. With the
thresholds, the chunks' weights are summed, in the order of the columns; the chunk, and then the column, that contain
the draw are searched.
One thread: one or a few chunks; every 256th vector of columns; then a few columns of the chosen chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
    log,
    maximum,
    minimum,
    number,
    select,
)
from .sample import (
    DIGIT_BITS,
    DIGITS,
    GROUPS,
    LOWEST,
    PASSES,
    THREADS,
    Columns,
    Largest,
    add_up,
    draw_in_block,
    first_beyond,
    fold_results,
    key_of,
    store_token,
)
from .sample_chunks import (
    CHUNK,
    STEPS,
    SUMS,
    Record,
    Vectors,
    coldness_of,
    ladder_of,
    logit_of,
    logits_of,
    records_of,
    weight_at,
)
from .vectors import floats, lane_of

# The logits of a range that a thread collects. Sums of threads need the rest of 16 KB of workgroup memory.
COLLECTED = 7
# The first rounds of a search divide a range of logits, the others one of keys, until it has one key.
VALUE_ROUNDS = 4
# The threads that read a chunk together, when the chunks' weights are summed.
GROUP = 32
# The loads of a thread that are in flight together.
LOADS_AHEAD = 4


def sample_merge(name: str, columns: int, width: int = CHUNK) -> Kernel:
    chunks = -(-columns // width)
    kernel = KernelBuilder(name, scalars=("A",))
    buffers = logits_of(kernel, columns, width)
    slots = kernel.buffer("slots", ("R", 2), "int32")
    sampled = kernel.buffer("sampled", ("N",), "int32", write=True)
    counts = kernel.buffer("counts", ("N", columns), "int32", write=True)
    y = kernel.buffer("y", ("R",), "int32", write=True)
    logprobs = kernel.buffer("logprobs", ("R",), "float32", write=True)
    records = records_of(kernel, columns, width)
    row, _ = kernel.grid("R")
    thread = kernel.threads(THREADS)
    values = kernel.shared("values", (THREADS,), "float32")
    vectors = Vectors(kernel, row, columns, width, *buffers)

    def record_of(chunk: Scalar) -> Record:
        return Record(records, row, minimum(chunk, chunks - 1))

    found = merge_largest(kernel, thread, record_of, chunks, values)
    # The batch input is not bound here: with it, there would be more buffers than every device can bind.
    settings = zip(Settings._fields, record_of(number(0, "int32")).settings, strict=True)
    setting = Settings(*(kernel.let(name, value) for name, value in settings))
    with kernel.when(setting.temperature > 0):
        Draw(kernel, thread, vectors, setting, found.best[0], record_of, values).choose(found.column)
    store_token(kernel, thread, row, found, vectors.raw_logit, slots, sampled, counts, y, logprobs)
    return kernel.finish()


def merge_largest(
    kernel: KernelBuilder, thread: Scalar, record_of: Callable[[Scalar], Record], chunks: int, values: Array
) -> Largest:
    """The results of all chunks as those of the row; ``values`` (256,) is shared memory, free afterwards."""
    per_thread = -(-chunks // THREADS)
    bests = kernel.shared("bests", (THREADS,), "float32")
    best_columns = kernel.shared("best_columns", (THREADS,), "int32")
    found = Largest(
        kernel.local("raw_largest", 1, "float32", fill=LOWEST),
        kernel.local("raw_total", 1, "float32", fill=0),
        kernel.local("best", 1, "float32", fill=LOWEST),
        kernel.local("token", 1, "int32", fill=0),
    )
    with kernel.loop("i", per_thread) as i:
        chunk = kernel.let("chunk", thread * per_thread + i)
        with kernel.when(chunk < chunks):
            record = record_of(chunk)
            found.raw[0] = maximum(found.raw[0], record.raw)
            with kernel.when(record.best > found.best[0]):
                found.best[0] = record.best
                found.column[0] = record.column
    fold_results(kernel, thread, found, values, bests, best_columns)
    with kernel.loop("i", per_thread) as i:
        chunk = kernel.let("chunk", thread * per_thread + i)
        with kernel.when(chunk < chunks):
            record = record_of(chunk)
            found.total[0] = found.total[0] + record.total * exp(record.raw - found.raw[0])
    kernel.barrier()
    values[thread] = found.total[0]
    add_up(kernel, thread, values)
    found.total[0] = values[0]
    kernel.barrier()
    return found


class Draw:
    """The choice of a row with a temperature. ``largest`` is its largest logit; ``parts`` (256,) is shared memory."""

    def __init__(
        self,
        kernel: KernelBuilder,
        thread: Scalar,
        vectors: Vectors,
        setting: Settings,
        largest: Scalar,
        record_of: Callable[[Scalar], Record],
        parts: Array,
    ) -> None:
        self._kernel, self._thread, self._vectors, self._parts = kernel, thread, vectors, parts
        self._chunks, self._loads = -(-vectors.columns // vectors.width), vectors.width // vectors.lanes
        self._window = kernel.local("window", LOADS_AHEAD, floats(vectors.lanes))
        self._vector = kernel.local("vector", 1, floats(vectors.lanes))
        self._chunk_best = kernel.local("chunk_best", 1, "float32")
        self._x, self._each = (kernel.local(name, 1, "float32") for name in ("x", "each"))
        self._key = kernel.local("key", 1, "uint32")
        self._setting, self._largest, self._record_of = setting, largest, record_of
        self._coldness = kernel.let("coldness", coldness_of(setting.temperature))
        self._ladder = ladder_of(setting.temperature)
        self._masses = kernel.shared("masses", (self._chunks,), "float32")
        self._steps = kernel.shared("steps", (STEPS,), "float32")
        self._scratch = kernel.shared("scratch", (SUMS * THREADS // 2,), "float32")
        self._totals = kernel.shared("totals", (SUMS,), "float32")
        self._groups = kernel.shared("groups", (GROUPS,), "float32")
        self._collected = kernel.shared("collected", (COLLECTED * THREADS,), "uint32")
        # The lowest key that all filters keep, and the range that contains a filter's threshold, without its end.
        self._lowest_key = kernel.local("lowest_key", 1, "uint32", fill=0)
        self._start, self._end = (kernel.local(name, 1, "uint32") for name in ("start", "end"))
        # What is at or above the end of the range, and what a filter keeps at least.
        self._above, self._goal = (kernel.local(name, 1, "float32") for name in ("above", "goal"))

    def choose(self, token: Array) -> None:
        """Set ``token`` to the token drawn."""
        kernel, setting, largest = self._kernel, self._setting, self._largest
        # Top-k counts logits; top-p adds the weights of those that top-k kept; the draw is among those of all filters.
        with (
            kernel.loop("stage", 3) as stage,
            kernel.when(select(stage == 0, setting.top_k > 0, any_of(stage == 2, setting.top_p < 1))),
        ):
            with kernel.when(stage == 2):
                with kernel.when(setting.min_p > 0):
                    # The computed log of 1 may be slightly above 0.
                    lowest = largest + setting.temperature * minimum(log(setting.min_p), number(0, "float32"))
                    self._lowest_key[0] = maximum(self._lowest_key[0], key_of(lowest))
                # Rounding may leave sums below the goal; the largest is always kept.
                self._lowest_key[0] = minimum(self._lowest_key[0], key_of(largest))
            self._sum_chunks()
            share = select(stage == 1, setting.top_p, setting.draw)
            self._goal[0] = select(stage == 0, setting.top_k, self._goal[0] * share)
            with kernel.when(stage < 2):
                self._place(stage)
                self._search(stage)
        chosen_chunk = kernel.local("chosen_chunk", 1, "int32")
        first_beyond(kernel, self._chunks, lambda i: self._masses[i], self._goal, chosen_chunk)

        row = Columns(kernel, self._thread, self._vectors.columns, lambda i: self._vectors.logit(i, self._window))
        width = self._vectors.width
        draw_in_block(
            kernel, row, self._kept_weight, width, chosen_chunk[0], self._goal, self._parts, self._groups, token
        )

    def _weight(self, x: Scalar) -> Scalar:
        return weight_at(x - self._largest, self._coldness)

    def _kept_weight(self, x: Scalar) -> Scalar:
        return select(key_of(x) >= self._lowest_key[0], self._weight(x), number(0, "float32"))

    def _sum_chunks(self) -> None:
        """Store the weight of what each chunk keeps in ``masses``, and that of the row in ``goal``."""
        kernel, thread, vectors = self._kernel, self._thread, self._vectors
        lane = kernel.let("group_lane", thread % GROUP)
        mass = kernel.local("mass", 1, "float32")
        filtered = kernel.let("filtered", self._lowest_key[0] > number(0, "uint32"))
        groups = THREADS // GROUP
        with kernel.loop("turn", -(-self._chunks // groups)) as turn:
            chunk = kernel.let("chunk", turn * groups + thread // GROUP)
            record = self._record_of(chunk)
            self._chunk_best[0] = record.best
            mass[0] = number(0, "float32")
            with kernel.when(
                all_of(filtered, chunk < self._chunks, key_of(self._chunk_best[0]) >= self._lowest_key[0])
            ):
                first = kernel.let("first", vectors.index_in(chunk, lane))
                for x in self._each_of(first, GROUP, self._loads // GROUP):
                    mass[0] = mass[0] + self._kept_weight(x)
            self._parts[thread] = mass[0]
            kernel.barrier()
            with kernel.when(all_of(lane == 0, chunk < self._chunks)):
                mass[0] = record.weight * self._weight(self._chunk_best[0])
                with kernel.when(filtered):
                    mass[0] = number(0, "float32")
                    with kernel.loop("other", GROUP) as other:
                        mass[0] = mass[0] + self._parts[thread + other]
                self._masses[chunk] = mass[0]
            kernel.barrier()
        self._goal[0] = number(0, "float32")
        with kernel.loop("chunk", self._chunks) as chunk:
            self._goal[0] = self._goal[0] + self._masses[chunk]

    def _place(self, stage: Scalar) -> None:
        """Set the range that contains the threshold, by the ladder, and what is above the range."""
        kernel, thread, ladder = self._kernel, self._thread, self._ladder
        highest = kernel.let("highest", ladder.below(self._largest))
        lanes = THREADS // SUMS
        mine = kernel.local("at_step", 1, "float32", fill=0)
        with kernel.loop("turn", -(-self._chunks // lanes)) as turn:
            chunk = kernel.let("chunk", turn * lanes + thread % lanes)
            record = self._record_of(chunk)
            self._chunk_best[0] = record.best
            lower = minimum(highest - ladder.below(self._chunk_best[0]), number(STEPS, "float32"))
            step = kernel.let("step", thread // lanes - cast(lower, "int32"))
            with kernel.when(all_of(chunk < self._chunks, step >= 0, step < STEPS)):
                scale = select(stage == 0, number(1, "float32"), self._weight(self._chunk_best[0]))
                mine[0] = mine[0] + record.at_step(stage, step) * scale
        self._parts[thread] = mine[0]
        kernel.barrier()
        self._fold_parts(mine, STEPS, lanes, self._steps)
        self._start[0] = number(0, "uint32")
        self._end[0] = key_of(self._largest) + number(1, "uint32")
        self._above[0] = number(0, "float32")
        with (
            kernel.when(ladder.is_exact_at(self._largest)),
            kernel.loop("step", STEPS) as step,
            kernel.when(self._start[0] == number(0, "uint32")),
        ):
            key = kernel.let("key", key_of(ladder.at(highest - cast(step, "float32"))))
            reached = kernel.let("reached", cast(self._steps[step] >= self._goal[0], "int32"))
            with kernel.when(reached == 1):
                self._start[0] = key
            with kernel.when(reached == 0):
                self._end[0] = key
                self._above[0] = self._steps[step]
        self._start[0] = maximum(self._start[0], self._lowest_key[0])

    def _search(self, stage: Scalar) -> None:
        """Raise ``lowest_key`` to the largest key such that what is at or above it reaches the goal."""
        kernel, thread, start, end = self._kernel, self._thread, self._start, self._end
        taken = kernel.local("taken", 1, "int32", fill=0)
        collected = kernel.local("is_collected", 1, "int32", fill=0)
        sums = kernel.local("sums", SUMS, "float32")
        pivots = kernel.local("pivots", DIGITS, "uint32")
        is_closed = kernel.local("is_closed", 1, "int32")
        one = number(1, "uint32")
        key, each = self._key, self._each

        def add(x: Scalar) -> None:
            each[0] = select(stage == 0, number(1, "float32"), self._weight(x))
            for d in range(DIGITS):
                sums[d] = sums[d] + select(key[0] >= pivots[d], each[0], number(0, "float32"))

        def consider(x: Scalar) -> None:
            key[0] = key_of(x)
            with kernel.when(all_of(key[0] >= start[0], key[0] < end[0])):
                add(x)
                with kernel.when(taken[0] < COLLECTED):
                    self._collected[taken[0] * THREADS + thread] = key[0]
                taken[0] = taken[0] + 1

        with kernel.loop("round", VALUE_ROUNDS + PASSES) as round_:
            open_ = kernel.let("open", all_of(end[0] > start[0], end[0] - start[0] > one))
            for d in range(SUMS):
                sums[d] = 0
            with kernel.when(round_ < VALUE_ROUNDS):
                self._divide_values(round_, pivots)
            with kernel.when(round_ >= VALUE_ROUNDS):
                width = kernel.let("width", ((end[0] - start[0] - one) >> number(DIGIT_BITS, "uint32")) + one)
                for d in range(DIGITS):
                    pivots[d] = start[0] + width * number(d + 1, "uint32")
            with kernel.when(all_of(open_, collected[0] == 0)):
                taken[0] = 0
                self._each_from(start[0], consider)
                sums[DIGITS] = select(taken[0] > COLLECTED, number(1, "float32"), number(0, "float32"))
            with (
                kernel.when(all_of(open_, collected[0] == 1)),
                kernel.loop("i", taken[0]) as i,
            ):
                key[0] = self._collected[i * THREADS + thread]
                with kernel.when(all_of(key[0] >= start[0], key[0] < end[0])):
                    add(logit_of(key[0]))
            self._add_up(sums)
            with kernel.when(open_):
                with kernel.when(self._totals[DIGITS] == 0):
                    collected[0] = 1
                is_closed[0] = 0
                for d in range(DIGITS):
                    reached = all_of(self._totals[d] + self._above[0] >= self._goal[0], pivots[d] < end[0])
                    with kernel.when(is_closed[0] == 0):
                        is_closed[0] = select(reached, 0, 1)
                        with kernel.when(is_closed[0] == 0):
                            start[0] = maximum(start[0], pivots[d])
                        with kernel.when(is_closed[0] == 1):
                            end[0] = minimum(end[0], pivots[d])
                            self._above[0] = self._above[0] + self._totals[d]
        self._lowest_key[0] = maximum(self._lowest_key[0], start[0])

    def _divide_values(self, round_: Scalar, pivots: Array) -> None:
        """Set the pivots to logits at equal distances within the range; if it has no start, below its end, each twice
        as far as the next. Equal ranges of keys would mostly be numbers near 0.
        """
        kernel, start, end = self._kernel, self._start, self._end
        low, high = kernel.let("low", logit_of(start[0])), kernel.let("high", logit_of(end[0]))
        reach = self._each
        reach[0] = self._ladder.distance
        with kernel.loop("i", round_):
            reach[0] = reach[0] * number(1 << DIGITS, "float32")
        for d in range(DIGITS):
            self._x[0] = low + (high - low) * number((d + 1) / (DIGITS + 1), "float32")
            with kernel.when(start[0] == number(0, "uint32")):
                self._x[0] = high - reach[0] * number(1 << (DIGITS - 1 - d), "float32")
            pivots[d] = key_of(self._x[0])

    def _each_from(self, key: Scalar, body: Callable[[Scalar], None]) -> None:
        """Call ``body`` with the thread's logits of all chunks that contain one at or above a key."""
        kernel, vectors = self._kernel, self._vectors
        with kernel.loop("chunk", self._chunks) as chunk:
            self._chunk_best[0] = self._record_of(chunk).best
            with kernel.when(key_of(self._chunk_best[0]) >= key):
                first = kernel.let("first", vectors.index_in(chunk, self._thread))
                for x in self._each_of(first, THREADS, self._loads // THREADS):
                    body(x)

    def _each_of(self, first: Scalar, stride: int, count: int) -> Iterator[Scalar]:
        """The logits of every ``stride``-th vector that is inside the row, within a loop that loads the next vectors in
        advance.
        """
        kernel, vectors, ahead = self._kernel, self._vectors, min(LOADS_AHEAD, count)
        for i in range(ahead):
            vectors.load(first + i * stride, self._window, i)
        with kernel.loop("i", count) as i:
            self._vector[0] = self._window[0]
            for later in range(1, ahead):
                self._window[later - 1] = self._window[later]
            with kernel.when(i < count - ahead):
                vectors.load(first + (i + ahead) * stride, self._window, ahead - 1)
            with kernel.when(vectors.inside(first + i * stride)):
                for lane in range(vectors.lanes):
                    self._x[0] = lane_of(self._vector[0], lane)
                    yield self._x[0]

    def _add_up(self, sums: Array) -> None:
        """Store the sums of all threads in ``totals``."""
        kernel, thread, scratch, half = self._kernel, self._thread, self._scratch, THREADS // 2
        with kernel.when(thread >= half):
            for d in range(SUMS):
                scratch[d * half + thread - half] = sums[d]
        kernel.barrier()
        with kernel.when(thread < half):
            for d in range(SUMS):
                scratch[d * half + thread] = sums[d] + scratch[d * half + thread]
        kernel.barrier()
        lanes = half // SUMS
        part = kernel.local("part_of_totals", 1, "float32")
        with kernel.when(thread < half):
            part[0] = number(0, "float32")
            with kernel.loop("i", half // lanes) as i:
                part[0] = part[0] + scratch[thread // lanes * half + i * lanes + thread % lanes]
            self._parts[thread] = part[0]
        kernel.barrier()
        self._fold_parts(part, SUMS, lanes, self._totals)

    def _fold_parts(self, total: Array, count: int, lanes: int, results: Array) -> None:
        """Store ``count`` sums, each of the parts of ``lanes`` threads, in ``results``. ``total`` is a local."""
        kernel, thread = self._kernel, self._thread
        with kernel.when(thread < count):
            total[0] = number(0, "float32")
            with kernel.loop("i", lanes) as i:
                total[0] = total[0] + self._parts[thread * lanes + i]
            results[thread] = total[0]
        kernel.barrier()

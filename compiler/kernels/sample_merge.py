"""sample_merge: the second kernel of a `sample` of many workgroups per row. It chooses the token from the records of
`sample_chunks`, and reads logits only of the chunk that contains it.

One workgroup: one row. A filter's threshold is found bit by bit: in each round, each thread counts its chunks' logits
at or above the threshold that is tried, by a binary search in their sorted keys.
One thread: one chunk, or a few adjacent ones; then a few columns of the chosen chunk.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir.sampling import Settings
from .builder import Array, Kernel, KernelBuilder, Scalar, cast, exp, log, maximum, minimum, number, select
from .sample import (
    LOWEST,
    SMALLEST_EXPONENT,
    THREADS,
    Columns,
    Largest,
    add_up,
    adjusted_logit,
    draw_in_block,
    first_beyond,
    fold_in_loop,
    fold_largest,
    key_of,
    store_token,
)
from .sample_chunks import CHUNK, Record, records_of


def sample_merge(name: str, columns: int, width: int = CHUNK) -> Kernel:
    chunks = -(-columns // width)
    kernel = KernelBuilder(name, scalars=("A",))
    logits = kernel.buffer("logits", ("R", columns), "float32")
    adjusted = kernel.buffer("adjusted", ("A", columns), "float32")
    slots = kernel.buffer("slots", ("R", 2), "int32")
    sampled = kernel.buffer("sampled", ("N",), "int32", write=True)
    counts = kernel.buffer("counts", ("N", columns), "int32", write=True)
    y = kernel.buffer("y", ("R",), "int32", write=True)
    logprobs = kernel.buffer("logprobs", ("R",), "float32", write=True)
    records = records_of(kernel, columns, width)
    row, _ = kernel.grid("R")
    thread = kernel.threads(THREADS)
    values = kernel.shared("values", (THREADS,), "float32")

    def record_of(chunk: Scalar) -> Record:
        return Record(records, row, chunk, width)

    found = merge_largest(kernel, thread, record_of, chunks, values)
    # The batch input is not bound here: with it, there would be more buffers than every device can bind.
    setting = record_of(number(0, "int32")).settings
    with kernel.when(setting.temperature > 0):
        load = adjusted_logit(kernel, logits, adjusted, row)
        draw_token(kernel, Columns(kernel, thread, columns, load), setting, found, record_of, chunks, width, values)
    store_token(kernel, thread, row, found, logits, slots, sampled, counts, y, logprobs)
    return kernel.finish()


def merge_largest(
    kernel: KernelBuilder, thread: Scalar, record_of: Callable[[Scalar], Record], chunks: int, values: Array
) -> Largest:
    """The results of all chunks as those of the row; ``values`` (256,) is shared memory, free afterwards."""
    per_thread = -(-chunks // THREADS)
    sums = kernel.shared("sums", (THREADS,), "float32")
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
    values[thread] = found.raw[0]

    def fold(mine: Scalar, other: Scalar) -> None:
        values[mine] = maximum(values[mine], values[other])

    fold_in_loop(kernel, thread, fold)
    found.raw[0] = values[0]
    with kernel.loop("i", per_thread) as i:
        chunk = kernel.let("chunk", thread * per_thread + i)
        with kernel.when(chunk < chunks):
            record = record_of(chunk)
            found.total[0] = found.total[0] + record.total * exp(record.raw - found.raw[0])
    sums[thread] = found.total[0]
    add_up(kernel, thread, sums)
    found.total[0] = sums[0]
    values[thread] = found.best[0]
    best_columns[thread] = found.column[0]
    fold_largest(kernel, thread, values, best_columns)
    found.best[0] = values[0]
    found.column[0] = best_columns[0]
    kernel.barrier()
    return found


def draw_token(
    kernel: KernelBuilder,
    row: Columns,
    setting: Settings,
    found: Largest,
    record_of: Callable[[Scalar], Record],
    chunks: int,
    width: int,
    parts: Array,
) -> None:
    """Set ``found.column`` to the token drawn; ``parts`` (256,) is shared memory, free after a barrier."""
    per_thread = -(-chunks // THREADS)
    largest, thread = found.best[0], row.thread
    # For each chunk of the thread: the number of its largest logits that are kept, the bounds of that number while a
    # threshold is searched, and the factor from its weights to those of the row.
    fewest, middle, most = (kernel.local(name, per_thread, "int32") for name in ("fewest", "middle", "most"))
    factors = kernel.local("factors", per_thread, "float32")
    masses = kernel.shared("masses", (THREADS * per_thread,), "float32")
    lowest_key = kernel.local("lowest_key", 1, "uint32", fill=0)
    sum_of_chunks = kernel.local("sum_of_chunks", 1, "float32")
    tried = kernel.local("tried", 1, "uint32")
    found_key = kernel.local("found_key", 1, "uint32")
    goal = kernel.local("goal", 1, "float32")

    def factor(x: Scalar) -> Scalar:
        return exp(maximum((x - largest) / setting.temperature, number(SMALLEST_EXPONENT, "float32")))

    def clamped(i: Scalar) -> Record:
        return record_of(minimum(thread * per_thread + i, chunks - 1))

    def mass(i: Scalar, count: Scalar) -> Scalar:
        running = clamped(i).running(maximum(count - 1, 0))
        return select(count > 0, running * factors[i], number(0, "float32"))

    def add_chunks(value: Callable[[Scalar], Scalar]) -> Scalar:
        """The sum over the row's chunks, for all threads."""
        sum_of_chunks[0] = number(0, "float32")
        with kernel.loop("i", per_thread) as i:
            sum_of_chunks[0] = sum_of_chunks[0] + value(i)
        parts[thread] = sum_of_chunks[0]
        add_up(kernel, thread, parts)
        sum_of_chunks[0] = parts[0]
        kernel.barrier()
        return sum_of_chunks[0]

    def count_from(key: Scalar) -> None:
        """Set ``middle`` to the number of each chunk's keys from ``key`` on, which is from ``fewest`` to ``most``."""
        end = kernel.local("end", 1, "int32")
        with kernel.loop("i", per_thread) as i:
            middle[i] = fewest[i]
            end[0] = most[i]
            with kernel.loop("step", width.bit_length()) as _, kernel.when(middle[i] < end[0]):
                at = kernel.let("at", (middle[i] + end[0]) >> 1)
                above = kernel.let("above", cast(clamped(i).key(at) >= key, "int32"))
                middle[i] = select(above == 1, at + 1, middle[i])
                end[0] = select(above == 1, end[0], at)

    with kernel.loop("i", per_thread) as i:
        chunk = kernel.let("chunk", thread * per_thread + i)
        most[i] = maximum(minimum(row.columns - chunk * width, width), 0)
        factors[i] = factor(clamped(i).best)

    # Top-k counts logits, top-p adds the weights of those that top-k kept.
    with (
        kernel.loop("filter_number", 2) as filter_number,
        kernel.when(select(filter_number == 0, setting.top_k > 0, setting.top_p < 1)),
    ):
        goal[0] = setting.top_k
        with kernel.when(filter_number == 1):
            goal[0] = add_chunks(lambda i: mass(i, most[i])) * setting.top_p
        found_key[0] = number(0, "uint32")
        with kernel.loop("i", per_thread) as i:
            fewest[i] = 0
        with kernel.loop("bit", 32) as bit:
            tried[0] = found_key[0] | (number(1, "uint32") << cast(31 - bit, "uint32"))
            count_from(tried[0])
            reached = add_chunks(lambda i: select(filter_number == 0, cast(middle[i], "float32"), mass(i, middle[i])))
            with kernel.when(reached >= goal[0]):
                found_key[0] = tried[0]
            with kernel.loop("i", per_thread) as i:
                most[i] = select(found_key[0] == tried[0], middle[i], most[i])
                fewest[i] = select(found_key[0] == tried[0], fewest[i], middle[i])
        lowest_key[0] = maximum(lowest_key[0], found_key[0])
    with kernel.when(setting.min_p > 0):
        # The computed log of 1 may be slightly above 0.
        lowest = largest + setting.temperature * minimum(log(setting.min_p), number(0, "float32"))
        lowest_key[0] = maximum(lowest_key[0], key_of(lowest))
    # Rounding may leave sums below the goal; the largest is always kept.
    lowest_key[0] = minimum(lowest_key[0], key_of(largest))

    with kernel.loop("i", per_thread) as i:
        chunk = kernel.let("chunk", thread * per_thread + i)
        most[i] = maximum(minimum(row.columns - chunk * width, width), 0)
        fewest[i] = 0
    count_from(lowest_key[0])
    with kernel.loop("i", per_thread) as i:
        masses[thread * per_thread + i] = mass(i, middle[i])
    # Summed in the order of the columns, which `add_up` does not keep.
    sum_of_chunks[0] = number(0, "float32")
    with kernel.loop("i", per_thread) as i:
        sum_of_chunks[0] = sum_of_chunks[0] + masses[thread * per_thread + i]
    parts[thread] = sum_of_chunks[0]
    kernel.barrier()
    goal[0] = number(0, "float32")
    with kernel.loop("other", THREADS) as other:
        goal[0] = goal[0] + parts[other]
    goal[0] = goal[0] * setting.draw
    chosen_thread = kernel.local("chosen_thread", 1, "int32")
    first_beyond(kernel, THREADS, lambda i: parts[i], goal, chosen_thread)
    chosen_chunk = kernel.local("chosen_chunk", 1, "int32")
    first_beyond(kernel, per_thread, lambda i: masses[chosen_thread[0] * per_thread + i], goal, chosen_chunk)
    chosen_chunk[0] = chosen_thread[0] * per_thread + chosen_chunk[0]

    def weight(x: Scalar) -> Scalar:
        return select(key_of(x) >= lowest_key[0], factor(x), number(0, "float32"))

    draw_in_block(kernel, row, weight, width, chosen_chunk[0], goal, parts, found.column)

"""sample: choose each row's next token by the row's settings, and compute its log-probability. Nothing is sorted: a
filter is a threshold on the logit.

One workgroup: one row. Greedy rows are read once: one thread reads every 256th column, for the largest logit and, over
the raw logits, a running maximum and sum of exp (Milakov & Gimelshein 2018); then the threads' results are folded.

A row with a temperature is read twice more, in blocks of adjacent columns. The first pass sums the weights of each
thread's block. The second sums each thread's part of the block that contains the draw, and that part is searched column
by column. Top-k and top-p each search for their threshold in 11 passes: floats are ordered like unsigned integers
(their bits, inverted if negative), and a pass determines 3 bits of the threshold by summing, for each of the 7 digits
above 0, the weights at or above it. Counts are float32 too, exact to 2^24 columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..ir.sampling import COUNTS, WORD, Settings
from .builder import (
    Array,
    Kernel,
    KernelBuilder,
    Scalar,
    all_of,
    any_of,
    cast,
    exp,
    guard_below,
    log,
    maximum,
    minimum,
    number,
    reinterpret,
    select,
)

THREADS = 256
# Below every logit; -LOWEST is above every logit, and marks a logit that is not finite.
LOWEST = -3.4028234e38
# The bits that are set in every infinity and NaN.
INFINITY = 0x7F800000
# exp is 0 below this, and WGSL does not define the exp of minus infinity.
SMALLEST_EXPONENT = -200.0
DIGIT_BITS = 3
DIGITS = 2**DIGIT_BITS - 1
PASSES = -(-32 // DIGIT_BITS)
TOP_BIT = 0x80000000
# The groups of adjacent threads, in which a running sum over all threads is searched.
GROUPS = 16


@dataclass(frozen=True, slots=True)
class Columns:
    """One row's logits, as the threads of a workgroup read them."""

    kernel: KernelBuilder
    thread: Scalar
    columns: int
    load: Callable[[Scalar], Scalar]

    @contextmanager
    def each(self) -> Iterator[tuple[Scalar, Scalar]]:
        """Every 256th column, and its logit."""
        kernel = self.kernel
        with kernel.loop("step", -(-self.columns // THREADS)) as step:
            column = kernel.let("column", step * THREADS + self.thread)
            with kernel.when(guard_below(column, self.columns, THREADS)):
                yield column, kernel.let("x", self.load(column))


@dataclass(frozen=True, slots=True)
class Largest:
    """The results of one pass over a row, in registers of every thread: the raw logits' maximum and their sum of exp(x
    - maximum), and the largest adjusted logit and its column.
    """

    raw: Array
    total: Array
    best: Array
    column: Array


def sample(name: str, columns: int) -> Kernel:
    kernel = KernelBuilder(name, scalars=("A",))
    logits = kernel.buffer("logits", ("R", columns), "float32")
    adjusted = kernel.buffer("adjusted", ("A", columns), "float32")
    settings = kernel.buffer("settings", ("R", len(Settings._fields)), "float32")
    slots = kernel.buffer("slots", ("R", 2), "int32")
    sampled = kernel.buffer("sampled", ("N",), "int32", write=True)
    counts = kernel.buffer("counts", ("N", columns), "int32", write=True)
    y = kernel.buffer("y", ("R",), "int32", write=True)
    logprobs = kernel.buffer("logprobs", ("R",), "float32", write=True)
    row, _ = kernel.grid("R")
    thread = kernel.threads(THREADS)
    setting = Settings(*(settings[row, index] for index in range(len(Settings._fields))))
    values = kernel.shared("values", (THREADS,), "float32")
    load = adjusted_logit(kernel, logits, adjusted, row)
    raw = Columns(kernel, thread, columns, lambda column: logits[row, column])
    largest = find_largest(kernel, raw, load, values)
    with kernel.when(setting.temperature > 0):
        draw_token(kernel, Columns(kernel, thread, columns, load), setting, largest.best[0], values, largest.column)
    store_token(kernel, thread, row, largest, raw.load, slots, sampled, counts, y, logprobs)
    return kernel.finish()


def adjusted_logit(kernel: KernelBuilder, logits: Array, adjusted: Array, row: Scalar) -> Callable[..., Scalar]:
    """A function that loads a column's adjusted logit, which is the raw one if no row of the batch is adjusted. Its
    second argument is the raw logit, if it is known.
    """
    loaded = kernel.local("loaded", 1, "float32")

    def load(column: Scalar, raw: Scalar | None = None) -> Scalar:
        with kernel.when(kernel.size("A") > 0):
            loaded[0] = adjusted[row, column]
        with kernel.when(kernel.size("A") == 0):
            loaded[0] = logits[row, column] if raw is None else raw
        return loaded[0]

    return load


def find_largest(
    kernel: KernelBuilder,
    raw: Columns,
    load: Callable[..., Scalar],
    values: Array,
) -> Largest:
    """Read the columns once. If a raw logit is not finite, the largest adjusted one is -LOWEST. ``values`` (256,) is
    shared memory, which is free afterwards.
    """
    thread, columns = raw.thread, raw.columns
    sums = kernel.shared("sums", (THREADS,), "float32")
    best_columns = kernel.shared("best_columns", (THREADS,), "int32")
    found = Largest(
        kernel.local("raw_largest", 1, "float32"),
        kernel.local("raw_total", 1, "float32"),
        kernel.local("best", 1, "float32", fill=LOWEST),
        kernel.local("token", 1, "int32"),
    )
    found.column[0] = minimum(thread, columns - 1)

    def find_best(column: Scalar, x: Scalar) -> None:
        # WGSL may assume that no float is a NaN, so this tests the bits.
        with kernel.when((reinterpret(x, "uint32") & number(INFINITY, "uint32")) == number(INFINITY, "uint32")):
            found.best[0] = -LOWEST
        value = kernel.let("value", load(column, x))
        with kernel.when(value > found.best[0]):
            found.best[0] = value
            found.column[0] = column

    fold_sums(kernel, raw, values, sums, find_best)
    found.raw[0] = values[0]
    found.total[0] = sums[0]
    kernel.barrier()
    values[thread] = found.best[0]
    best_columns[thread] = found.column[0]
    fold_largest(kernel, thread, values, best_columns)
    found.best[0] = values[0]
    found.column[0] = best_columns[0]
    kernel.barrier()
    return found


def store_token(
    kernel: KernelBuilder,
    thread: Scalar,
    row: Scalar,
    chosen: Largest,
    raw: Callable[[Scalar], Scalar],
    slots: Array,
    sampled: Array,
    counts: Array,
    y: Array,
    logprobs: Array,
) -> None:
    """Store the token, which is in ``chosen.column``, its log-probability, and the state of the row's slot. ``raw``
    loads the raw logit of a column.
    """
    token = chosen.column[0]
    with kernel.when(thread == 0):
        sound = kernel.let("sound", chosen.best[0] < -LOWEST)
        y[row] = select(sound, token, -1)
        # The largest and the log of the sum are subtracted separately, because their sum would lose the precision of
        # small log-probabilities.
        logprob = raw(token) - chosen.raw[0] - log(chosen.total[0])
        logprobs[row] = select(sound, logprob, number(0, "float32"))
        slot, flags = kernel.let("slot", slots[row, 0]), kernel.let("flags", slots[row, 1])
        with kernel.when(all_of(slot >= 0, sound)):
            sampled[slot] = token
            with kernel.when((flags & COUNTS) != 0):
                counts[slot, token] = counts[slot, token] + 1


def fold_sums(
    kernel: KernelBuilder,
    row: Columns,
    values: Array,
    sums: Array,
    also: Callable[[Scalar, Scalar], None] | None = None,
) -> None:
    """Store the row's maximum in values[0], and the sum of exp(x - maximum) in sums[0]. ``also`` receives every column
    and logit.
    """
    largest = kernel.local("largest", 1, "float32", fill=LOWEST)
    total = kernel.local("total", 1, "float32", fill=0)
    with row.each() as (column, x):
        if also is not None:
            also(column, x)
        above = kernel.let("above", maximum(largest[0], x))
        total[0] = total[0] * exp(largest[0] - above) + exp(x - above)
        largest[0] = above
    values[row.thread] = largest[0]

    def fold(mine: Scalar, other: Scalar) -> None:
        values[mine] = maximum(values[mine], values[other])

    fold_in_loop(kernel, row.thread, fold)
    sums[row.thread] = total[0] * exp(largest[0] - values[0])
    add_up(kernel, row.thread, sums)


def fold_results(
    kernel: KernelBuilder, thread: Scalar, found: Largest, values: Array, bests: Array, best_columns: Array
) -> None:
    """Set ``found`` of every thread to the largest of all threads, except the sums; among equal logits, to the lowest
    column. The other arguments (256,) are shared memory, which threads may still read afterwards.
    """
    values[thread] = found.raw[0]
    bests[thread] = found.best[0]
    best_columns[thread] = found.column[0]

    def fold(mine: Scalar, other: Scalar) -> None:
        values[mine] = maximum(values[mine], values[other])
        earlier = all_of(bests[other] == bests[mine], best_columns[other] < best_columns[mine])
        with kernel.when(any_of(bests[other] > bests[mine], earlier)):
            bests[mine] = bests[other]
            best_columns[mine] = best_columns[other]

    fold_in_loop(kernel, thread, fold)
    found.raw[0] = values[0]
    found.best[0] = bests[0]
    found.column[0] = best_columns[0]


def fold_largest(kernel: KernelBuilder, thread: Scalar, values: Array, best_columns: Array) -> None:
    """Store the largest of the threads' values and its column in values[0] and best_columns[0]; among equals, the
    lowest column.
    """

    def fold(mine: Scalar, other: Scalar) -> None:
        earlier = all_of(values[other] == values[mine], best_columns[other] < best_columns[mine])
        with kernel.when(any_of(values[other] > values[mine], earlier)):
            values[mine] = values[other]
            best_columns[mine] = best_columns[other]

    fold_in_loop(kernel, thread, fold)


def add_up(kernel: KernelBuilder, thread: Scalar, parts: Array) -> None:
    """Store the sum of 256 elements of shared memory in the first."""

    def fold(mine: Scalar, other: Scalar) -> None:
        parts[mine] = parts[mine] + parts[other]

    fold_in_loop(kernel, thread, fold)


def fold_in_loop(kernel: KernelBuilder, thread: Scalar, combine: Callable[[Scalar, Scalar], None]) -> None:
    """As `KernelBuilder.fold` for all 256 threads, but as a loop: this kernel is large, and some drivers take seconds
    to compile it.
    """
    kernel.barrier()
    with kernel.loop("level", THREADS.bit_length() - 1) as level:
        stride = kernel.let("stride", (THREADS // 2) >> level)
        with kernel.when(thread < stride):
            combine(thread, thread + stride)
        kernel.barrier()


def draw_token(
    kernel: KernelBuilder, row: Columns, setting: Settings, largest: Scalar, parts: Array, token: Array
) -> None:
    """Set ``token`` to the one drawn. ``largest`` is the row's largest logit; ``parts`` (256,) is shared memory, free
    after a barrier.
    """
    lowest_key = kernel.local("lowest_key", 1, "uint32", fill=0)

    def weight(x: Scalar) -> Scalar:
        """The weight of a token that is kept, else 0."""
        exponent = maximum((x - largest) / setting.temperature, number(SMALLEST_EXPONENT, "float32"))
        return select(key_of(x) >= lowest_key[0], exp(exponent), number(0, "float32"))

    # Top-k sums ones, top-p the weights of the tokens that top-k kept.
    found = kernel.local("found", 1, "uint32")
    goal = kernel.local("filter_goal", 1, "float32")
    kept = kernel.local("kept", 1, "float32")
    with (
        kernel.loop("filter_number", 2) as filter_number,
        kernel.when(select(filter_number == 0, setting.top_k > 0, setting.top_p < 1)),
    ):
        goal[0] = setting.top_k
        with kernel.when(filter_number == 1):
            kept[0] = number(0, "float32")
            with row.each() as (_, x):
                kept[0] = kept[0] + weight(x)
            kernel.barrier()
            parts[row.thread] = kept[0]
            add_up(kernel, row.thread, parts)
            goal[0] = parts[0] * setting.top_p
            kernel.barrier()
        found[0] = number(0, "uint32")
        search(
            kernel, row, lambda x: select(filter_number == 0, number(1, "float32"), weight(x)), goal[0], parts, found
        )
        lowest_key[0] = maximum(lowest_key[0], found[0])
    with kernel.when(setting.min_p > 0):
        # The computed log of 1 may be slightly above 0.
        lowest = largest + setting.temperature * minimum(log(setting.min_p), number(0, "float32"))
        lowest_key[0] = maximum(lowest_key[0], key_of(lowest))
    # Rounding may leave sums below the goal; the largest is always kept.
    lowest_key[0] = minimum(lowest_key[0], key_of(largest))

    block = -(-row.columns // THREADS)
    total = kernel.local("block_total", 1, "float32", fill=0)
    with kernel.loop("i", block) as i:
        column = kernel.let("column", row.thread * block + i)
        with kernel.when(column < row.columns):
            total[0] = total[0] + weight(row.load(column))
    groups = kernel.shared("groups", (GROUPS,), "float32")
    sum_groups(kernel, row.thread, total[0], parts, groups)
    goal = kernel.local("goal", 1, "float32", fill=0)
    with kernel.loop("other", GROUPS) as other:
        goal[0] = goal[0] + groups[other]
    goal[0] = goal[0] * setting.draw
    chosen_block = kernel.local("chosen_block", 1, "int32")
    first_thread_beyond(kernel, parts, groups, goal, chosen_block)

    draw_in_block(kernel, row, weight, block, chosen_block[0], goal, parts, groups, token)


def draw_in_block(
    kernel: KernelBuilder,
    row: Columns,
    weight: Callable[[Scalar], Scalar],
    block: int,
    chosen_block: Scalar,
    goal: Array,
    parts: Array,
    groups: Array,
    token: Array,
) -> None:
    """Set ``token`` to the first column at which the running sum of a block's weights exceeds ``goal``. A block is
    ``block`` adjacent columns, of which each thread sums a part. ``parts`` and ``groups`` as in `sum_groups`.
    """
    part = -(-block // THREADS)
    assert part <= THREADS, (block, part)
    total = kernel.local("part_total", 1, "float32", fill=0)
    first = kernel.let("first_of_part", chosen_block * block + row.thread * part)
    last = kernel.let("end_of_block", minimum((chosen_block + 1) * block, row.columns))
    with kernel.loop("i", maximum(minimum(last - first, part), 0)) as i:
        total[0] = total[0] + weight(row.load(first + i))
    sum_groups(kernel, row.thread, total[0], parts, groups)
    chosen_part = kernel.local("chosen_part", 1, "int32")
    first_thread_beyond(kernel, parts, groups, goal, chosen_part)

    # Each thread computes the weight of one of the part's columns.
    kernel.barrier()
    with kernel.when(row.thread < part):
        column = kernel.let("column", chosen_block * block + chosen_part[0] * part + row.thread)
        parts[row.thread] = 0
        with kernel.when(column < last):
            parts[row.thread] = weight(row.load(column))
    kernel.barrier()
    chosen = kernel.local("chosen", 1, "int32")
    first_beyond(kernel, part, lambda i: parts[i], goal, chosen)
    token[0] = chosen_block * block + chosen_part[0] * part + chosen[0]


def sum_groups(kernel: KernelBuilder, thread: Scalar, total: Scalar, parts: Array, groups: Array) -> None:
    """Store each thread's total in ``parts`` (256,), and the sum of each 16 adjacent ones in ``groups`` (16,). Barriers
    before and after are included.
    """
    size = THREADS // GROUPS
    of_group = kernel.local("of_group", 1, "float32", fill=0)
    kernel.barrier()
    parts[thread] = total
    kernel.barrier()
    with kernel.when(thread < GROUPS):
        with kernel.loop("other", size) as other:
            of_group[0] = of_group[0] + parts[thread * size + other]
        groups[thread] = of_group[0]
    kernel.barrier()


def first_thread_beyond(kernel: KernelBuilder, parts: Array, groups: Array, goal: Array, chosen: Array) -> None:
    """As `first_beyond`, for the totals of all threads; see `sum_groups`."""
    size = THREADS // GROUPS
    group = kernel.local("group", 1, "int32")
    first_beyond(kernel, GROUPS, lambda i: groups[i], goal, group)
    first_beyond(kernel, size, lambda i: parts[group[0] * size + i], goal, chosen)
    chosen[0] = group[0] * size + chosen[0]


def first_beyond(
    kernel: KernelBuilder, count: Scalar | int, weight_of: Callable[[Scalar], Scalar], goal: Array, chosen: Array
) -> None:
    """Set ``chosen`` to the first index at which the running sum exceeds ``goal``, and subtract the sum before it from
    ``goal``.

    If rounding leaves the sum below the goal, it is the last index with a weight above 0.
    """
    before = kernel.local("before", 1, "float32", fill=0)
    running = kernel.local("running", 1, "float32", fill=0)
    found = kernel.local("found", 1, "int32", fill=0)
    chosen[0] = 0
    with kernel.loop("index", count) as index:
        each = kernel.let("each", weight_of(index))
        with kernel.when(all_of(found[0] == 0, each > 0)):
            chosen[0] = index
            before[0] = running[0]
            running[0] = running[0] + each
            found[0] = select(running[0] > goal[0], 1, 0)
    goal[0] = goal[0] - before[0]


def search(
    kernel: KernelBuilder, row: Columns, weight: Callable[[Scalar], Scalar], goal: Scalar, parts: Array, found: Array
) -> None:
    """Set ``found``, which is 0, to the largest key such that the columns at or above it weigh ``goal`` or more."""
    thread = row.thread
    scratch = kernel.shared("scratch", (DIGITS * THREADS,), "float32")
    totals = kernel.shared("totals", (DIGITS,), "float32")
    sums = kernel.local("sums", DIGITS, "float32")
    digit = kernel.local("digit", 1, "uint32")
    high = kernel.local("high", 1, "uint32")
    with kernel.loop("digit_number", PASSES) as digit_number:
        shift = kernel.let("shift", cast((PASSES - 1 - digit_number) * DIGIT_BITS, "uint32"))
        for d in range(DIGITS):
            sums[d] = 0
        with row.each() as (_, x):
            each = kernel.let("each", weight(x))
            high[0] = key_of(x) >> shift
            base = kernel.let("base", found[0] >> shift)
            for d in range(DIGITS):
                sums[d] = sums[d] + select(high[0] >= base + number(d + 1, "uint32"), each, number(0, "float32"))
        for d in range(DIGITS):
            scratch[d * THREADS + thread] = sums[d]
        kernel.barrier()
        # 16 threads per digit, each for 16 of its 256 sums; then one thread per digit.
        with kernel.when(thread < DIGITS * 16):
            parts[thread] = 0
            with kernel.loop("i", 16) as i:
                parts[thread] = parts[thread] + scratch[thread * 16 + i]
        kernel.barrier()
        with kernel.when(thread < DIGITS):
            totals[thread] = 0
            with kernel.loop("i", 16) as i:
                totals[thread] = totals[thread] + parts[thread * 16 + i]
        kernel.barrier()
        digit[0] = number(0, "uint32")
        with kernel.loop("i", DIGITS) as i:
            digit[0] = digit[0] + select(totals[i] >= goal, number(1, "uint32"), number(0, "uint32"))
        found[0] = found[0] | (digit[0] << shift)


def key_of(x: Scalar) -> Scalar:
    """A float's bits as an unsigned integer of the same order."""
    # Minus zero equals zero.
    bits = select(x == 0, number(0, "uint32"), reinterpret(x, "uint32"))
    return bits ^ select(bits >= number(TOP_BIT, "uint32"), number(WORD, "uint32"), number(TOP_BIT, "uint32"))

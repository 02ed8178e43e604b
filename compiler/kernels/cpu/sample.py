"""sample: choose each row's next token by the row's settings, and compute its log-probability. Nothing is sorted: a
filter is a threshold on the logit.

Phase 1, one task per chunk of columns of a row: the largest raw and adjusted logits, and the raw logits' sum of exp.
Phase 2, one task per row: combines the chunks, which completes greedy rows. Phase 3, for rows with a temperature, one
task per chunk: writes the weights to scratch. Phase 4, one task per row: chooses a token by these weights.

Top-k and top-p each search for their threshold in 11 passes: floats are ordered like unsigned integers (their bits,
inverted if negative), and a pass determines 3 bits of the threshold by summing, for each of the 7 digits above 0, the
weights at or above it. Blocks of columns that are all below the known part of the threshold are skipped. Counts are
also float32, which is exact up to 2^24 columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from ...ir.sampling import COUNTS, Settings
from ..builder import Array, Kernel, KernelBuilder, Scalar, all_of, cast, maximum, minimum, number, select
from ..sample import first_beyond
from ..vectors import largest_of_lanes, ramp, splat, sum_of_lanes
from .builder import CpuKernelBuilder, Isa
from .logits import CHUNK, LOWEST, Columns, chunk_of, first_largest, key_of, merge_chunks, num_chunks, sum_chunk
from .math import exp, log

DIGIT_BITS = 3
DIGITS = 2**DIGIT_BITS - 1
PASSES = -(-32 // DIGIT_BITS)
# The values stored for each chunk: its largest raw logit, its sum of exp, its largest adjusted logit and that column.
PARTIALS = 4
# The number of columns that are skipped together if the largest of them is not kept.
BLOCK = 128


def sample(name: str, *, isa: Isa, columns: int) -> Kernel:
    chunks = num_chunks(columns)
    kernel = CpuKernelBuilder(name)
    logits = kernel.buffer("logits", ("R", columns), "float32")
    adjusted = kernel.buffer("adjusted", ("A", columns), "float32")
    settings = kernel.buffer("settings", ("R", len(Settings._fields)), "float32")
    slots = kernel.buffer("slots", ("R", 2), "int32")
    sampled = kernel.buffer("sampled", ("N",), "int32", write=True)
    counts = kernel.buffer("counts", ("N", columns), "int32", write=True)
    y = kernel.buffer("y", ("R",), "int32", write=True)
    logprobs = kernel.buffer("logprobs", ("R",), "float32", write=True)
    partials = kernel.scratch("partials", ("R", chunks, PARTIALS), "float32", write=True)
    weights = kernel.scratch("weights", ("R", chunks * CHUNK), "float32", write=True)
    maxima = kernel.scratch("maxima", ("R", chunks * CHUNK // BLOCK), "float32", write=True)

    def settings_of(row: Scalar) -> Settings:
        return Settings(*(settings[row, index] for index in range(len(Settings._fields))))

    def load_from(row: Scalar) -> Callable[[Scalar], Scalar]:
        """Adjusted logits, if any row of the batch has some."""
        loaded = kernel.local("loaded", 1, f"float32x{isa.lanes}")

        def load(start: Scalar) -> Scalar:
            with kernel.when(kernel.size("A") > 0):
                loaded[0] = adjusted[row, ramp(start, isa.lanes)]
            with kernel.when(kernel.size("A") == 0):
                loaded[0] = logits[row, ramp(start, isa.lanes)]
            return loaded[0]

        return load

    with kernel.tasks("task", "R", chunks) as task:
        row, chunk = kernel.split(task, chunks, ("row", "chunk"))
        part = chunk_of(kernel, isa, chunk, columns)
        largest, total = kernel.local("largest", 1, "float32"), kernel.local("total", 1, "float32")
        sum_chunk(kernel, isa, part, lambda start: logits[row, ramp(start, isa.lanes)], largest, total)
        best, column = kernel.local("best", 1, "float32"), kernel.local("column", 1, "int32")
        first_largest(kernel, isa, part, load_from(row), best, column)
        for index, each in enumerate((largest[0], total[0], best[0], cast(column[0], "float32"))):
            partials[row, chunk, index] = each

    with kernel.tasks("row", "R") as row:
        largest, total = kernel.local("largest", 1, "float32"), kernel.local("total", 1, "float32")
        merge_chunks(kernel, partials, row, chunks, largest, total)
        best, column = kernel.local("best", 1, "float32", fill=LOWEST), kernel.local("column", 1, "float32", fill=0)
        with kernel.loop("chunk", chunks) as chunk, kernel.when(partials[row, chunk, 2] > best[0]):
            best[0] = partials[row, chunk, 2]
            column[0] = partials[row, chunk, 3]
        # From now on, the record of the first chunk contains the row's combined values.
        for index, each in enumerate((largest[0], total[0], best[0], column[0])):
            partials[row, 0, index] = each

    with kernel.tasks("task", "R", chunks) as task:
        row, chunk = kernel.split(task, chunks, ("row", "chunk"))
        temperature = kernel.let("temperature", settings_of(row).temperature)
        with kernel.when(temperature > 0):
            load, largest = load_from(row), kernel.let("largest", partials[row, 0, 2])
            with kernel.loop("block", CHUNK // BLOCK) as block_index:
                block = kernel.let("block", chunk * (CHUNK // BLOCK) + block_index)
                highest = kernel.local("highest", 1, f"float32x{isa.lanes}", fill=LOWEST)
                with block_of(kernel, isa, block, columns).each() as (start, _, inside):
                    x = kernel.let("x", load(start))
                    exponent = (x - splat(largest, isa.lanes)) / splat(temperature, isa.lanes)
                    weights[row, ramp(start, isa.lanes)] = select(
                        inside, exp(exponent), number(0, f"float32x{isa.lanes}")
                    )
                    highest[0] = maximum(highest[0], select(inside, x, number(LOWEST, f"float32x{isa.lanes}")))
                maxima[row, block] = largest_of_lanes(highest[0])

    with kernel.tasks("row", "R") as row:
        # The largest logit is -LOWEST if one is not finite.
        sound = kernel.let("sound", partials[row, 0, 0] < -LOWEST)
        token = kernel.local("token", 1, "int32")
        token[0] = cast(partials[row, 0, 3], "int32")
        with kernel.when(all_of(sound, settings_of(row).temperature > 0)):
            draw = Draw(
                kernel,
                isa,
                columns,
                load_from(row),
                lambda index: weights[row, index],
                lambda block: maxima[row, block],
            )
            draw.choose(settings_of(row), partials[row, 0, 2], token)
        y[row] = select(sound, token[0], -1)
        logprobs[row] = number(0, "float32")
        with kernel.when(sound):
            logprobs[row] = logits[row, token[0]] - partials[row, 0, 0] - log(partials[row, 0, 1])
            slot, flags = kernel.let("slot", slots[row, 0]), kernel.let("flags", slots[row, 1])
            with kernel.when(slot >= 0):
                sampled[slot] = token[0]
                with kernel.when((flags & COUNTS) != 0):
                    counts[slot, token[0]] = counts[slot, token[0]] + 1
    return kernel.finish()


def block_of(kernel: KernelBuilder, isa: Isa, block: Scalar, columns: int) -> Columns:
    first = kernel.let("first", block * BLOCK)
    return Columns(kernel, isa, first, kernel.let("stop", minimum(first + BLOCK, columns)))


class Draw:
    """Choosing a token of one row by its weights. ``maxima`` gives the largest logit of a block."""

    def __init__(
        self,
        kernel: KernelBuilder,
        isa: Isa,
        columns: int,
        load: Callable[[Scalar], Scalar],
        weight: Callable[[Scalar], Scalar],
        maxima: Callable[[Scalar], Scalar],
    ) -> None:
        self._kernel, self._isa, self._columns, self._load, self._weight, self._maxima = (
            kernel,
            isa,
            columns,
            load,
            weight,
            maxima,
        )
        self._lowest = kernel.local("lowest", 1, "uint32", fill=0)

    def choose(self, setting: Settings, largest: Scalar, token: Array) -> None:
        """Set ``token``. ``largest`` is the row's largest logit."""
        kernel, lowest = self._kernel, self._lowest
        found, goal = kernel.local("found", 1, "uint32"), kernel.local("goal", 1, "float32")
        ones = number(1, f"float32x{self._isa.lanes}")
        with kernel.when(setting.top_k > 0):
            self._search(lambda _: ones, setting.top_k, found)
            lowest[0] = found[0]
        with kernel.when(setting.top_p < 1):
            self._sum(goal)
            self._search(self._kept, kernel.let("part", goal[0] * setting.top_p), found)
            lowest[0] = maximum(lowest[0], found[0])
        with kernel.when(setting.min_p > 0):
            threshold = largest + setting.temperature * minimum(log(setting.min_p), number(0, "float32"))
            lowest[0] = maximum(lowest[0], key_of(threshold, "uint32"))
        # Rounding may leave sums below the goal; the largest is always kept.
        lowest[0] = minimum(lowest[0], key_of(largest, "uint32"))
        self._walk(setting, token)

    def _kept(self, start: Scalar) -> Scalar:
        """Weights of a vector's columns; 0 for columns that are not kept."""
        lanes = self._isa.lanes
        keys = key_of(self._load(start), f"uint32x{lanes}")
        return select(
            keys >= splat(self._lowest[0], lanes), self._weight(ramp(start, lanes)), number(0, f"float32x{lanes}")
        )

    @contextmanager
    def _each(self, lowest: Scalar) -> Iterator[tuple[Scalar, Scalar]]:
        """Vectors of the blocks in which any key reaches ``lowest``: their first columns, and which of their columns
        there are.
        """
        kernel, count = self._kernel, -(-self._columns // BLOCK)
        with (
            kernel.loop("block", count) as block,
            kernel.when(key_of(self._maxima(block), "uint32") >= lowest),
            ExitStack() as stack,
        ):
            start, _, inside = stack.enter_context(block_of(kernel, self._isa, block, self._columns).each())
            yield start, inside

    def _sum(self, total: Array) -> None:
        lanes = self._isa.lanes
        sums = self._kernel.local("sums", 1, f"float32x{lanes}", fill=0)
        with self._each(self._lowest[0]) as (start, inside):
            sums[0] = sums[0] + select(inside, self._kept(start), number(0, f"float32x{lanes}"))
        total[0] = sum_of_lanes(sums[0])

    def _search(self, weight: Callable[[Scalar], Scalar], goal: Scalar, found: Array) -> None:
        """Set ``found`` to the largest key at or above which columns weigh ``goal`` or more."""
        kernel, lanes = self._kernel, self._isa.lanes
        keys_dtype, floats = f"uint32x{lanes}", f"float32x{lanes}"
        sums = kernel.local("sums", DIGITS, floats)
        digit = kernel.local("digit", 1, "uint32")
        found[0] = number(0, "uint32")
        with kernel.loop("digit_number", PASSES) as digit_number:
            shift = kernel.let("shift", cast((PASSES - 1 - digit_number) * DIGIT_BITS, "uint32"))
            base = kernel.let("base", found[0] >> shift)
            for d in range(DIGITS):
                sums[d] = 0
            # Columns below the known part of the threshold reach no digit.
            with self._each(found[0]) as (start, inside):
                high = kernel.let("high", key_of(self._load(start), keys_dtype) >> splat(shift, lanes))
                each = kernel.let("each", select(inside, weight(start), number(0, floats)))
                for d in range(DIGITS):
                    sums[d] = sums[d] + select(
                        high >= splat(base + number(d + 1, "uint32"), lanes), each, number(0, floats)
                    )
            digit[0] = number(0, "uint32")
            for d in range(DIGITS):
                digit[0] = digit[0] + select(sum_of_lanes(sums[d]) >= goal, number(1, "uint32"), number(0, "uint32"))
            found[0] = found[0] | (digit[0] << shift)

    def _walk(self, setting: Settings, token: Array) -> None:
        """Find the first column at which the running sum of kept weights exceeds ``draw`` times their sum, by blocks
        first.
        """
        kernel, lanes, count = self._kernel, self._isa.lanes, -(-self._columns // BLOCK)
        zeros = number(0, f"float32x{lanes}")
        block_sums = kernel.local("block_sums", count, "float32")
        total = kernel.local("total", 1, "float32", fill=0)
        with kernel.loop("block", count) as block:
            block_sums[block] = 0
            with kernel.when(key_of(self._maxima(block), "uint32") >= self._lowest[0]):
                sums = kernel.local("sums", 1, f"float32x{lanes}", fill=0)
                with block_of(kernel, self._isa, block, self._columns).each() as (start, _, inside):
                    sums[0] = sums[0] + select(inside, self._kept(start), zeros)
                block_sums[block] = sum_of_lanes(sums[0])
                total[0] = total[0] + block_sums[block]
        goal = kernel.local("goal", 1, "float32")
        goal[0] = total[0] * setting.draw
        chosen = kernel.local("chosen", 1, "int32")
        first_beyond(kernel, count, lambda i: block_sums[i], goal, chosen)
        kept = kernel.local("kept", BLOCK, "float32")
        first = kernel.let("first", chosen[0] * BLOCK)
        with block_of(kernel, self._isa, chosen[0], self._columns).each() as (start, _, inside):
            kept[ramp(start - first, lanes)] = select(inside, self._kept(start), zeros)
        in_block = kernel.local("in_block", 1, "int32")
        first_beyond(kernel, minimum(self._columns - first, BLOCK), lambda i: kept[i], goal, in_block)
        token[0] = first + in_block[0]

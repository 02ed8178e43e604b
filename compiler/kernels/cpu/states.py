"""causal_conv, gated_delta and ssm_scan: a sequence's rows one after the other, from its state to the next one. Chunks
of rows, as on GPUs, would need as many operations (see tests/bench/README.md).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...ir.expr import Expr
from ..builder import Kernel, Scalar, maximum, minimum, number, select
from ..causal_conv import CONVOLVED
from ..tir import tirx
from ..vectors import floats, ramp, splat, sum_of_lanes
from .activations import ACTIVATIONS, sigmoid
from .builder import CpuKernelBuilder, Isa, each_vector, pieces, round_up_quotient
from .math import exp, fused, log, square_root
from .rows import LANES, rms_factor

# The columns of a task of causal_conv.
BLOCK = 128
# The rows of gated_delta that go through a block of columns, the vectors of a block, and the elements of ssm_scan that
# read vectors of B and C once.
ROWS, VECTORS, ELEMENTS = 16, 4, 4
# See `ops.states.L2_EPS`.
L2_EPS = 1e-6


class Sequences:
    """The arguments "state", "state_slots", "seq_starts" and "positions"."""

    def __init__(self, kernel: CpuKernelBuilder, rows: Expr, shape: tuple[int, ...]) -> None:
        self._kernel = kernel
        self.state = kernel.buffer("state", ("Z", *shape), "float32", write=True)
        self._slots = kernel.buffer("state_slots", ("B", 2), "int32")
        self._seq_starts = kernel.buffer("seq_starts", (["add", "B", 1],), "int32")
        self._positions = kernel.buffer("positions", (rows,), "int32")

    def of(self, sequence: Scalar) -> tuple[Scalar, Scalar, Scalar, Scalar, Scalar]:
        """The first row of a sequence and the one behind its last, the slots to read and to write, and whether there is
        a state to read.
        """
        kernel = self._kernel
        begin, end = (kernel.let("bound", self._seq_starts[sequence + behind]) for behind in range(2))
        read, write = (kernel.let("state_slot", self._slots[sequence, which]) for which in range(2))
        return begin, end, read, write, kernel.let("first_position", self._positions[begin]) > 0

    def start(
        self, sequence: Scalar, head: Scalar, shape: tuple[int, int], lanes: int
    ) -> tuple[Scalar, Scalar, Scalar, Scalar]:
        """The first row of a sequence, the one behind its last, the slot with the head's matrix before the first row,
        and the slot to write. A matrix that begins is zeros in the slot to write.
        """
        kernel = self._kernel
        begin, end, read, write, continues = self.of(sequence)
        with kernel.when(tirx.Not(continues)), kernel.loop("line", shape[0]) as line:

            def clear(column: Scalar, lanes: int) -> None:
                self.state[write, head, line, ramp(column, lanes)] = splat(number(0, "float32"), lanes)

            each_vector(kernel, shape[1], lanes, clear)
        return begin, end, kernel.let("start", select(continues, read, write)), write


def causal_conv(
    name: str,
    *,
    isa: Isa,
    rows: Expr,
    columns: int,
    taps: int,
    bias: bool,
    activation: str,
    stride: int,
    start: int,
    gated: bool,
    y_in_scratch: bool = False,
) -> Kernel:
    """``y_in_scratch``: y is the scratch buffer `CONVOLVED`. One task: a block of columns of one sequence."""
    kernel, blocks = CpuKernelBuilder(name), -(-columns // BLOCK)
    x = kernel.buffer("x", (rows, stride), "float32")
    weight = kernel.buffer("weight", (columns * taps,), "float32")
    biases = kernel.buffer("bias", (columns,), "float32") if bias else None
    sequences = Sequences(kernel, rows, (taps - 1, columns))
    declare = partial(kernel.scratch, CONVOLVED) if y_in_scratch else partial(kernel.buffer, "y")
    y = declare((rows, columns), "float32", write=True)
    with kernel.tasks("task", "B", blocks) as task:
        sequence, block = kernel.split(task, blocks, ("sequence", "block"))
        begin, end, read, write, continues = sequences.of(sequence)

        def convolve(column: Scalar, lanes: int) -> None:
            here, dtype = ramp(column, lanes), floats(lanes)

            def part(row: Scalar, index: int) -> Scalar:
                return x[begin + row, ramp(start + index * columns + column, lanes)]

            known = kernel.local(f"known{lanes}", taps - 1, dtype, fill=0)
            with kernel.when(continues):
                for back in range(taps - 1):
                    known[back] = sequences.state[read, back, here]
            factors = kernel.local(f"factors{lanes}", taps, dtype)
            for tap in range(taps):
                factors[tap] = weight[tirx.Ramp(column * taps + tap, taps, lanes) if lanes > 1 else column * taps + tap]
            with kernel.loop("row", end - begin) as row:
                newest = kernel.let("newest", part(row, 0) * part(row, 2) if gated else part(row, 0))
                total = newest * factors[taps - 1]
                for back in range(taps - 1):
                    total = fused(known[back], factors[back], total)
                total = kernel.let("total", total if biases is None else total + biases[here])
                result = ACTIVATIONS[activation](total)
                y[begin + row, here] = result * part(row, 1) if gated else result
                for back in range(taps - 2):
                    known[back] = known[back + 1]
                known[taps - 2] = newest
            for back in range(taps - 1):
                sequences.state[write, back, here] = known[back]

        first = kernel.let("first", block * BLOCK)
        with kernel.loop("vector", minimum(columns - first, BLOCK) // isa.lanes) as vector:
            convolve(first + vector * isa.lanes, isa.lanes)
        rest = columns % BLOCK % isa.lanes
        if rest:
            with kernel.when(block == blocks - 1):
                for offset, lanes in pieces(rest, isa.lanes):
                    convolve(columns - rest + offset, lanes)
    return kernel.finish()


def gated_delta(
    name: str,
    *,
    isa: Isa,
    rows: Expr,
    heads: int,
    key_heads: int,
    key_dim: int,
    value_dim: int,
    stride: int,
    a_start: int,
    b_start: int,
    z_start: int,
    eps: float,
) -> Kernel:
    """One task: one head of one sequence. Its state is changed in the slot where it is written.

    Columns of the state do not depend on each other until their norm. So a block of them, which a cache of 32 KB holds,
    goes through some rows before the next block does.
    """
    kernel, keys = CpuKernelBuilder(name), key_heads * key_dim
    qkv = kernel.buffer("qkv", (rows, 2 * keys + heads * value_dim), "float32")
    abz = kernel.buffer("abz", (rows, stride), "float32")
    vectors = kernel.buffer("vectors", (2 * heads + value_dim,), "float32")
    sequences = Sequences(kernel, rows, (heads, key_dim, value_dim))
    y = kernel.buffer("y", (rows, heads * value_dim), "float32", write=True)
    state, one = sequences.state, number(1, "float32")
    with kernel.tasks("task", "B", heads) as task:
        sequence, head = kernel.split(task, heads, ("sequence", "head"))
        begin, end, start, write = sequences.start(sequence, head, (key_dim, value_dim), isa.lanes)
        key_head = kernel.let("key_head", tirx.truncdiv(head, heads // key_heads))
        rate = stored(kernel, "rate", exp(kernel.let("a_log", vectors[head])))
        query_scales, key_scales, overlaps, kept, betas = (
            kernel.local(each, ROWS, "float32") for each in ("query_scales", "key_scales", "overlaps", "kept", "betas")
        )

        def element(row: Scalar, at: Scalar, lanes: int, *, is_key: bool) -> Scalar:
            return qkv[row, ramp(key_head * key_dim + at + (keys if is_key else 0), lanes)]

        def prepare(step: Scalar, row: Scalar) -> None:
            def pairs(at: Scalar, lanes: int) -> list[tuple[Scalar, Scalar]]:
                query, key = (kernel.let("each", element(row, at, lanes, is_key=is_key)) for is_key in (False, True))
                return [(query, query), (key, key), (query, key)]

            squares = sums_of_products(kernel, pairs, 3, key_dim)
            for scales, square in zip((query_scales, key_scales), squares, strict=False):
                scales[step] = one / square_root(square + number(L2_EPS, "float32"))
            overlaps[step] = squares[2]
            decay = rate * softplus(kernel, abz[row, a_start + head] + vectors[heads + head])
            kept[step] = exp(kernel.let("exponent", number(0, "float32") - decay))
            betas[step] = sigmoid(kernel.let("beta_input", abz[row, b_start + head]))

        def walk(first: Scalar, count: Scalar, column: Scalar, lanes: int, vectors_: int) -> None:
            """Some vectors of columns through a piece's rows, in memory of their own: in the state they would share few
            sets of the cache, because its rows are a power of two apart.
            """
            heres = [ramp(column + index * lanes, lanes) for index in range(vectors_)]
            own = kernel.local(f"own{lanes}_{vectors_}", key_dim * vectors_, floats(lanes))
            source = kernel.let("source", select(first > begin, write, start))
            with kernel.loop("at", key_dim) as at:
                for index, here in enumerate(heres):
                    own[at * vectors_ + index] = state[source, head, at, here]
            with kernel.loop("step", count) as step:
                row = kernel.let("row", first + step)
                sums = [
                    kernel.local(f"{which}_sums{lanes}", vectors_, floats(lanes), fill=0) for which in ("query", "key")
                ]
                with kernel.loop("at", key_dim) as at:
                    factors = [kernel.let("factor", element(row, at, 1, is_key=is_key)) for is_key in (False, True)]
                    for index in range(vectors_):
                        old = kernel.let("old", own[at * vectors_ + index])
                        for total, factor in zip(sums, factors, strict=True):
                            total[index] = fused(old, splat(factor, lanes), total[index])
                decay = kernel.let("decay", kept[step])
                key_scale = kernel.let("key_scale", key_scales[step])
                scale = kernel.let("scale", query_scales[step] * number(key_dim**-0.5, "float32"))
                for index in range(vectors_):
                    place = head * value_dim + column + index * lanes
                    value = qkv[row, ramp(2 * keys + place, lanes)]
                    known = sums[1][index] * splat(decay * key_scale, lanes)
                    error = kernel.let("error", (value - known) * splat(betas[step] * key_scale, lanes))
                    made = sums[0][index] * splat(decay, lanes) + error * splat(overlaps[step], lanes)
                    y[row, ramp(place, lanes)] = made * splat(scale, lanes)
                    sums[1][index] = error
                with kernel.loop("at", key_dim) as at:
                    factor = kernel.let("factor", element(row, at, 1, is_key=True))
                    for index in range(vectors_):
                        old = own[at * vectors_ + index] * splat(decay, lanes)
                        own[at * vectors_ + index] = fused(sums[1][index], splat(factor, lanes), old)
            with kernel.loop("at", key_dim) as at:
                for index, here in enumerate(heres):
                    state[write, head, at, here] = own[at * vectors_ + index]

        def norm(row: Scalar) -> None:
            def own(column: Scalar, lanes: int) -> Scalar:
                return y[row, ramp(head * value_dim + column, lanes)]

            scale = rms_factor(kernel, own, value_dim, eps)

            def store(column: Scalar, lanes: int) -> None:
                z = kernel.let("z", abz[row, ramp(z_start + head * value_dim + column, lanes)])
                factors = splat(scale, lanes) * vectors[ramp(2 * heads + column, lanes)]
                y[row, ramp(head * value_dim + column, lanes)] = own(column, lanes) * factors * ACTIVATIONS["silu"](z)

            each_vector(kernel, value_dim, isa.lanes, store)

        with kernel.loop("piece", round_up_quotient(end - begin, ROWS)) as piece:
            first = kernel.let("first", begin + piece * ROWS)
            count = kernel.let("count", minimum(end - first, ROWS))
            with kernel.loop("step", count) as step:
                prepare(step, kernel.let("row", first + step))
            block = VECTORS * isa.lanes
            with kernel.loop("block", value_dim // block) as index:
                walk(first, count, kernel.let("column", index * block), isa.lanes, VECTORS)
            done = value_dim // block * block
            for offset, lanes in pieces(value_dim - done, isa.lanes):
                walk(first, count, done + offset, lanes, 1)
            with kernel.loop("step", count) as step:
                norm(kernel.let("row", first + step))
    return kernel.finish()


def ssm_scan(
    name: str,
    *,
    isa: Isa,
    rows: Expr,
    heads: int,
    groups: int,
    head_dim: int,
    state_dim: int,
    stride: int,
    dt_start: int,
    z_start: int | None,
) -> Kernel:
    """One task: one head of one sequence. Its state is changed in the slot where it is written."""
    kernel, width = CpuKernelBuilder(name), heads * head_dim
    xbc = kernel.buffer("xbc", (rows, width + 2 * groups * state_dim), "float32")
    dt = kernel.buffer("dt", (rows, stride), "float32")
    vectors = kernel.buffer("vectors", (3 * heads,), "float32")
    sequences = Sequences(kernel, rows, (heads, head_dim, state_dim))
    y = kernel.buffer("y", (rows, width), "float32", write=True)
    state = sequences.state
    with kernel.tasks("task", "B", heads) as task:
        sequence, head = kernel.split(task, heads, ("sequence", "head"))
        begin, end, start, write = sequences.start(sequence, head, (head_dim, state_dim), isa.lanes)
        group = kernel.let("group", tirx.truncdiv(head, heads // groups))
        rate = stored(kernel, "rate", exp(kernel.let("a_log", vectors[head])))
        with kernel.loop("step", end - begin) as step:
            row = kernel.let("row", begin + step)
            source = kernel.let("source", select(step > 0, write, start))
            time = softplus(kernel, dt[row, dt_start + head] + vectors[2 * heads + head])
            kept = stored(kernel, "kept", exp(kernel.let("exponent", number(0, "float32") - rate * time)))

            def scan(first: Scalar, count: int) -> None:
                """Some elements, whose outputs are sums of products with C."""
                elements = [kernel.let("element", first + index) for index in range(count)]
                xs = [kernel.let("x", xbc[row, head * head_dim + element]) for element in elements]

                def pairs(column: Scalar, lanes: int) -> list[tuple[Scalar, Scalar]]:
                    here, place = ramp(column, lanes), width + group * state_dim + column
                    b, c = (
                        kernel.let("each", xbc[row, ramp(place + which * groups * state_dim, lanes)])
                        for which in range(2)
                    )
                    found = []
                    for element, x in zip(elements, xs, strict=True):
                        old = state[source, head, element, here]
                        new = kernel.let("new", fused(old, splat(kept, lanes), b * splat(time * x, lanes)))
                        state[write, head, element, here] = new
                        found.append((new, c))
                    return found

                sums = sums_of_products(kernel, pairs, count, state_dim)
                for element, x, total in zip(elements, xs, sums, strict=True):
                    y[row, head * head_dim + element] = total + vectors[heads + head] * x

            with kernel.loop("block", head_dim // ELEMENTS) as block:
                scan(block * ELEMENTS, ELEMENTS)
            for element in range(head_dim // ELEMENTS * ELEMENTS, head_dim):
                scan(element, 1)
            if z_start is not None:

                def gate(column: Scalar, lanes: int) -> None:
                    here = ramp(head * head_dim + column, lanes)
                    z = kernel.let("z", dt[row, ramp(z_start + head * head_dim + column, lanes)])
                    y[row, here] = y[row, here] * ACTIVATIONS["silu"](z)

                each_vector(kernel, head_dim, LANES, gate)
    return kernel.finish()


def sums_of_products(
    kernel: CpuKernelBuilder,
    pairs: Callable[[Scalar, int], list[tuple[Scalar, Scalar]]],
    count: int,
    size: int,
) -> list[Scalar]:
    """Sums over ``size`` elements, in the same order at every level, of ``count`` products; ``pairs`` returns the
    factors of a vector of elements.
    """
    sums = kernel.local("sums", count, floats(LANES), fill=0)
    rest = kernel.local("rest", count, "float32", fill=0)

    def add(at: Scalar, lanes: int) -> None:
        for index, (one, other) in enumerate(pairs(at, lanes)):
            if lanes == LANES:
                sums[index] = fused(one, other, sums[index])
            else:
                rest[index] = rest[index] + sum_of_lanes(one * other)

    each_vector(kernel, size, LANES, add)
    return [kernel.let("sum", sum_of_lanes(sums[index]) + rest[index]) for index in range(count)]


def softplus(kernel: CpuKernelBuilder, x: Scalar) -> Scalar:
    """ln(1 + exp(x)) = max(x, 0) + ln(1 + exp(-|x|))."""
    x, zero = kernel.let("softplus_input", x), number(0, "float32")
    falling = kernel.let("falling", select(x < zero, x, zero - x))
    above_one = stored(kernel, "above_one", number(1, "float32") + exp(falling))
    return stored(kernel, "softplus", maximum(x, zero) + log(above_one))


def stored(kernel: CpuKernelBuilder, name: str, value: Scalar) -> Scalar:
    """A value in memory. TVM puts the expression of a named value into every use of it, and those of exp and log are
    long.
    """
    cell = kernel.local(name, 1, "float32")
    cell[0] = value
    return cell[0]

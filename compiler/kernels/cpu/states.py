"""causal_conv, gated_delta and ssm_scan: a sequence's rows one after the other, from its state to the next one."""

from __future__ import annotations

from collections.abc import Callable

from ...ir.expr import Expr
from ..builder import Kernel, Scalar, maximum, minimum, number, select
from ..tir import tirx
from ..vectors import floats, ramp, splat, sum_of_lanes
from .activations import ACTIVATIONS, sigmoid
from .builder import CpuKernelBuilder, Isa, each_vector, pieces
from .math import exp, fused, log, square_root
from .rows import LANES

# The columns of a task of causal_conv.
BLOCK = 128
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
) -> Kernel:
    """One task: a block of columns of one sequence."""
    kernel, blocks = CpuKernelBuilder(name), -(-columns // BLOCK)
    x = kernel.buffer("x", (rows, stride), "float32")
    weight = kernel.buffer("weight", (columns * taps,), "float32")
    biases = kernel.buffer("bias", (columns,), "float32") if bias else None
    sequences = Sequences(kernel, rows, (taps - 1, columns))
    y = kernel.buffer("y", (rows, columns), "float32", write=True)
    with kernel.tasks("task", "B", blocks) as task:
        sequence, block = kernel.split(task, blocks, ("sequence", "block"))
        begin, end, read, write, continues = sequences.of(sequence)

        def convolve(column: Scalar, lanes: int) -> None:
            here, dtype = ramp(column, lanes), floats(lanes)
            known = kernel.local(f"known{lanes}", taps - 1, dtype, fill=0)
            with kernel.when(continues):
                for back in range(taps - 1):
                    known[back] = sequences.state[read, back, here]
            factors = kernel.local(f"factors{lanes}", taps, dtype)
            for tap in range(taps):
                factors[tap] = weight[tirx.Ramp(column * taps + tap, taps, lanes) if lanes > 1 else column * taps + tap]
            with kernel.loop("row", end - begin) as row:
                newest = kernel.let("newest", x[begin + row, ramp(start + column, lanes)])
                total = newest * factors[taps - 1]
                for back in range(taps - 1):
                    total = fused(known[back], factors[back], total)
                total = kernel.let("total", total if biases is None else total + biases[here])
                y[begin + row, here] = ACTIVATIONS[activation](total)
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
    """One task: one head of one sequence. Its state is changed in the slot where it is written."""
    kernel, keys = CpuKernelBuilder(name), key_heads * key_dim
    qkv = kernel.buffer("qkv", (rows, 2 * keys + heads * value_dim), "float32")
    abz = kernel.buffer("abz", (rows, stride), "float32")
    vectors = kernel.buffer("vectors", (2 * heads + value_dim,), "float32")
    sequences = Sequences(kernel, rows, (heads, key_dim, value_dim))
    y = kernel.buffer("y", (rows, heads * value_dim), "float32", write=True)
    state = sequences.state
    with kernel.tasks("task", "B", heads) as task:
        sequence, head = kernel.split(task, heads, ("sequence", "head"))
        begin, end, read, write, continues = sequences.of(sequence)
        with kernel.loop("key", key_dim) as key:

            def begin_with(column: Scalar, lanes: int) -> None:
                here = ramp(column, lanes)
                with kernel.when(continues):
                    state[write, head, key, here] = state[read, head, key, here]
                with kernel.when(tirx.Not(continues)):
                    state[write, head, key, here] = splat(number(0, "float32"), lanes)

            each_vector(kernel, value_dim, isa.lanes, begin_with)
        key_head = kernel.let("key_head", tirx.truncdiv(head, heads // key_heads))
        rate = stored(kernel, "rate", exp(kernel.let("a_log", vectors[head])))
        query_sums, key_sums = (kernel.local(f"{which}_sums", value_dim, "float32") for which in ("query", "key"))
        with kernel.loop("step", end - begin) as step:
            row = kernel.let("row", begin + step)

            def query(at: Scalar) -> Scalar:
                return qkv[row, key_head * key_dim + at]

            def key_of(at: Scalar) -> Scalar:
                return qkv[row, keys + key_head * key_dim + at]

            def dot(name: str, one: Callable[[Scalar], Scalar], other: Callable[[Scalar], Scalar]) -> Scalar:
                total = kernel.local(name, 1, "float32", fill=0)
                with kernel.loop("at", key_dim) as at:
                    total[0] = total[0] + one(at) * other(at)
                return kernel.let(f"{name}_total", total[0])

            one = number(1, "float32")
            units = [
                kernel.let("unit", one / square_root(dot(name, each, each) + number(L2_EPS, "float32")))
                for name, each in (("query_square", query), ("key_square", key_of))
            ]
            overlap = dot("overlap", query, key_of)
            decay = rate * softplus(kernel, abz[row, a_start + head] + vectors[heads + head])
            kept = stored(kernel, "kept", exp(kernel.let("exponent", number(0, "float32") - decay)))
            beta = stored(kernel, "beta", sigmoid(kernel.let("beta_input", abz[row, b_start + head])))

            def clear(column: Scalar, lanes: int) -> None:
                for sums in (query_sums, key_sums):
                    sums[ramp(column, lanes)] = splat(number(0, "float32"), lanes)

            each_vector(kernel, value_dim, isa.lanes, clear)
            with kernel.loop("at", key_dim) as at:
                factors = [kernel.let("factor", each(at)) for each in (query, key_of)]

                def add(column: Scalar, lanes: int) -> None:
                    here = ramp(column, lanes)
                    old = kernel.let("old", state[write, head, at, here])
                    for sums, factor in zip((query_sums, key_sums), factors, strict=True):
                        sums[here] = fused(old, splat(factor, lanes), sums[here])

                each_vector(kernel, value_dim, isa.lanes, add)

            def change(column: Scalar, lanes: int) -> None:
                """key_sums becomes what the state changes by, for each element of the key."""
                here = ramp(column, lanes)
                value = qkv[row, ramp(2 * keys + head * value_dim + column, lanes)]
                known = key_sums[here] * splat(kept * units[1], lanes)
                error = kernel.let("error", (value - known) * splat(beta * units[1], lanes))
                total = query_sums[here] * splat(kept, lanes) + error * splat(overlap, lanes)
                y[row, ramp(head * value_dim + column, lanes)] = total * splat(
                    units[0] * number(key_dim**-0.5, "float32"), lanes
                )
                key_sums[here] = error

            each_vector(kernel, value_dim, isa.lanes, change)
            squares = kernel.local("squares", 1, "float32", fill=0)
            with kernel.loop("column", value_dim) as column:
                each_y = kernel.let("each_y", y[row, head * value_dim + column])
                squares[0] = squares[0] + each_y * each_y
            mean = squares[0] * number(1 / value_dim, "float32")
            scale = stored(kernel, "scale", one / square_root(mean + number(eps, "float32")))

            def normed(column: Scalar, lanes: int) -> None:
                here = ramp(head * value_dim + column, lanes)
                z = kernel.let("z", abz[row, ramp(z_start + head * value_dim + column, lanes)])
                factors = splat(scale, lanes) * vectors[ramp(2 * heads + column, lanes)]
                y[row, here] = y[row, here] * factors * ACTIVATIONS["silu"](z)

            each_vector(kernel, value_dim, isa.lanes, normed)
            with kernel.loop("at", key_dim) as at:
                factor = kernel.let("factor", key_of(at))

                def update(column: Scalar, lanes: int) -> None:
                    here = ramp(column, lanes)
                    old = state[write, head, at, here] * splat(kept, lanes)
                    state[write, head, at, here] = fused(key_sums[here], splat(factor, lanes), old)

                each_vector(kernel, value_dim, isa.lanes, update)
    return kernel.finish()


def ssm_scan(
    name: str,
    *,
    isa: Isa,  # noqa: ARG001
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
        begin, end, read, write, continues = sequences.of(sequence)
        group = kernel.let("group", tirx.truncdiv(head, heads // groups))
        rate = stored(kernel, "rate", exp(kernel.let("a_log", vectors[head])))
        with kernel.loop("step", end - begin) as step:
            row = kernel.let("row", begin + step)
            time = softplus(kernel, dt[row, dt_start + head] + vectors[2 * heads + head])
            kept = stored(kernel, "kept", exp(kernel.let("exponent", number(0, "float32") - rate * time)))
            # The first row reads the old state, unless the sequence begins.
            has_state = kernel.let("has_state", select(continues, step >= 0, step > 0))
            source = kernel.let("source", select(step > 0, write, read))
            with kernel.loop("element", head_dim) as element:
                x = kernel.let("x", xbc[row, head * head_dim + element])
                taken = kernel.let("taken", time * x)
                sums = kernel.local("sums", 1, floats(LANES), fill=0)
                rest = kernel.local("rest", 1, "float32", fill=0)

                def scan(column: Scalar, lanes: int) -> None:
                    here, first = ramp(column, lanes), width + group * state_dim + column
                    b, c = (xbc[row, ramp(first + which * groups * state_dim, lanes)] for which in range(2))
                    new = kernel.local(f"new{lanes}", 1, floats(lanes))
                    new[0] = b * splat(taken, lanes)
                    with kernel.when(has_state):
                        new[0] = fused(state[source, head, element, here], splat(kept, lanes), new[0])
                    state[write, head, element, here] = new[0]
                    if lanes == LANES:
                        sums[0] = fused(new[0], c, sums[0])
                    else:
                        rest[0] = rest[0] + sum_of_lanes(new[0] * c)

                each_vector(kernel, state_dim, LANES, scan)
                column = kernel.let("column", head * head_dim + element)
                y[row, column] = sum_of_lanes(sums[0]) + rest[0] + vectors[heads + head] * x
            if z_start is not None:

                def gate(column: Scalar, lanes: int) -> None:
                    here = ramp(head * head_dim + column, lanes)
                    z = kernel.let("z", dt[row, ramp(z_start + head * head_dim + column, lanes)])
                    y[row, here] = y[row, here] * ACTIVATIONS["silu"](z)

                each_vector(kernel, head_dim, LANES, gate)
    return kernel.finish()


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

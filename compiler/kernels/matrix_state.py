"""gated_delta and ssm_scan, row after row: a state of each sequence and head is a matrix that decays, and to which an
outer product is added.

One workgroup: up to 32 outputs of a head of one sequence, for all its new rows; all outputs of a head of gated_delta,
which are normalized together.
One thread: one output and a part of the dim over which the state is summed; it keeps that part of the state in
registers. For each row, threads share the row's vectors and sum their parts in workgroup memory.

With ``few``, sequences with more new rows are left to the kernels of `chunk_scan.py`. `convolved_delta.py` has the
kernel for single rows of which the convolution before is a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..ir.expr import Expr
from .builder import Array, Kernel, KernelBuilder, Scalar, all_of, exp, guard_below, log, maximum, rsqrt, select
from .maths import float32, rms_factor, sigmoid, silu

# Outputs of a workgroup, and elements of the state that a thread keeps; more if there would be more than 8 parts.
OUTPUTS, KEPT, MAX_PARTS = 32, 32, 8
# The outputs of a head of gated_delta: a workgroup has no more threads.
MAX_OUTPUTS = OUTPUTS * MAX_PARTS
# See `ops.states.L2_EPS`.
L2_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums of a row over the state's other dim, S the state of an output before the row: of the row's key times S,
    of its query times S, and of the products of both vectors with themselves and each other.
    """

    key_state: Scalar
    query_state: Scalar
    key_key: Scalar
    query_query: Scalar
    query_key: Scalar


@dataclass(frozen=True, slots=True)
class Change:
    """What a row does: the state becomes ``kept`` * state + key * ``change``, and the output ``y``."""

    kept: Scalar
    change: Scalar
    y: Scalar


def gated_delta(
    name: str,
    *,
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
    few: int | None = None,
) -> Kernel:
    kernel, keys = KernelBuilder(name), key_heads * key_dim
    width = 2 * keys + heads * value_dim
    qkv = kernel.buffer("qkv", (rows, width), "float32")
    abz = kernel.buffer("abz", (rows, stride), "float32")
    rule = DeltaRule(kernel, abz, heads, key_dim, value_dim, a_start, b_start, z_start, eps)
    turns = -(-value_dim // OUTPUTS)
    scan = Scan(kernel, rows, heads, (heads, key_dim, value_dim), key_dim, value_dim, turns, few=few)

    def vector(row: Scalar, index: Scalar, *, is_query: bool) -> Scalar:
        first = scan.head // (heads // key_heads) * key_dim
        return qkv[row, first + index + (0 if is_query else keys)]

    def value(row: Scalar) -> Scalar:
        return qkv[row, 2 * keys + scan.head * value_dim + scan.output]

    rule.run(scan, vector, value)
    return kernel.finish()


class DeltaRule:
    """What a row of gated_delta does. ``abz`` has the row's a, b and z; the argument "vectors" is that of the op."""

    def __init__(
        self,
        kernel: KernelBuilder,
        abz: Array,
        heads: int,
        key_dim: int,
        value_dim: int,
        a_start: int,
        b_start: int,
        z_start: int,
        eps: float,
    ) -> None:
        self._kernel, self._abz, self._heads, self._eps = kernel, abz, heads, eps
        self._key_dim, self._value_dim = key_dim, value_dim
        self._a_start, self._b_start, self._z_start = a_start, b_start, z_start
        self._vectors = kernel.buffer("vectors", (2 * heads + value_dim,), "float32")

    def run(
        self,
        scan: Scan,
        vector: Callable[..., Scalar],
        value: Callable[[Scalar], Scalar],
        prepare: Callable[[Scalar], None] | None = None,
    ) -> None:
        """``value(row)`` is the value of the thread's output; the others are those of `Scan.run`."""

        def change(row: Scalar, sums: Sums) -> Change:
            return self._change(scan, row, sums, value(row))

        scan.run(vector, change, lambda index, output: (scan.head, index, output), prepare)

    def _change(self, scan: Scan, row: Scalar, sums: Sums, value: Scalar) -> Change:
        kernel, abz, vectors, head = self._kernel, self._abz, self._vectors, scan.head
        key, query = (kernel.let("unit", rsqrt(each + float32(L2_EPS))) for each in (sums.key_key, sums.query_query))
        decay = exp(vectors[head]) * softplus(kernel, abz[row, self._a_start + head] + vectors[self._heads + head])
        kept = kernel.let("kept", exp(float32(0) - decay))
        beta = sigmoid(kernel.let("beta_input", abz[row, self._b_start + head]))
        # Of the unit key.
        error = kernel.let("error", beta * (value - kept * key * sums.key_state) * key)
        y = kernel.let("y", (kept * sums.query_state + sums.query_key * error) * query * float32(self._key_dim**-0.5))
        factor = kernel.let("factor", rms_factor(scan.over_outputs(y * y), self._value_dim, self._eps))
        z = kernel.let("z", abz[row, self._z_start + head * self._value_dim + scan.output])
        return Change(kept, error, y * factor * vectors[2 * self._heads + scan.output] * silu(z))


def ssm_scan(
    name: str,
    *,
    rows: Expr,
    heads: int,
    groups: int,
    head_dim: int,
    state_dim: int,
    stride: int,
    dt_start: int,
    z_start: int | None,
    few: int | None = None,
) -> Kernel:
    kernel, width = KernelBuilder(name), heads * head_dim
    xbc = kernel.buffer("xbc", (rows, width + 2 * groups * state_dim), "float32")
    dt = kernel.buffer("dt", (rows, stride), "float32")
    vectors = kernel.buffer("vectors", (3 * heads,), "float32")
    scan = Scan(kernel, rows, heads, (heads, head_dim, state_dim), state_dim, head_dim, few=few)

    def vector(row: Scalar, index: Scalar, *, is_query: bool) -> Scalar:
        first = width + scan.head // (heads // groups) * state_dim
        return xbc[row, first + index + (groups * state_dim if is_query else 0)]

    def change(row: Scalar, sums: Sums) -> Change:
        step = softplus(kernel, dt[row, dt_start + scan.head] + vectors[2 * heads + scan.head])
        kept = kernel.let("kept", exp(float32(0) - exp(vectors[scan.head]) * step))
        x = kernel.let("x", xbc[row, scan.head * head_dim + scan.output])
        taken = kernel.let("taken", step * x)
        y = kept * sums.query_state + sums.query_key * taken + vectors[heads + scan.head] * x
        if z_start is None:
            return Change(kept, taken, y)
        z = kernel.let("z", dt[row, z_start + scan.head * head_dim + scan.output])
        return Change(kept, taken, y * silu(z))

    scan.run(vector, change, lambda index, output: (scan.head, output, index))
    return kernel.finish()


class Scan:
    """The rows of one sequence and head, with the arguments that both ops share. ``shape`` is that of a slot's state;
    it is summed over ``summed`` elements for each of ``outputs``, of which a workgroup computes ``turns`` times 32.
    With ``one_row``, row s is the only one of sequence s.
    """

    def __init__(
        self,
        kernel: KernelBuilder,
        rows: Expr,
        heads: int,
        shape: tuple[int, ...],
        summed: int,
        outputs: int,
        turns: int = 1,
        *,
        few: int | None,
        one_row: bool = False,
    ) -> None:
        self._kernel, self._summed, self._outputs = kernel, summed, outputs
        self._lanes = turns * OUTPUTS
        self._kept = max(KEPT, -(-summed // max(1, MAX_PARTS // turns)))
        self._parts = -(-summed // self._kept)
        self._state = kernel.buffer("state", ("Z", *shape), "float32", write=True)
        slots = kernel.buffer("state_slots", ("B", 2), "int32")
        seq_starts = None if one_row else kernel.buffer("seq_starts", (["add", "B", 1],), "int32")
        positions = kernel.buffer("positions", (rows,), "int32")
        self._y = kernel.buffer("y", (rows, heads * outputs), "float32", write=True)
        blocks = -(-outputs // self._lanes)
        group, sequence = kernel.grid(heads * blocks, "B")
        self.threads = self._lanes * self._parts
        self.thread = kernel.threads(self.threads)
        self.head = kernel.let("head", group // blocks)
        lane = kernel.let("lane", self.thread % self._lanes)
        place = kernel.let("place", group % blocks * self._lanes + lane)
        self._is_output = guard_below(place, outputs, self._lanes)
        # Threads beyond the last output compute it again and store nothing.
        self.output = place if self._is_output is True else kernel.let("output", select(place < outputs, place, 0))
        self._lane, self._part = lane, kernel.let("part", self.thread // self._lanes)
        self._begin, self._length = sequence, 1
        if seq_starts is not None:
            self._begin, end = (kernel.let("bound", seq_starts[sequence + behind]) for behind in range(2))
            length = kernel.let("length", end - self._begin)
            self._length = length if few is None else kernel.let("length", select(length <= few, length, 0))
        self._is_output = self._is_output if few is None else all_of(self._is_output, self._length > 0)
        self.read, self.write = (kernel.let("state_slot", slots[sequence, which]) for which in range(2))
        self.continues = kernel.let("first_position", positions[self._begin]) > 0

    def run(
        self,
        vector: Callable[..., Scalar],
        change: Callable[[Scalar, Sums], Change],
        place: Callable[[Scalar, Scalar], tuple[Scalar, ...]],
        prepare: Callable[[Scalar], None] | None = None,
    ) -> None:
        """``vector(row, index, is_query=..)`` reads a row's query or key, ``place(index, output)`` is where the state
        of an output is in its slot. ``prepare(row)`` fills memory of the workgroup that ``change`` reads.
        """
        kernel, parts, kept, threads = self._kernel, self._parts, self._kept, self.threads
        own = kernel.local("own", kept, "float32", fill=0)
        with kernel.when(self.continues), kernel.loop("index", kept) as index, self._is_mine(index) as at:
            own[index] = self._state[(self.read, *place(at, self.output))]
        # Beyond the last element, vectors are zeros.
        padded = parts * kept
        vectors = [kernel.shared(f"{name}_row", (padded,), "float32") for name in ("query", "key")]
        partials = kernel.shared("partials", (5, threads), "float32")
        with kernel.loop("step", self._length) as step:
            row = kernel.let("row", self._begin + step)
            for shared, is_query in zip(vectors, (True, False), strict=True):
                with kernel.loop("turn", -(-padded // threads)) as turn:
                    element = kernel.let("element", turn * threads + self.thread)
                    with kernel.when(guard_below(element, padded, threads)):
                        shared[element] = float32(0)
                        with kernel.when(guard_below(element, self._summed, padded)):
                            shared[element] = vector(row, element, is_query=is_query)
            if prepare is not None:
                prepare(row)
            kernel.barrier()
            sums = self._row_sums(own, vectors, partials)
            made = change(row, sums)
            with kernel.when(all_of(self._part == 0, self._is_output)):
                self._y[row, self.head * self._outputs + self.output] = made.y
            with kernel.loop("index", kept) as index:
                own[index] = made.kept * own[index] + vectors[1][self._part * kept + index] * made.change
            # The next row's vectors and sums replace these.
            kernel.barrier()
        with kernel.when(self._is_output), kernel.loop("index", kept) as index, self._is_mine(index) as at:
            self._state[(self.write, *place(at, self.output))] = own[index]

    def over_outputs(self, value: Scalar) -> Scalar:
        """The sum over all outputs of a head, which must be those of one workgroup."""
        shared = self._kernel.shared("of_outputs", (self._lanes,), "float32")
        with self._kernel.when(self._part == 0):
            shared[self._lane] = value
        self._kernel.barrier()
        total = self._kernel.local("total_of_outputs", 1, "float32", fill=0)
        with self._kernel.loop("output", self._outputs) as output:
            total[0] = total[0] + shared[output]
        return total[0]

    def _row_sums(self, own: Array, vectors: list[Array], partials: Array) -> Sums:
        kernel, first = self._kernel, self._part * self._kept
        sums = kernel.local("sums", 5, "float32", fill=0)
        with kernel.loop("index", self._kept) as index:
            query, key = (kernel.let("each", shared[first + index]) for shared in vectors)
            for at, term in enumerate((key * own[index], query * own[index], key * key, query * query, query * key)):
                sums[at] = sums[at] + term
        for at in range(5):
            partials[at, self.thread] = sums[at]
        kernel.barrier()
        totals = []
        for at in range(5):
            total = partials[at, self._lane]
            for part in range(1, self._parts):
                total = total + partials[at, part * self._lanes + self._lane]
            totals.append(kernel.let("total", total))
        return Sums(*totals)

    @contextmanager
    def _is_mine(self, index: Scalar) -> Iterator[Scalar]:
        """With the element of the summed dim at an index of this thread, if it exists."""
        at = self._kernel.let("at", self._part * self._kept + index)
        with self._kernel.when(guard_below(at, self._summed, self._parts * self._kept)):
            yield at


def softplus(kernel: KernelBuilder, x: Scalar) -> Scalar:
    """ln(1 + exp(x)) = max(x, 0) + ln(1 + exp(-|x|))."""
    x = kernel.let("softplus_input", x)
    small = log(float32(1) + exp(float32(0) - select(x < float32(0), float32(0) - x, x)))
    return kernel.let("softplus", maximum(x, float32(0)) + small)

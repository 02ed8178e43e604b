"""gated_delta and ssm_scan over the chunks of a sequence: the second kernel of a prefill. The first one is
`chunk_products.py`, which has the equations.

One workgroup: some outputs of a head of one sequence, for all its chunks. It keeps their state in workgroup memory.
Sequences with at most ``few`` new rows are left to the kernel of `matrix_state.py`.
One thread: outputs 8 apart of rows 16 apart; and of the new state outputs 8 apart of elements 16 apart.
Needs: a state that fits (`outputs_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..ir.expr import Expr
from .batch_rows import Tiling
from .builder import Array, Kernel, KernelBuilder, Scalar, all_of, guard_below, minimum, select
from .chunk_products import CHUNK, KEPT, KEY, NEXT, PADDED, QUERY, SCRATCH_ROWS, WEIGHT
from .maths import float32, rms_factor, silu

# Threads of a workgroup: along the outputs, and along the rows or the elements of the state.
LANES, LINES = 8, 16
THREADS = LANES * LINES
# Columns of a matrix in workgroup memory at a time.
PIECE = 8
# The float32 of a workgroup's state.
MAX_STATE = 2048
# The threads that norm a head.
NORM_THREADS = 64


def outputs_of(summed: int) -> int | None:
    """The outputs of a workgroup, for a state that is summed over ``summed`` elements; None if none fits."""
    return next((outputs for outputs in (2 * LANES, LANES) if outputs * padded(summed) <= MAX_STATE), None)


def padded(summed: int) -> int:
    return -(-summed // LINES) * LINES


def gated_delta_chunks(
    name: str, *, rows: Expr, heads: int, key_heads: int, key_dim: int, value_dim: int, few: int
) -> Kernel:
    """y without its norm and gate."""
    kernel, keys = KernelBuilder(name), key_heads * key_dim
    qkv = kernel.buffer("qkv", (rows, 2 * keys + heads * value_dim), "float32")
    scan = ChunkScan(kernel, rows, heads, (heads, key_dim, value_dim), key_dim, value_dim, few, solves=True)

    def vector(row: Scalar, at: Scalar, *, is_query: bool) -> Scalar:
        return qkv[row, scan.head // (heads // key_heads) * key_dim + at + (0 if is_query else keys)]

    def value(row: Scalar, output: Scalar) -> Scalar:
        return qkv[row, 2 * keys + scan.head * value_dim + output]

    scan.run(vector, value, lambda at, output: (scan.head, at, output))
    return kernel.finish()


def gated_delta_output(
    name: str, *, rows: Expr, heads: int, value_dim: int, stride: int, z_start: int, eps: float
) -> Kernel:
    """y with its norm and gate, in place. One workgroup: a head of a row."""
    kernel = KernelBuilder(name)
    abz = kernel.buffer("abz", (rows, stride), "float32")
    vectors = kernel.buffer("vectors", (2 * heads + value_dim,), "float32")
    y = kernel.buffer("y", (rows, heads * value_dim), "float32", write=True)
    head, row = kernel.grid(heads, rows)
    thread = kernel.threads(NORM_THREADS)
    squares = kernel.local("squares", 1, "float32", fill=0)

    def each(body: Callable[[Scalar], None]) -> None:
        with kernel.loop("turn", -(-value_dim // NORM_THREADS)) as turn:
            column = kernel.let("column", turn * NORM_THREADS + thread)
            with kernel.when(guard_below(column, value_dim, NORM_THREADS)):
                body(column)

    def add(column: Scalar) -> None:
        value = kernel.let("value", y[row, head * value_dim + column])
        squares[0] = squares[0] + value * value

    each(add)
    total = kernel.folded("sums", thread, NORM_THREADS, squares[0], lambda one, other: one + other)
    factor = kernel.let("factor", rms_factor(total, value_dim, eps))

    def store(column: Scalar) -> None:
        place = kernel.let("place", head * value_dim + column)
        z = kernel.let("z", abz[row, z_start + place])
        y[row, place] = y[row, place] * factor * vectors[2 * heads + column] * silu(z)

    each(store)
    return kernel.finish()


def ssm_scan_chunks(
    name: str,
    *,
    rows: Expr,
    heads: int,
    groups: int,
    head_dim: int,
    state_dim: int,
    stride: int,
    z_start: int | None,
    few: int,
) -> Kernel:
    kernel, width = KernelBuilder(name), heads * head_dim
    xbc = kernel.buffer("xbc", (rows, width + 2 * groups * state_dim), "float32")
    dt = None if z_start is None else kernel.buffer("dt", (rows, stride), "float32")
    scan = ChunkScan(kernel, rows, heads, (heads, head_dim, state_dim), state_dim, head_dim, few, solves=False)

    def vector(row: Scalar, at: Scalar, *, is_query: bool) -> Scalar:
        first = width + scan.head // (heads // groups) * state_dim
        return xbc[row, first + at + (groups * state_dim if is_query else 0)]

    def value(row: Scalar, output: Scalar) -> Scalar:
        return xbc[row, scan.head * head_dim + output]

    def gated(row: Scalar, output: Scalar, y: Scalar) -> Scalar:
        return y if dt is None else y * silu(kernel.let("z", dt[row, z_start + scan.head * head_dim + output]))

    scan.run(vector, value, lambda at, output: (scan.head, output, at), gated)
    return kernel.finish()


class ChunkScan:
    """The chunks of one sequence and head, with the arguments that both ops share, as of `matrix_state.Scan`."""

    def __init__(
        self,
        kernel: KernelBuilder,
        rows: Expr,
        heads: int,
        shape: tuple[int, ...],
        summed: int,
        outputs: int,
        few: int,
        *,
        solves: bool,
    ) -> None:
        tiling, width = Tiling(CHUNK, few), outputs_of(summed)
        assert width is not None
        self._kernel, self._summed, self._outputs, self._width, self._solves = kernel, summed, outputs, width, solves
        self._state = kernel.buffer("state", ("Z", *shape), "float32", write=True)
        slots = kernel.buffer("state_slots", ("B", 2), "int32")
        seq_starts = kernel.buffer("seq_starts", (["add", "B", 1],), "int32")
        positions = kernel.buffer("positions", (rows,), "int32")
        self._made = kernel.scratch("chunks", (tiling.most_slots, heads, SCRATCH_ROWS, CHUNK), "float32")
        self._y = kernel.buffer("y", (rows, heads * outputs), "float32", write=True)
        blocks = -(-outputs // width)
        group, sequence = kernel.grid(heads * blocks, "B")
        self._thread = kernel.threads(THREADS)
        self.head = kernel.let("head", group // blocks)
        self._first_output = kernel.let("first_output", group % blocks * width)
        self._lane, self._line = kernel.let("lane", self._thread % LANES), kernel.let("line", self._thread // LANES)
        self._begin, self._end = (kernel.let("bound", seq_starts[sequence + behind]) for behind in range(2))
        self._read, self._write = (kernel.let("state_slot", slots[sequence, which]) for which in range(2))
        self._continues = kernel.let("first_position", positions[self._begin]) > 0
        self._first_slot = kernel.let("first_slot", tiling.start(sequence, self._begin))
        length = kernel.let("length", self._end - self._begin)
        self._chunks = kernel.let("chunks", select(length > few, (length + CHUNK - 1) // CHUNK, 0))
        # The state, then the values or changes of a chunk's rows.
        self._own = kernel.shared("own", (padded(summed), width), "float32")
        self._changes = kernel.shared("changes", (CHUNK, width), "float32")
        self._pieces = kernel.shared("pieces", (PIECE * PADDED,), "float32")

    def run(
        self,
        vector: Callable[..., Scalar],
        value: Callable[[Scalar, Scalar], Scalar],
        place: Callable[[Scalar, Scalar], tuple[Scalar, ...]],
        gated: Callable[[Scalar, Scalar, Scalar], Scalar] = lambda row, output, y: y,  # noqa: ARG005
    ) -> None:
        """``vector(row, at, is_query=..)`` reads a row's query or key, ``value(row, output)`` its value, and
        ``place(at, output)`` is where the state of an output is in its slot.
        """
        kernel = self._kernel
        self._load_state(place)
        with kernel.loop("chunk", self._chunks) as chunk:
            first = kernel.let("first", self._begin + chunk * CHUNK)
            count = kernel.let("count", minimum(self._end - first, CHUNK))
            slot = kernel.let("slot", self._first_slot + chunk)
            self._scan_chunk(first, count, slot, vector, value, gated)
        with kernel.when(self._chunks > 0):
            for at, column in self._state_elements():
                with kernel.when(self._exists(at, column)):
                    self._state[(self._write, *place(at, self._first_output + column))] = self._own[at, column]

    def _scan_chunk(
        self,
        first: Scalar,
        count: Scalar,
        slot: Scalar,
        vector: Callable[..., Scalar],
        value: Callable[[Scalar, Scalar], Scalar],
        gated: Callable[[Scalar, Scalar, Scalar], Scalar],
    ) -> None:
        kernel, made, head = self._kernel, self._made, self.head

        def query(row: Scalar, at: Scalar) -> Scalar:
            return vector(first + row, at, is_query=True)

        def key(row: Scalar, at: Scalar) -> Scalar:
            return vector(first + row, at, is_query=False)

        def factor(which: int, row: Scalar | int) -> Scalar:
            return made[slot, head, which, row]

        def products(row: Scalar, at: Scalar) -> Scalar:
            return select(at <= row, made[slot, head, row, at], float32(0))

        def solution(row: Scalar, at: Scalar) -> Scalar:
            below = select(at < row, made[slot, head, at, row], float32(0))
            return select(at == row, made[slot, head, WEIGHT, row], below)

        of_query, *of_key = self._product([query, key][: 1 + self._solves], self._own, self._summed, count)
        for row, column, own in self._rows():
            output = kernel.let("output", self._first_output + column)
            of_query[own] = of_query[own] * factor(QUERY, row)
            self._changes[row, column] = float32(0)
            with kernel.when(all_of(row < count, guard_below(output, self._outputs, self._width))):
                each = value(first + row, output)
                self._changes[row, column] = each - of_key[0][own] * factor(KEY, row) if of_key else each
        kernel.barrier()
        if self._solves:
            (solved,) = self._product([solution], self._changes, CHUNK, CHUNK)
            for row, column, own in self._rows():
                self._changes[row, column] = solved[own]
            kernel.barrier()
        (within,) = self._product([products], self._changes, CHUNK, CHUNK)
        for row, column, own in self._rows():
            output = kernel.let("output", self._first_output + column)
            with kernel.when(all_of(row < count, guard_below(output, self._outputs, self._width))):
                y = of_query[own] + within[own]
                self._y[first + row, head * self._outputs + output] = gated(first + row, output, y)
        self._update(key, lambda row: factor(NEXT, row), factor(KEPT, CHUNK - 1), count)

    def _product(
        self, lefts: Sequence[Callable[[Scalar, Scalar], Scalar]], right: Array, size: int, count: Scalar | int
    ) -> list[Array]:
        """The thread's elements of left @ right, for ``left(row, at)`` of ``size`` columns and ``count`` rows."""
        kernel, columns = self._kernel, PIECE // len(lefts)
        mine = CHUNK // LINES * (self._width // LANES)
        sums = [kernel.local("sums", mine, "float32", fill=0) for _ in lefts]
        with kernel.loop("piece", -(-size // columns)) as piece:
            with kernel.loop("turn", CHUNK * columns // THREADS) as turn:
                element = kernel.let("element", turn * THREADS + self._thread)
                row, at = kernel.let("row", element // columns), kernel.let("at", element % columns)
                inside = all_of(
                    True if count is CHUNK else row < count, guard_below(piece * columns + at, size, columns)
                )
                for which, left in enumerate(lefts):
                    here = (which * columns + at) * PADDED + row
                    if inside is not True:
                        self._pieces[here] = float32(0)
                    with kernel.when(inside):
                        self._pieces[here] = left(row, piece * columns + at)
            kernel.barrier()
            with kernel.loop("at", columns) as at:
                others = [
                    kernel.let("other", right[piece * columns + at, self._lane + m * LANES])
                    for m in range(self._width // LANES)
                ]
                for which, each in enumerate(sums):
                    for a in range(CHUNK // LINES):
                        left_value = kernel.let(
                            "left", self._pieces[(which * columns + at) * PADDED + self._line + a * LINES]
                        )
                        for m, other in enumerate(others):
                            own = a * len(others) + m
                            each[own] = each[own] + left_value * other
            kernel.barrier()
        return sums

    def _update(
        self,
        key: Callable[[Scalar, Scalar], Scalar],
        factor: Callable[[Scalar], Scalar],
        kept: Scalar,
        count: Scalar,
    ) -> None:
        """The new state: ``kept`` times the old one, and the sum over rows of keys times changes."""
        kernel, size = self._kernel, padded(self._summed)
        rows = self._piece_rows(size)
        kept = kernel.let("kept", kept)
        sums = kernel.local("state_sums", size // LINES * (self._width // LANES), "float32", fill=0)
        with kernel.loop("piece", CHUNK // rows) as piece:
            with kernel.loop("turn", -(-rows * size // THREADS)) as turn:
                element = kernel.let("element", turn * THREADS + self._thread)
                with kernel.when(guard_below(element, rows * size, THREADS)):
                    row, at = kernel.let("row", piece * rows + element // size), kernel.let("at", element % size)
                    self._pieces[element] = float32(0)
                    with kernel.when(all_of(row < count, guard_below(at, self._summed, size))):
                        self._pieces[element] = key(row, at) * factor(row)
            kernel.barrier()
            with kernel.loop("row", rows) as row:
                changes = [
                    kernel.let("change", self._changes[piece * rows + row, self._lane + m * LANES])
                    for m in range(self._width // LANES)
                ]
                for a in range(size // LINES):
                    each = kernel.let("each", self._pieces[row * size + self._line + a * LINES])
                    for m, change in enumerate(changes):
                        own = a * len(changes) + m
                        sums[own] = sums[own] + each * change
            kernel.barrier()
        for own, (at, column) in enumerate(self._state_elements()):
            self._own[at, column] = kept * self._own[at, column] + sums[own]
        kernel.barrier()

    def _piece_rows(self, size: int) -> int:
        """Rows of keys that fit into a piece: a power of two."""
        rows = PIECE
        while rows * size > PIECE * PADDED:
            rows //= 2
        return rows

    def _load_state(self, place: Callable[[Scalar, Scalar], tuple[Scalar, ...]]) -> None:
        kernel = self._kernel
        for at, column in self._state_elements():
            self._own[at, column] = float32(0)
            with kernel.when(all_of(self._continues, self._chunks > 0, self._exists(at, column))):
                self._own[at, column] = self._state[(self._read, *place(at, self._first_output + column))]
        kernel.barrier()

    def _exists(self, at: Scalar, column: Scalar) -> Scalar | bool:
        return all_of(
            guard_below(at, self._summed, LINES), guard_below(self._first_output + column, self._outputs, self._width)
        )

    def _state_elements(self) -> list[tuple[Scalar, Scalar]]:
        """Element and column of the thread's part of the state."""
        kernel = self._kernel
        columns = [kernel.let("column", self._lane + m * LANES) for m in range(self._width // LANES)]
        ats = [kernel.let("at", self._line + a * LINES) for a in range(padded(self._summed) // LINES)]
        return [(at, column) for at in ats for column in columns]

    def _rows(self) -> list[tuple[Scalar, Scalar, int]]:
        """Row and column of the thread's elements of a chunk's results, and their numbers."""
        kernel = self._kernel
        columns = [kernel.let("column", self._lane + m * LANES) for m in range(self._width // LANES)]
        rows = [kernel.let("row", self._line + a * LINES) for a in range(CHUNK // LINES)]
        pairs = [(row, column) for row in rows for column in columns]
        return [(row, column, own) for own, (row, column) in enumerate(pairs)]

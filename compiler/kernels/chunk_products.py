"""What a chunk of 64 rows of gated_delta or ssm_scan needs beside the state: the first kernel of a prefill.

The rows of a sequence are processed in chunks, so that a prompt takes a step for every 64 rows, and all chunks are
prepared at once. Within a chunk, k, q and v are its keys, queries and values, b the betas, D[i, j] is the product of
the decays of the rows behind j up to i, and d[i] that of all rows up to i. With S the state before the chunk, the
changes u of its rows, its outputs y and the state after it are::

    A[i, j] = b[i] (k[i] . k[j]) D[i, j]    for j < i, else 0
    P[i, j] = (q[i] . k[j]) D[i, j]         for j <= i, else 0
    u = T (v - diag(d) k S)                 with T = (1 + A)^-1 diag(b)
    y = P u + diag(d) q S
    S = d[-1] S + k^T diag(D[-1]) u

which is the chunked form of the gated delta rule (Yang et al. 2024, "Gated Delta Networks"). Mamba-2's is the same with
k = B, q = C and u = dt x, hence without T (Dao & Gu 2024, "Transformers are SSMs", section 6). This kernel makes T, P
and the factors of rows for `chunk_scan.py`.

D holds products of decays, not exponentials of differences of their logarithms' sums: nothing can overflow, a decay of
0 stays 0, and nothing cancels if one row decays strongly and the next ones weakly. 1 + A is inverted by blocks: once
the diagonal blocks T11 and T22 of one of twice their size are inverted, its lower left block is -T22 A21 T11.

One workgroup: a chunk and a head. One thread: 16 elements of both products, of rows and columns 16 apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..ir.expr import Expr
from .batch_rows import Tiling
from .builder import (
    Kernel,
    KernelBuilder,
    Scalar,
    all_of,
    exp,
    guard_below,
    maximum,
    minimum,
    rsqrt,
    select,
    truncated_quotient,
)
from .maths import float32, sigmoid
from .matrix_state import L2_EPS, softplus

# Rows of a chunk, threads along each side of its products, and elements of vectors that are multiplied at a time.
CHUNK, SIDE, PIECE = 64, 16, 8
THREADS, OWN = SIDE * SIDE, CHUNK // SIDE
# The columns of a piece in workgroup memory are in different banks.
PADDED = CHUNK + 4
# Elements below the diagonal.
TRIANGLE = CHUNK * (CHUNK - 1) // 2
# A chunk's scratch: the elements of P on and below the diagonal, those of T transposed above it, and a row of each of
# these factors: of the query and of the key with the old state, of the key with the new one, the product of the decays
# up to a row, and T's diagonal.
QUERY, KEY, NEXT, KEPT, WEIGHT = range(CHUNK, CHUNK + 5)
SCRATCH_ROWS = CHUNK + 5


def gated_delta_products(
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
    few: int,
) -> Kernel:
    kernel, keys = KernelBuilder(name), key_heads * key_dim
    qkv = kernel.buffer("qkv", (rows, 2 * keys + heads * value_dim), "float32")
    abz = kernel.buffer("abz", (rows, stride), "float32")
    vectors = kernel.buffer("vectors", (2 * heads + value_dim,), "float32")
    chunk = ChunkProducts(kernel, heads, few, solves=True)
    head = chunk.head
    first = kernel.let("first_element", head // (heads // key_heads) * key_dim)

    def decay(row: Scalar) -> tuple[Scalar, Scalar]:
        time = softplus(kernel, abz[row, a_start + head] + vectors[heads + head])
        beta = sigmoid(kernel.let("beta_input", abz[row, b_start + head]))
        return exp(float32(0) - exp(vectors[head]) * time), beta

    query, key = chunk.multiply(lambda row, at, is_key: qkv[row, first + at + (keys if is_key else 0)], key_dim)
    scale = float32(key_dim**-0.5)
    chunk.decay(decay)
    chunk.store_factors(lambda i: query(i) * scale, key, key)
    chunk.store_outputs(lambda i, j: query(i) * key(j) * scale)
    chunk.store_solution(lambda i, j: key(i) * key(j) * chunk.weights[i])
    return kernel.finish()


def ssm_scan_products(
    name: str,
    *,
    rows: Expr,
    heads: int,
    groups: int,
    head_dim: int,
    state_dim: int,
    stride: int,
    dt_start: int,
    few: int,
) -> Kernel:
    """dt is a factor of the columns of P and of keys, so u = x, and d is added to P's diagonal."""
    kernel, width = KernelBuilder(name), heads * head_dim
    xbc = kernel.buffer("xbc", (rows, width + 2 * groups * state_dim), "float32")
    dt = kernel.buffer("dt", (rows, stride), "float32")
    vectors = kernel.buffer("vectors", (3 * heads,), "float32")
    chunk = ChunkProducts(kernel, heads, few, solves=False)
    head = chunk.head
    first = kernel.let("first_element", width + head // (heads // groups) * state_dim)

    def decay(row: Scalar) -> tuple[Scalar, Scalar]:
        time = softplus(kernel, dt[row, dt_start + head] + vectors[2 * heads + head])
        return exp(float32(0) - exp(vectors[head]) * time), time

    chunk.multiply(lambda row, at, is_key: xbc[row, first + at + (0 if is_key else groups * state_dim)], state_dim)
    chunk.decay(decay)
    one = lambda i: float32(1)  # noqa: E731, ARG005
    chunk.store_factors(one, one, lambda i: chunk.weights[i])
    chunk.store_outputs(lambda i, j: chunk.weights[j], vectors[heads + head])  # noqa: ARG005
    return kernel.finish()


class ChunkProducts:
    """A workgroup's chunk. ``weights``: beta or dt of each row; 0 behind the last one."""

    def __init__(self, kernel: KernelBuilder, heads: int, few: int, *, solves: bool) -> None:
        tiling = Tiling(CHUNK, few)
        self._kernel, self._solves = kernel, solves
        seq_starts = kernel.buffer("seq_starts", (["add", "B", 1],), "int32")
        self._made = kernel.scratch("chunks", (tiling.most_slots, heads, SCRATCH_ROWS, CHUNK), "float32", write=True)
        self.head, self._slot = kernel.grid(heads, tiling.slots)
        self._thread = kernel.threads(THREADS)
        self._row, self._column = kernel.let("side", self._thread // SIDE), kernel.let("side", self._thread % SIDE)
        sequence = tiling.sequence_of(kernel, self._slot, seq_starts)
        begin, end = (kernel.let("bound", seq_starts[sequence + behind]) for behind in range(2))
        self._first = kernel.let("first", begin + (self._slot - tiling.start(sequence, begin)) * CHUNK)
        # A slot without a chunk makes zeros that nothing reads.
        count = select(end - begin > few, maximum(minimum(end - self._first, CHUNK), 0), 0)
        self._count = kernel.let("count", count)
        self._kept = kernel.shared("kept", (CHUNK,), "float32")
        self.weights = kernel.shared("weights", (CHUNK,), "float32")
        # D below its diagonal, then A, then the inverse of 1 + A.
        self._triangle = kernel.shared("triangle", (TRIANGLE,), "float32")
        self._before = kernel.local("before", 1, "float32", fill=1)
        names = ("query", "key") if solves else ("query",)
        self._products = [kernel.local(f"{name}_products", OWN * OWN, "float32", fill=0) for name in names]

    def multiply(self, vector: Callable[..., Scalar], size: int) -> tuple[Callable[[Scalar], Scalar], ...]:
        """q k^T, and k k^T if the op solves. ``vector(row, at, is_key)`` is an element of a query or a key. Returns
        what scales a row's query and key to length 1.
        """
        kernel, thread = self._kernel, self._thread
        pieces = kernel.shared("pieces", (2, PIECE, PADDED), "float32")
        squares = kernel.local("squares", 1, "float32", fill=0)
        with kernel.loop("piece", -(-size // PIECE)) as piece:
            with kernel.loop("turn", CHUNK * PIECE // THREADS) as turn:
                element = kernel.let("element", turn * THREADS + thread)
                row, at = kernel.let("row", element // PIECE), kernel.let("at", element % PIECE)
                inside = all_of(row < self._count, guard_below(piece * PIECE + at, size, PIECE))
                for which in range(2):
                    pieces[which, at, row] = float32(0)
                    with kernel.when(inside):
                        pieces[which, at, row] = vector(self._first + row, piece * PIECE + at, which == 1)
            kernel.barrier()
            with kernel.loop("at", PIECE) as at:
                keys = [kernel.let("key", pieces[1, at, self._column + b * SIDE]) for b in range(OWN)]
                for which, products in enumerate(self._products):
                    for a in range(OWN):
                        left = kernel.let("left", pieces[which, at, self._row + a * SIDE])
                        for b in range(OWN):
                            products[a * OWN + b] = products[a * OWN + b] + left * keys[b]
            if self._solves:
                with kernel.when(thread < 2 * CHUNK), kernel.loop("at", PIECE) as at:
                    each = kernel.let("each", pieces[thread // CHUNK, at, thread % CHUNK])
                    squares[0] = squares[0] + each * each
            kernel.barrier()
        if not self._solves:
            return ()
        units = kernel.shared("units", (2, CHUNK), "float32")
        with kernel.when(thread < 2 * CHUNK):
            units[thread // CHUNK, thread % CHUNK] = rsqrt(squares[0] + float32(L2_EPS))
        kernel.barrier()
        return lambda i: units[0, i], lambda i: units[1, i]

    def decay(self, of_row: Callable[[Scalar], tuple[Scalar, Scalar]]) -> None:
        """D. ``of_row(row)`` is a row's decay and weight."""
        kernel, thread = self._kernel, self._thread
        with kernel.when(thread < CHUNK):
            # Rows behind the last one change nothing.
            self._kept[thread], self.weights[thread] = float32(1), float32(0)
            with kernel.when(thread < self._count):
                self._kept[thread], self.weights[thread] = of_row(self._first + thread)
        kernel.barrier()
        with kernel.when(thread < CHUNK):
            with kernel.loop("back", thread) as back:
                self._before[0] = self._before[0] * self._kept[thread - back]
                self._triangle[below_diagonal(thread, thread - 1 - back)] = self._before[0]
            self._before[0] = self._before[0] * self._kept[0]
        kernel.barrier()

    def store_factors(
        self, query: Callable[[Scalar], Scalar], key: Callable[[Scalar], Scalar], following: Callable[[Scalar], Scalar]
    ) -> None:
        """The factors of rows: of queries and keys with the old state, and of keys with the new one, without decays."""
        row, before, last = self._thread, self._before[0], CHUNK - 1
        with self._kernel.when(row < CHUNK):
            self._store(QUERY, row, before * query(row))
            self._store(KEY, row, before * key(row))
            self._store(KEPT, row, before)
            self._store(WEIGHT, row, self.weights[row])
            self._store(NEXT, row, following(row))
            with self._kernel.when(row < last):
                self._store(NEXT, row, following(row) * self._triangle[below_diagonal(last, row)])

    def store_outputs(self, factor: Callable[[Scalar, Scalar], Scalar], more: Scalar | None = None) -> None:
        """P, whose elements are ``factor(i, j)`` * (q[i] . k[j]) * D[i, j]; ``more`` is added to the diagonal."""

        kernel, products = self._kernel, self._products[0]
        for i, j, own in self._elements():
            with kernel.when(i == j):
                value = products[own] * factor(i, j)
                self._store(i, j, value if more is None else value + more)
            with kernel.when(j < i):
                self._store(i, j, products[own] * factor(i, j) * self._triangle[below_diagonal(i, j)])

    def store_solution(self, factor: Callable[[Scalar, Scalar], Scalar]) -> None:
        """T, from A = ``factor(i, j)`` * (k[i] . k[j]) * D[i, j]."""
        kernel, triangle = self._kernel, self._triangle
        # The factors of other threads' rows read D, which this replaces.
        kernel.barrier()
        for i, j, own in self._elements():
            with kernel.when(j < i):
                place = kernel.let("place", below_diagonal(i, j))
                triangle[place] = triangle[place] * self._products[1][own] * factor(i, j)
        kernel.barrier()
        for size in (2**level for level in range(CHUNK.bit_length() - 1)):
            self._invert_blocks(size)
        for i, j, _ in self._elements():
            with kernel.when(j < i):
                self._store(j, i, self.weights[j] * triangle[below_diagonal(i, j)])

    def _invert_blocks(self, size: int) -> None:
        """The lower left blocks of all blocks of twice the size, of which those of this size are inverted."""
        kernel, triangle = self._kernel, self._triangle
        outputs = CHUNK // 2 * size
        turns = -(-outputs // THREADS)
        results = kernel.local(f"results{size}", turns, "float32")
        for is_last in (False, True):
            for turn in range(turns):
                element = kernel.let("element", turn * THREADS + self._thread)
                corner = kernel.let("corner", element // (size * size) * (2 * size))
                i, j = kernel.let("i", element // size % size), kernel.let("j", element % size)
                with kernel.when(guard_below(element, outputs, THREADS)):
                    own = triangle[below_diagonal(corner + size + i, corner + j)]
                    results[turn] = own
                    # A21 T11, then T22 times that. The diagonals of T11 and T22 are ones.
                    count = i if is_last else size - 1 - j
                    with kernel.loop("step", count) as step:
                        m = kernel.let("m", step if is_last else j + 1 + step)
                        if is_last:
                            one = triangle[below_diagonal(corner + size + i, corner + size + m)]
                            other = triangle[below_diagonal(corner + size + m, corner + j)]
                        else:
                            one = triangle[below_diagonal(corner + size + i, corner + m)]
                            other = triangle[below_diagonal(corner + m, corner + j)]
                        results[turn] = results[turn] + one * other
                    if is_last:
                        results[turn] = float32(0) - results[turn]
            kernel.barrier()
            for turn in range(turns):
                element = kernel.let("element", turn * THREADS + self._thread)
                corner = kernel.let("corner", element // (size * size) * (2 * size))
                i, j = kernel.let("i", element // size % size), kernel.let("j", element % size)
                with kernel.when(guard_below(element, outputs, THREADS)):
                    triangle[below_diagonal(corner + size + i, corner + j)] = results[turn]
            kernel.barrier()

    def _elements(self) -> Iterator[tuple[Scalar, Scalar, int]]:
        """Row and column of each of the thread's elements of a matrix, and its number."""
        for a in range(OWN):
            i = self._kernel.let("i", self._row + a * SIDE)
            for b in range(OWN):
                yield i, self._kernel.let("j", self._column + b * SIDE), a * OWN + b

    def _store(self, row: Scalar | int, column: Scalar, value: Scalar) -> None:
        self._made[self._slot, self.head, row, column] = value


def below_diagonal(i: Scalar, j: Scalar) -> Scalar:
    """The place of element (i, j), j < i, of a matrix whose elements below the diagonal are stored row after row."""
    return truncated_quotient(i * (i - 1), 2) + j

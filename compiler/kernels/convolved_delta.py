"""convolved_delta for batches in which every sequence has one new token: one kernel for the convolution and the gated
delta rule, if no two heads share a key. Row s belongs to sequence s.

One workgroup: a head of a sequence, with the convolution of its query, key and value.
One thread: as in `matrix_state.py`; before that, the convolution of some columns, whose old inputs it alone reads and
replaces.
Needs: S == B.
"""

from __future__ import annotations

from ..ir.expr import Expr
from .builder import Kernel, KernelBuilder, Scalar, guard_below
from .maths import silu
from .matrix_state import OUTPUTS, DeltaRule, Scan


def convolved_delta(
    name: str,
    *,
    rows: Expr,
    heads: int,
    key_heads: int,
    key_dim: int,
    value_dim: int,
    stride: int,
    start: int,
    taps: int,
    a_start: int,
    b_start: int,
    z_start: int,
    eps: float,
) -> Kernel:
    assert heads == key_heads, (heads, key_heads)
    kernel, keys = KernelBuilder(name), heads * key_dim
    columns = 2 * keys + heads * value_dim
    x = kernel.buffer("x", (rows, stride), "float32")
    weight = kernel.buffer("weight", (columns * taps,), "float32")
    conv = kernel.buffer("conv", ("Z", taps - 1, columns), "float32", write=True)
    rule = DeltaRule(kernel, x, heads, key_dim, value_dim, a_start, b_start, z_start, eps)
    turns, shape = -(-value_dim // OUTPUTS), (heads, key_dim, value_dim)
    scan = Scan(kernel, rows, heads, shape, key_dim, value_dim, turns, few=None, one_row=True)
    values = kernel.shared("values", (value_dim,), "float32")

    def convolved(row: Scalar, column: Scalar) -> Scalar:
        column = kernel.let("column", column)
        newest = kernel.let("newest", x[row, start + column])
        known = kernel.local("known", taps - 1, "float32", fill=0)
        with kernel.when(scan.continues):
            for back in range(taps - 1):
                known[back] = conv[scan.read, back, column]
        total: Scalar = newest * weight[column * taps + taps - 1]
        for back in range(taps - 1):
            total = total + known[back] * weight[column * taps + back]
        total = kernel.let("total", total)
        for back in range(taps - 1):
            conv[scan.write, back, column] = newest if back == taps - 2 else known[back + 1]
        return silu(total)

    def vector(row: Scalar, index: Scalar, *, is_query: bool) -> Scalar:
        return convolved(row, scan.head * key_dim + index + (0 if is_query else keys))

    def load_values(row: Scalar) -> None:
        with kernel.loop("turn", -(-value_dim // scan.threads)) as turn:
            output = kernel.let("element", turn * scan.threads + scan.thread)
            with kernel.when(guard_below(output, value_dim, scan.threads)):
                values[output] = convolved(row, 2 * keys + scan.head * value_dim + output)

    rule.run(scan, vector, lambda row: values[scan.output], load_values)  # noqa: ARG005
    return kernel.finish()

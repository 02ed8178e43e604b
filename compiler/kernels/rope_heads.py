"""rope_heads: normalize and rotate q and k of a joint q/k/v projection, and copy v.

One workgroup: one head of one token, of the H query, K key and K value heads.
One thread: one vector of the head.
"""

from __future__ import annotations

from ..ir.heads import Heads, Preparation
from .builder import Kernel, KernelBuilder, cast, number, sum_of
from .new_heads import NewHeads
from .page_rows import row_threads


def rope_heads(name: str, *, heads: Heads, preparation: Preparation) -> Kernel:
    kernel = KernelBuilder(name)
    new = NewHeads(kernel, heads, preparation)
    positions = kernel.buffer("positions", (heads.rows,), "int32") if preparation.rotary_dim else None
    all_heads = heads.num_heads + 2 * heads.num_kv_heads
    y = kernel.buffer("y", (heads.rows, all_heads, heads.vectors), heads.stored_dtype, write=True)
    head, row = kernel.grid(all_heads, heads.rows)
    thread = kernel.threads(row_threads(heads))
    inside = thread < heads.vectors
    factor = None
    if new.normed:
        square = kernel.local("square", 1, "float32", fill=0)
        with kernel.when(inside):
            elements = [new.element(row, head, thread * heads.lanes + lane) for lane in range(heads.lanes)]
            square[0] = sum_of(element * element for element in elements)
        squares = kernel.folded("squares", thread, row_threads(heads), square[0], lambda one, other: one + other)
        factor = kernel.let("factor", new.factor(squares, head < heads.num_heads))
    with kernel.when(inside):
        position = number(0, "int32") if positions is None else positions[row]
        y[row, head, thread] = cast(new.vector(row, head, position, thread, factor), heads.stored_dtype)
    return kernel.finish()

"""rope_append: normalize and rotate q and k of a joint q/k/v projection, append keys and values to their pages, and
pass q on. A preparation that appends nothing has only q.

One workgroup: one head of one new token, of the H query, K key and K value heads. For a norm over all heads, it reads
them all.
One thread: one vector of the head.
"""

from __future__ import annotations

from ..ir.heads import Heads, Preparation
from .builder import Kernel, KernelBuilder, all_of, number, select, sum_of
from .new_heads import NewHeads, query_rows
from .page_rows import HeadRow, row_threads
from .pages import Pages


def rope_append(name: str, *, heads: Heads, preparation: Preparation) -> Kernel:
    """q is written to scratch as float32, for the next kernel, and rotated if keys are stored rotated."""
    keys_end = heads.num_heads + heads.num_kv_heads
    kernel = KernelBuilder(name)
    new = NewHeads(kernel, heads, preparation)
    positions = kernel.buffer("positions", (heads.rows,), "int32") if preparation.rotary_dim else None
    slots = kernel.buffer("slots", (heads.rows,), "int32") if preparation.appends else None
    pages = Pages(kernel, heads, write=True) if preparation.appends else None
    q = query_rows(kernel, heads, scratch=True, write=True)

    head, row = kernel.grid(keys_end + heads.num_kv_heads if preparation.appends else heads.num_heads, heads.rows)
    thread = kernel.threads(row_threads(heads))
    own = HeadRow(kernel, heads, thread)

    factor = None
    if new.normed:
        square = kernel.local("square", 1, "float32", fill=0)
        is_query = head < heads.num_heads
        first, count = new.wide_heads(is_query, head < keys_end) if new.wide else (head, 1)
        with kernel.when(own.inside), kernel.loop("normed_head", count) as i:
            elements = [new.element(row, first + i, thread * heads.lanes + lane) for lane in range(heads.lanes)]
            square[0] = square[0] + sum_of(element * element for element in elements)
        squares = kernel.folded("squares", thread, row_threads(heads), square[0], lambda one, other: one + other)
        factor = kernel.let("factor", new.factor(squares, is_query))
    with kernel.when(own.inside):
        position = number(0, "int32") if positions is None else positions[row]
        own.vector = new.vector(row, head, position, thread, factor)

    if pages is None or slots is None:
        own.rotate(True)
        with kernel.when(own.inside):
            q[row, head, thread] = own.vector
        return kernel.finish()
    own.rotate(head < keys_end)
    own.measure()
    slot = slots[row]
    with kernel.when(all_of(own.inside, head < heads.num_heads)):
        q[row, head, thread] = own.vector
    with kernel.when(head >= heads.num_heads):
        plane = select(head < keys_end, 0, 1)
        own.store(pages, slot, plane, head - heads.num_heads - plane * heads.num_kv_heads)
    return kernel.finish()

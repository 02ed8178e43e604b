"""Kernels that prepare the heads of new tokens: append_kv, rope_append and rope_heads.

One workgroup: one head of one new token. For a norm over all heads, it reads them all.
One thread: one vector of the head.
"""

from __future__ import annotations

from ..ir.heads import Heads, Preparation
from .builder import Kernel, KernelBuilder, all_of, cast, number, select, sum_of
from .new_heads import NewHeads, query_rows
from .page_rows import HeadRow, row_threads
from .pages import Pages


def append_kv(name: str, *, heads: Heads) -> Kernel:
    """Store keys and values at the slots of their tokens, in the format of the pages. Only the kv heads of ``heads``
    matter.
    """
    shape = ("S", heads.num_kv_heads, heads.vectors)
    kernel = KernelBuilder(name)
    k = kernel.buffer("k", shape, heads.stored_dtype)
    v = kernel.buffer("v", shape, heads.stored_dtype)
    slots = kernel.buffer("slots", ("S",), "int32")
    pages = Pages(kernel, heads, write=True)

    group_x, row = kernel.grid(2 * heads.num_kv_heads, "S")
    thread = kernel.threads(row_threads(heads))
    plane, kv_head = group_x // heads.num_kv_heads, group_x % heads.num_kv_heads
    own = HeadRow(kernel, heads, thread)
    with kernel.when(own.inside):
        own.vector = select(plane == 0, *(cast(each[row, kv_head, thread], heads.vector_dtype) for each in (k, v)))
    own.rotate(plane == 0)
    own.measure()
    own.store(pages, slots[row], plane, kv_head)
    return kernel.finish()


def rope_append(name: str, *, heads: Heads, preparation: Preparation) -> Kernel:
    """Normalize and rotate q and k of a joint q/k/v projection, append keys and values to their pages, and write q to
    scratch as float32, for the next kernel; it is rotated if keys are stored rotated. A preparation that appends
    nothing has only q.
    """
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


def rope_heads(name: str, *, heads: Heads, preparation: Preparation) -> Kernel:
    """Normalize and rotate q and k of a joint q/k/v projection, and copy v."""
    kernel = KernelBuilder(name)
    new = NewHeads(kernel, heads, preparation)
    by_position = preparation.rotary_dim and not preparation.by_row
    positions = kernel.buffer("positions", (heads.rows,), "int32") if by_position else None
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

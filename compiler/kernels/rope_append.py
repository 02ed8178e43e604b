"""rope_append: normalize and rotate q and k of a joint q/k/v projection, append keys and values to their pages, and
return q.

One workgroup: one head of one new token, of the H query, K key and K value heads.
One thread: one vector of the head.
"""

from __future__ import annotations

from .builder import Kernel, KernelBuilder, Scalar, cast, number, select, sum_of
from .heads import Heads, Preparation
from .new_heads import NewHeads, query_rows
from .page_rows import RowWriter, row_threads
from .pages import Pages


def rope_append(name: str, *, heads: Heads, preparation: Preparation, q_in_scratch: bool) -> Kernel:
    """``q_in_scratch``: write q to scratch as float32, for the next kernel; else to the step's output."""
    keys_end = heads.num_heads + heads.num_kv_heads
    kernel = KernelBuilder(name)
    new = NewHeads(kernel, heads, preparation)
    positions = kernel.buffer("positions", ("S",), "int32") if preparation.rotary_dim else None
    slots = kernel.buffer("slots", ("S",), "int32")
    pages = Pages(kernel, heads, write=True)
    q = query_rows(kernel, heads, scratch=q_in_scratch, write=True)

    head, row = kernel.grid(keys_end + heads.num_kv_heads, "S")
    thread = kernel.threads(row_threads(heads))
    inside = thread < heads.vectors
    writer = RowWriter(kernel, heads, pages, thread)

    factor = None
    if new.normed:
        writer.partials[thread] = 0
        with kernel.when(inside):
            elements = [new.element(row, head, thread * heads.lanes + lane) for lane in range(heads.lanes)]
            writer.partials[thread] = sum_of(element * element for element in elements)
        writer.fold(lambda one, other: one + other)
        factor = kernel.let("factor", new.factor(writer.partials[0]))

    value = kernel.local("value", 1, heads.vector_dtype, fill=0)
    position: Scalar = number(0, "int32") if positions is None else positions[row]
    with kernel.when(inside):
        value[0] = new.vector(row, head, position, thread, factor)
    if pages.quantized:
        # All threads have read the factor before its memory is used again.
        kernel.barrier()
    writer.measure(value[0])
    slot = slots[row]
    with kernel.when(inside):
        with kernel.when(head < heads.num_heads):
            q[row, head, thread] = cast(value[0], heads.vector_dtype if q_in_scratch else heads.stored_dtype)
        with kernel.when(head >= heads.num_heads):
            plane = select(head < keys_end, 0, 1)
            writer.store(slot, plane, head - heads.num_heads - plane * heads.num_kv_heads, value[0])
    return kernel.finish()

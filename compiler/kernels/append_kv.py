"""append_kv: store keys and values at the slots of their tokens, in the format of the pages.

One workgroup: one kv head of one new token's k or v.
One thread: one vector of the head.
"""

from __future__ import annotations

from .builder import Kernel, KernelBuilder, cast, select
from .heads import Heads
from .page_rows import RowWriter, row_threads
from .pages import Pages


def append_kv(name: str, *, heads: Heads) -> Kernel:
    """Only the kv heads of ``heads`` matter."""
    shape = ("S", heads.num_kv_heads, heads.vectors)
    kernel = KernelBuilder(name)
    k = kernel.buffer("k", shape, heads.stored_dtype)
    v = kernel.buffer("v", shape, heads.stored_dtype)
    slots = kernel.buffer("slots", ("S",), "int32")
    pages = Pages(kernel, heads, write=True)

    group_x, row = kernel.grid(2 * heads.num_kv_heads, "S")
    thread = kernel.threads(row_threads(heads))
    plane, kv_head = group_x // heads.num_kv_heads, group_x % heads.num_kv_heads
    writer = RowWriter(kernel, heads, pages, thread)
    value = kernel.local("value", 1, heads.vector_dtype, fill=0)
    with kernel.when(thread < heads.vectors):
        value[0] = select(plane == 0, *(cast(each[row, kv_head, thread], heads.vector_dtype) for each in (k, v)))
    writer.measure(value[0])
    with kernel.when(thread < heads.vectors):
        writer.store(slots[row], plane, kv_head, value[0])
    return kernel.finish()

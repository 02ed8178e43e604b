"""append_kv: store keys and values at the slots of their tokens, in the format of the pages.

One workgroup: one kv head of one new token's k or v.
One thread: one vector of the head.
"""

from __future__ import annotations

from ..ir.heads import Heads
from .builder import Kernel, KernelBuilder, cast, select
from .page_rows import HeadRow, row_threads
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
    own = HeadRow(kernel, heads, thread)
    with kernel.when(own.inside):
        own.vector = select(plane == 0, *(cast(each[row, kv_head, thread], heads.vector_dtype) for each in (k, v)))
    own.rotate(plane == 0)
    own.measure()
    own.store(pages, slots[row], plane, kv_head)
    return kernel.finish()

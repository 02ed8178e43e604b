"""q/k norm, rotation, and the append of keys and values to their pages, from a joint q/k/v projection; q goes to scratch, float32.

One workgroup: one head of one new token, of the H query, K key and K value heads. One thread: one vector of the head.
"""

from __future__ import annotations

from .builder import Kernel, KernelBuilder, Scalar, select, sum_of
from .linear_vector import power_of_two
from .new_heads import NewHeads
from .pages import Heads, Pages


def rope_append(name: str, heads: Heads) -> Kernel:
    vectors, keys_end = heads.vectors, heads.num_heads + heads.num_kv_heads
    kernel = KernelBuilder(name)
    new = NewHeads(kernel, heads)
    positions = kernel.buffer("positions", ("S",), "int32")
    slots = kernel.buffer("slots", ("S",), "int32")
    pages = Pages(kernel, heads, write=True)
    q = kernel.scratch("q", ("S", heads.num_heads, vectors), heads.vector_dtype, write=True)

    threads = max(32, power_of_two(vectors))
    head, row = kernel.grid(keys_end + heads.num_kv_heads, "S")
    thread = kernel.threads(threads)
    inside = thread < vectors

    factor = None
    if heads.norm_eps is not None:
        squares = kernel.shared("squares", (threads,), "float32")
        squares[thread] = 0
        with kernel.when(inside):
            elements = [new.element(row, head, thread * heads.lanes + lane) for lane in range(heads.lanes)]
            squares[thread] = sum_of(element * element for element in elements)

        def fold(mine: Scalar, other: Scalar) -> None:
            squares[mine] = squares[mine] + squares[other]

        kernel.fold(thread, thread, threads, fold)
        factor = new.factor(squares[0])

    slot = slots[row]
    with kernel.when(inside):
        value = kernel.let("value", new.vector(row, head, positions[row], thread, factor))
        with kernel.when(head < heads.num_heads):
            q[row, head, thread] = value
        with kernel.when(head >= heads.num_heads):
            plane = select(head < keys_end, 0, 1)
            kv_head = head - heads.num_heads - plane * heads.num_kv_heads
            pages.store(slot // heads.page_size, plane, kv_head, slot % heads.page_size, thread, value)
    return kernel.finish()

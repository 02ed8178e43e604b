"""q/k norm, rotation, and the append of keys and values to their pages, from a joint q/k/v projection; q goes to scratch, float32.

One workgroup: one head of one new token, of the H query, K key and K value heads. One thread: one vector of the head.
"""

from __future__ import annotations

from collections.abc import Callable

from .builder import Kernel, KernelBuilder, Scalar, maximum, select, sum_of
from .linear_vector import power_of_two
from .new_heads import NewHeads
from .pages import Heads, Pages, largest_lane


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

    places = kernel.shared("places", (threads,), "float32")

    def fold(combine: Callable[[Scalar, Scalar], Scalar]) -> None:
        def into(mine: Scalar, other: Scalar) -> None:
            places[mine] = combine(places[mine], places[other])

        kernel.fold(thread, thread, threads, into)

    factor = None
    if heads.norm_eps is not None:
        places[thread] = 0
        with kernel.when(inside):
            elements = [new.element(row, head, thread * heads.lanes + lane) for lane in range(heads.lanes)]
            places[thread] = sum_of(element * element for element in elements)
        fold(lambda one, other: one + other)
        factor = kernel.let("factor", new.factor(places[0]))

    value = kernel.local("value", 1, heads.vector_dtype, fill=0)
    with kernel.when(inside):
        value[0] = new.vector(row, head, positions[row], thread, factor)
    if pages.quantized:
        # The factor has been read by all before the places are used again.
        kernel.barrier()
        places[thread] = largest_lane(value[0], heads.lanes)
        fold(maximum)
    slot = slots[row]
    with kernel.when(inside):
        with kernel.when(head < heads.num_heads):
            q[row, head, thread] = value[0]
        with kernel.when(head >= heads.num_heads):
            plane = select(head < keys_end, 0, 1)
            kv_head = head - heads.num_heads - plane * heads.num_kv_heads
            largest = places[0] if pages.quantized else None
            pages.store(slot // heads.page_size, plane, kv_head, slot % heads.page_size, thread, [value[0]], largest)
    return kernel.finish()

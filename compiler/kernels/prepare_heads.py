"""Kernels that prepare the heads of new tokens: append_kv, rope_append and rope_heads.

One workgroup: as many heads of one new token as 256 threads can hold. For a norm over all heads, it reads them all.
One thread: two vectors of a head, which are rotated together if the head is.
"""

from __future__ import annotations

from ..ir.heads import Heads, Preparation
from .builder import Kernel, KernelBuilder, Scalar, all_of, cast, number, select
from .new_heads import NewHeads, query_rows
from .page_rows import HeadGroup
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

    group = HeadGroup(kernel, heads, 2 * heads.num_kv_heads, "S")
    plane = kernel.let("plane", group.head // heads.num_kv_heads)
    kv_head = kernel.let("kv_head", group.head % heads.num_kv_heads)
    for i, (index, exists) in enumerate(group.vectors):
        with kernel.when(exists):
            values = (cast(each[group.row, kv_head, index], heads.vector_dtype) for each in (k, v))
            group.values[i] = select(plane == 0, *values)
    group.rotate(excepted=plane > 0)
    group.measure()
    group.store(pages, slots[group.row], plane, kv_head)
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

    num_heads = keys_end + heads.num_kv_heads if preparation.appends else heads.num_heads
    group = HeadGroup(kernel, heads, num_heads, heads.rows, new.rotated_pairs)
    head, row = group.head, group.row
    slot = None if slots is None else kernel.let("slot", slots[row])
    prepare(kernel, heads, new, group, number(0, "int32") if positions is None else positions[row])
    if pages is None:
        group.rotate()
    else:
        group.rotate(excepted=head >= keys_end)
        group.measure()
        with kernel.when(head >= heads.num_heads):
            plane = kernel.let("plane", select(head < keys_end, 0, 1))
            group.store(pages, slot, plane, head - heads.num_heads - plane * heads.num_kv_heads)
    for i, (index, exists) in enumerate(group.vectors):
        with kernel.when(all_of(exists, head < heads.num_heads if preparation.appends else True)):
            q[row, head, index] = group.values[i]
    return kernel.finish()


def rope_heads(name: str, *, heads: Heads, preparation: Preparation) -> Kernel:
    """Normalize and rotate q and k of a joint q/k/v projection, and copy v."""
    kernel = KernelBuilder(name)
    new = NewHeads(kernel, heads, preparation)
    by_position = preparation.rotary_dim and not preparation.by_row
    positions = kernel.buffer("positions", (heads.rows,), "int32") if by_position else None
    all_heads = heads.num_heads + 2 * heads.num_kv_heads
    y = kernel.buffer("y", (heads.rows, all_heads, heads.vectors), heads.stored_dtype, write=True)

    group = HeadGroup(kernel, heads, all_heads, heads.rows, new.rotated_pairs)
    prepare(kernel, heads, new, group, number(0, "int32") if positions is None else positions[group.row])
    for i, (index, exists) in enumerate(group.vectors):
        with kernel.when(exists):
            y[group.row, group.head, index] = cast(group.values[i], heads.stored_dtype)
    return kernel.finish()


def prepare(kernel: KernelBuilder, heads: Heads, new: NewHeads, group: HeadGroup, position: Scalar) -> None:
    """Set the group's values to its heads, normalized and rotated."""
    row, head, keys_end = group.row, group.head, heads.num_heads + heads.num_kv_heads
    for i, (index, exists) in enumerate(group.vectors):
        with kernel.when(exists):
            group.values[i] = new.projected(row, head, index)
    # Loaded before the barriers of a norm.
    position = kernel.let("position", position)
    turn = new.turn(row, position, group.vectors[0][0])
    factor = None
    if new.normed:
        is_query = head < heads.num_heads
        if new.wide:
            squares = wide_squares(kernel, heads, new, group)
        else:
            mine = sum(new.squares(group.values[i]) for i in range(2))
            squares = group.combined("squares", mine, lambda one, other: one + other)
        factor = kernel.let("factor", new.factor(squares, is_query))
    if not new.whole_vectors:
        for i, (index, exists) in enumerate(group.vectors):
            with kernel.when(exists):
                group.values[i] = new.vector(row, head, position, index, factor)
        return
    with kernel.when(all_of(group.inside, head < keys_end if new.appends else True)):
        indices = group.vectors[0][0], group.vectors[1][0]
        projected = group.values[0], group.values[1]
        for i, value in enumerate(new.vector_pair(head, position, indices, projected, factor, turn)):
            group.values[i] = value
    if new.appends and new.norms_values:
        with kernel.when(all_of(group.inside, head >= keys_end)):
            for i in range(2):
                group.values[i] = new.value(group.values[i], factor)


def wide_squares(kernel: KernelBuilder, heads: Heads, new: NewHeads, group: HeadGroup) -> Scalar:
    """The sum of squares of all heads of q, or of k. The workgroup's threads share them."""
    sums = kernel.local("sums", 2, "float32", fill=0)
    keys_end = heads.num_heads + heads.num_kv_heads
    with kernel.loop("turn", -(-keys_end // group.count)) as turn:
        normed = kernel.let("normed_head", turn * group.count + group.local_head)
        for index, exists in group.vectors_of_any_head:
            with kernel.when(all_of(exists, normed < keys_end)):
                square = kernel.let("square", new.squares(new.projected(group.row, normed, index)))
                sums[0] = sums[0] + select(normed < heads.num_heads, square, number(0, "float32"))
                sums[1] = sums[1] + select(normed < heads.num_heads, number(0, "float32"), square)
    of_q, of_k = (group.sum_of_all(f"squares_of_{each}", sums[i]) for i, each in enumerate("qk"))
    return select(group.head < heads.num_heads, of_q, of_k)

"""rope_attention for any batch: the plain kernel.

First tasks: one head of one new token each (`new_heads.py`). Then one task: all query heads of one kv head of one new token, block of keys
after block (`key_block.py`).
"""

from __future__ import annotations

from ..builder import Kernel, cast, minimum, select
from ..pages import Heads
from .builder import CpuKernelBuilder, Isa, of, pieces, ramp, round_up_quotient
from .key_block import BLOCK, KeyBlock, Running
from .new_heads import NewHeads
from .pages import Pages


def rope_attention(name: str, isa: Isa, heads: Heads) -> Kernel:
    kernel = CpuKernelBuilder(name)
    new = NewHeads(kernel, isa, heads)
    pages = Pages(kernel, heads, write=True)
    seq_starts = kernel.buffer("seq_starts", (["add", "B", 1],), "int32")
    page_indptr = kernel.buffer("page_indptr", (["add", "B", 1],), "int32")
    page_ids = kernel.buffer("page_ids", ("L",), "int32")
    y = kernel.buffer("y", ("S", heads.num_heads, heads.head_dim), heads.activation, write=True)

    with kernel.tasks("task", "S", heads.num_heads + 2 * heads.num_kv_heads) as task:
        new.process(pages, task)
    with kernel.tasks("task", "S", heads.num_kv_heads) as task:
        row, kv_head = kernel.split(task, heads.num_kv_heads, ("row", "kv_head"))
        # The row's sequence is the number of sequences that end at or before it.
        sequence = kernel.local("sequence", 1, "int32", fill=0)
        with kernel.loop("other", kernel.size("B")) as other:
            sequence[0] = sequence[0] + select(seq_starts[other + 1] <= row, 1, 0)
        first_page = kernel.let("first_page", page_indptr[sequence[0]])
        length = kernel.let("length", new.positions[row] + 1)
        first_head = kernel.let("first_head", kv_head * heads.group)
        block_keys = KeyBlock(kernel, isa, heads, pages, new.q, page_ids, heads.group)
        running = Running(kernel, isa, heads, heads.group)
        queries = [(row, first_head + i) for i in range(heads.group)]
        with kernel.loop("block", round_up_quotient(length, BLOCK)) as block:
            keys = kernel.let("keys", minimum(length - block * BLOCK, BLOCK))
            block_keys.compute(queries, [keys] * heads.group, kv_head, first_page, block, keys)
            for i in range(heads.group):
                running.merge(i, block_keys.largest[i], block_keys.total[i], block_keys.sums, i * heads.head_dim)
        for i in range(heads.group):
            for start, lanes in pieces(heads.head_dim, isa.lanes):
                y[row, first_head + i, ramp(start, lanes)] = cast(running.result(i, start, lanes), of(heads.activation, lanes))
    return kernel.finish()

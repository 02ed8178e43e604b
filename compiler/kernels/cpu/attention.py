"""rope_attention on CPUs, three ways to divide the work; all compute a row alike, to the last bit.

First tasks: one head of one new token each (`new_heads.py`). Then keys, block after block (`key_block.py`):

rope_attention  one task: all query heads of one kv head of one new token. For any batch.
attention_tile  one task: the same of several neighbouring new tokens, which share each load of a key. For prompts.
attention_split one task: the same of one new token and one block; last tasks merge the blocks. For few sequences of many keys; S == B.
"""

from __future__ import annotations

from ..builder import Array, Kernel, Scalar, cast, minimum, select
from ..pages import Heads
from .builder import CpuKernelBuilder, Isa, of, pieces, ramp, round_up_quotient
from .key_block import BLOCK, KeyBlock, Running
from .new_heads import NewHeads
from .pages import Pages


class Arguments:
    """The arguments of an attention kernel, and the tasks that come first."""

    def __init__(self, name: str, isa: Isa, heads: Heads, *, scalars: tuple[str, ...] = ()) -> None:
        self.kernel = kernel = CpuKernelBuilder(name, scalars=scalars)
        self.isa, self.heads = isa, heads
        self.new = NewHeads(kernel, isa, heads)
        self.pages = Pages(kernel, heads, write=True)
        self.seq_starts = kernel.buffer("seq_starts", (["add", "B", 1],), "int32")
        self.page_indptr = kernel.buffer("page_indptr", (["add", "B", 1],), "int32")
        self.page_ids = kernel.buffer("page_ids", ("L",), "int32")
        self.y: Array = kernel.buffer("y", ("S", heads.num_heads, heads.head_dim), heads.activation, write=True)

    def add_new_heads(self) -> None:
        with self.kernel.tasks("task", "S", self.heads.num_heads + 2 * self.heads.num_kv_heads) as task:
            self.new.process(self.pages, task)

    def sequence_of(self, row: Scalar) -> Scalar:
        """The row's sequence: the number of sequences that end at or before it."""
        sequence = self.kernel.local("sequence", 1, "int32", fill=0)
        with self.kernel.loop("other", self.kernel.size("B")) as other:
            sequence[0] = sequence[0] + select(self.seq_starts[other + 1] <= row, 1, 0)
        return sequence[0]

    def key_block(self, count: int) -> KeyBlock:
        return KeyBlock(self.kernel, self.isa, self.heads, self.pages, self.new.q, self.page_ids, count)

    def store(self, running: Running, i: int, row: Scalar, head: Scalar) -> None:
        for start, lanes in pieces(self.heads.head_dim, self.isa.lanes):
            self.y[row, head, ramp(start, lanes)] = cast(running.result(i, start, lanes), of(self.heads.activation, lanes))


def rope_attention(name: str, isa: Isa, heads: Heads) -> Kernel:
    return tiles(Arguments(name, isa, heads), 1)


def attention_tile(name: str, isa: Isa, heads: Heads, rows: int) -> Kernel:
    return tiles(Arguments(name, isa, heads), rows)


def tiles(arguments: Arguments, rows: int) -> Kernel:
    """Tasks of ``rows`` new tokens; those of several sequences one sequence after the other."""
    kernel, heads = arguments.kernel, arguments.heads
    arguments.add_new_heads()
    with kernel.tasks("task", ["ceildiv", "S", rows], heads.num_kv_heads) as task:
        place, kv_head = kernel.split(task, heads.num_kv_heads, ("place", "kv_head"))
        # Later tiles of a prompt see more keys. A thread's tasks are neighbours, so first and last tiles take turns: all get as much work.
        turn, odd = kernel.split(place, 2, ("turn", "odd"))
        tile = kernel.let("tile", select(odd > 0, round_up_quotient(kernel.size("S"), rows) - 1 - turn, turn))
        row = kernel.local("row", 1, "int32")
        row[0] = tile * rows
        end = kernel.let("end", minimum(tile * rows + rows, kernel.size("S")))
        with kernel.loop("part", rows) as part, kernel.when(row[0] < end if rows > 1 else True):
            del part
            sequence = kernel.let("sequence", arguments.sequence_of(row[0]))
            stop = kernel.let("stop", minimum(end, arguments.seq_starts[sequence + 1]))
            first_page = kernel.let("first_page", arguments.page_indptr[sequence])
            # A sequence that decodes beside prompts has one row here, which would be computed as often as a tile has rows.
            alone = stop - row[0] == 1
            with kernel.when(alone if rows > 1 else True):
                attend(arguments, [row[0]], stop, kv_head, first_page)
            if rows > 1:
                # Rows beyond the last are copies of it, and are not stored.
                with kernel.when(stop - row[0] > 1):
                    attend(arguments, [kernel.let("mine", minimum(row[0] + i, stop - 1)) for i in range(rows)], stop, kv_head, first_page)
            row[0] = stop
    return kernel.finish()


def attend(arguments: Arguments, rows: list[Scalar], stop: Scalar, kv_head: Scalar, first_page: Scalar) -> None:
    """The query heads of a kv head of neighbouring rows of one sequence, whose rows end before ``stop``."""
    kernel, heads = arguments.kernel, arguments.heads
    first_head = kernel.let("first_head", kv_head * heads.group)
    queries = [(each, first_head + i) for each in rows for i in range(heads.group)]
    lengths = [kernel.let("length", arguments.new.positions[each] + 1) for each in rows]
    block_keys = arguments.key_block(len(queries))
    running = Running(kernel, arguments.isa, heads, len(queries))
    with kernel.loop("block", round_up_quotient(lengths[-1], BLOCK)) as block:
        # Of the last block earlier rows see fewer keys, or none: such a block changes nothing of what they have.
        for i in range(len(queries)):
            block_keys.lengths[i] = minimum(lengths[i // heads.group] - block * BLOCK, BLOCK)
        block_keys.compute(queries, kv_head, first_page, block, block_keys.lengths[len(queries) - 1])
        with kernel.loop("query", len(queries)) as i:
            running.merge(i, block_keys.largest[i], block_keys.total[i], block_keys.sums_of(i))
    for i, (each, head) in enumerate(queries):
        with kernel.when(rows[0] + i // heads.group < stop if len(rows) > 1 else True):
            arguments.store(running, i, each, head)


def attention_split(name: str, isa: Isa, heads: Heads) -> Kernel:
    arguments = Arguments(name, isa, heads, scalars=("T",))
    kernel, group, head_dim = arguments.kernel, heads.group, heads.head_dim
    # Of each block and head the weighted values, then the largest score and the sum of weights.
    partials = kernel.scratch("partials", ("B", ["ceildiv", "T", BLOCK], heads.num_heads, head_dim + 2), "float32", write=True)
    arguments.add_new_heads()
    with kernel.tasks("task", ["ceildiv", "T", BLOCK], "S", heads.num_kv_heads) as task:
        rest, kv_head = kernel.split(task, heads.num_kv_heads, ("rest", "kv_head"))
        block, row = kernel.split(rest, kernel.size("S"), ("block", "row"))
        first_head = kernel.let("first_head", kv_head * group)
        keys = kernel.let("keys", minimum(arguments.new.positions[row] + 1 - block * BLOCK, BLOCK))
        with kernel.when(keys > 0):
            block_keys = arguments.key_block(group)
            queries = [(row, first_head + i) for i in range(group)]
            for i in range(group):
                block_keys.lengths[i] = keys
            block_keys.compute(queries, kv_head, arguments.page_indptr[row], block, keys)
            for i, (_, head) in enumerate(queries):
                for start, lanes in pieces(head_dim, isa.lanes):
                    partials[row, block, head, ramp(start, lanes)] = block_keys.sums[ramp(i * head_dim + start, lanes)]
                partials[row, block, head, head_dim] = block_keys.largest[i]
                partials[row, block, head, head_dim + 1] = block_keys.total[i]
    with kernel.tasks("task", "S", heads.num_heads) as task:
        row, head = kernel.split(task, heads.num_heads, ("row", "head"))
        running = Running(kernel, isa, heads, 1)
        with kernel.loop("block", round_up_quotient(arguments.new.positions[row] + 1, BLOCK)) as block:
            kept = partials[row, block, head, head_dim], partials[row, block, head, head_dim + 1]
            running.merge(0, *kept, lambda start, lanes: partials[row, block, head, ramp(start, lanes)])
        arguments.store(running, 0, row, head)
    return kernel.finish()

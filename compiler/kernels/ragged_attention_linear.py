"""ragged_attention and the projection of its result in one kernel, for batches of few rows, which launches limit.

One workgroup: all heads of ``rows`` adjacent rows, whatever their texts; the attention's result stays in workgroup
memory, from where it is multiplied by the whole weight.
One thread, first: every ``splits``-th block of keys of one query head of one row, with a running softmax in registers;
then the splits are merged. Afterwards: a few outputs of some of the rows.
Needs: heads of whole vectors of four elements; workgroup memory for ``rows`` rows of the attention's result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from ..ir.heads import Heads, Scores
from ..quant.base import GROUP
from .builder import (
    Array,
    Kernel,
    KernelBuilder,
    Scalar,
    all_of,
    cast,
    guard_below,
    maximum,
    minimum,
    number,
    select,
    truncated_quotient,
)
from .projection import Projection, ProjectionArguments
from .scores import LOWEST, capped, distance_bias, first_key, last_key, scaled, weight
from .vector_parts import dot_products_of_rows, load_blocks
from .vectors import splat, sum_lanes

# Keys whose scores share one correction of the sums, and the most elements of a head for which they do. Wider heads
# take one key after the other, and their queries are in workgroup memory: with 64 elements, the compilers of Adreno,
# Apple and Intel GPUs spilled 176, 112 and 520 values (`make gpu-static`), and lavapipe took 1.1 to 1.35 times as long.
BLOCK_KEYS, MAX_BLOCK_DIM = 4, 32
# The groups of threads that multiply: each has its part of the rows, and reads all weights.
ROW_GROUPS = 2
# The outputs that a thread sums at a time, and the columns of weights that it loads before it uses any. With twice as
# many columns, Intel's compiler spilled up to 103 values (`make gpu-static`), so a thread has half of the rows if a
# block has more columns.
MAX_OUTPUTS, LOADED_COLUMNS = 4, 16
# The most elements of a head that a thread holds in registers.
MAX_HEAD_DIM = 64
# The rows of a workgroup, best first. Each reads the complete weight.
ROWS = (8, 4)


@dataclass(frozen=True, slots=True)
class FusedShape:
    """``rows`` of a workgroup of ``threads``."""

    rows: int
    threads: int = 256

    def splits(self, heads: Heads) -> int:
        """The threads that share the keys of a query head: 1, 2 or 4."""
        return max(each for each in (1, 2, 4) if each == 1 or each * self.rows * heads.num_heads <= self.threads)

    def shared_bytes(self, heads: Heads) -> int:
        """Workgroup memory: the attention's rows, and two numbers for each merged softmax."""
        columns = -(-heads.num_heads * heads.head_dim // GROUP) * GROUP
        softmax = 2 * heads.num_heads if self.splits(heads) > 1 else 0
        return 4 * self.rows * (columns + softmax)


def fused_shape(heads: Heads, max_shared_bytes: int) -> FusedShape | None:
    """The largest workgroup that fits; None if no workgroup can run such heads."""
    if heads.lanes != 4 or heads.head_dim > MAX_HEAD_DIM:
        return None
    fitting = (shape for shape in map(FusedShape, ROWS) if shape.shared_bytes(heads) <= max_shared_bytes)
    return next(fitting, None)


def ragged_attention_linear(name: str, *, heads: Heads, scores: Scores, facts: Projection, shape: FusedShape) -> Kernel:
    kernel = KernelBuilder(name, scalars=("B",))
    work = FusedAttention(kernel, heads, scores, facts, shape)
    work.attend()
    work.project()
    return kernel.finish()


class FusedAttention:
    def __init__(
        self, kernel: KernelBuilder, heads: Heads, scores: Scores, facts: Projection, shape: FusedShape
    ) -> None:
        self.kernel, self.heads, self.scores, self.facts, self.shape = kernel, heads, scores, facts, shape
        all_heads = heads.num_heads + 2 * heads.num_kv_heads
        self.row_vectors = all_heads * heads.vectors
        self.qkv = kernel.buffer("qkv", (["mul", "S", self.row_vectors],), heads.stored_dtype)
        self.positions = kernel.buffer("positions", ("S",), "int32") if scores.reads_positions else None
        self.seq_starts = kernel.buffer("seq_starts", (["add", "B", 1],), "int32")
        self.bias = distance_bias(kernel, heads, scores)
        self.arguments = ProjectionArguments(kernel, facts, blocks=True, reads_x=False)
        block, _ = kernel.grid(["ceildiv", "S", shape.rows])
        self.thread = kernel.threads(shape.threads)
        self.first_row = kernel.let("first_row", block * shape.rows)
        quads = self.arguments.weight.blocks * (facts.weight.block_columns // 4)
        self.attended = kernel.shared("attended", (shape.rows, quads), "float32x4")
        self.shares_queries = heads.head_dim > MAX_BLOCK_DIM
        self.block_keys = 1 if self.shares_queries else BLOCK_KEYS
        self.splits, self.items = shape.splits(heads), shape.rows * heads.num_heads
        # The largest score and the sum of weights of each query head, for one split at a time.
        self.merged = kernel.shared("merged", (2, self.items), "float32") if self.splits > 1 else None

    def attend(self) -> None:
        """Leave the attention's result in workgroup memory, zeros beyond its last column."""
        kernel, thread, rows = self.kernel, self.thread, self.shape.rows
        used, quads = self.heads.num_heads * self.heads.vectors, int(self.attended.buffer.shape[1])
        if quads > used:
            with kernel.when(thread < rows * (quads - used)):
                self.attended[thread // (quads - used), used + thread % (quads - used)] = 0
        if self.splits > 1:
            split = kernel.let("split", thread // self.items)
            self._attend_head(split, kernel.let("item", thread % self.items), split < self.splits)
        else:
            for start in range(0, self.items, self.shape.threads):
                item = kernel.let("item", minimum(start + thread, self.items - 1))
                self._attend_head(0, item, start + thread < self.items)
        kernel.barrier()

    def _attend_head(self, split: Scalar | int, item: Scalar, exists: Scalar) -> None:
        """The attention of one query head of one row, ``item`` of the workgroup. Threads side by side have the same
        head, and so read the same keys.
        """
        kernel, heads, vectors, block_keys = self.kernel, self.heads, self.heads.vectors, self.block_keys
        row_index, head = kernel.let("row_index", item % self.shape.rows), kernel.let("head", item // self.shape.rows)
        row = kernel.let("row", minimum(self.first_row + row_index, kernel.size("S") - 1))
        start, first, end = self._keys_of(row)
        position = None if self.positions is None else kernel.let("own_position", self.positions[row])
        # Registers, because TVM would repeat the arithmetic of an index in each use.
        places = kernel.local("places", block_keys + 1, "int32")
        places[block_keys] = row * self.row_vectors + head * vectors
        place = head * vectors
        if self.shares_queries:
            with kernel.when(all_of(exists, split == 0 if self.splits > 1 else True)):
                for v in range(vectors):
                    own = cast(self.qkv[places[block_keys] + v], "float32x4")
                    self.attended[row_index, place + v] = scaled(heads, self.scores, own)
            kernel.barrier()
        else:
            query = kernel.local("query", vectors, "float32x4")
            for v in range(vectors):
                query[v] = scaled(heads, self.scores, cast(self.qkv[places[block_keys] + v], "float32x4"))
        first_of_keys = kernel.let("first_of_keys", (heads.num_heads + head // heads.group) * vectors)
        result = kernel.local("result", vectors, "float32x4", fill=0)
        largest = kernel.local("largest", 1, "float32", fill=LOWEST)
        total = kernel.local("total", 1, "float32", fill=0)
        weights = kernel.local("weights", block_keys, "float32")
        dots = kernel.local("dots", block_keys, "float32x4")
        stride = block_keys * self.splits
        blocks = select(exists, truncated_quotient(end - first + (stride - 1), stride), 0)
        with kernel.loop("block", kernel.let("blocks", blocks)) as block:
            key = kernel.let("key", first + block * stride + split * block_keys)
            for i in range(block_keys):
                places[i] = (start + minimum(key + i, end - 1)) * self.row_vectors + first_of_keys
            for v in range(vectors):
                of_query = (
                    kernel.let("of_query", self.attended[row_index, place + v]) if self.shares_queries else query[v]
                )
                for i in range(block_keys):
                    product = of_query * cast(self.qkv[places[i] + v], "float32x4")
                    dots[i] = dots[i] + product if v else product
            for i in range(block_keys):
                score = capped(kernel, self.scores, sum_lanes(dots[i]))
                if self.bias is not None and position is not None:
                    score = score + self.bias.of(head, position, minimum(key + i, end - 1))
                weights[i] = select(key + i < end, score, number(LOWEST, "float32"))
            scores = [weights[i] for i in range(block_keys)]
            new = kernel.let("new_largest", reduce(maximum, scores, largest[0]))
            correction = kernel.let("correction", weight(largest[0], new))
            largest[0] = new
            total[0] = total[0] * correction
            for i in range(block_keys):
                weights[i] = weight(weights[i], new)
                total[0] = total[0] + weights[i]
            values = heads.num_kv_heads * vectors
            for v in range(vectors):
                result[v] = result[v] * splat(correction)
                for i in range(block_keys):
                    value = cast(self.qkv[places[i] + values + v], "float32x4")
                    result[v] = result[v] + splat(weights[i]) * value
        if self.shares_queries:
            # All threads have read their queries, in whose place the results are.
            kernel.barrier()
        for other in range(1, self.splits):
            self._merge(other, split, item, (row_index, place), result, largest, total)
        with kernel.when(all_of(exists, split == 0 if self.splits > 1 else True)):
            for v in range(vectors):
                self.attended[row_index, place + v] = result[v] / splat(total[0])

    def _merge(
        self,
        other: int,
        split: Scalar | int,
        item: Scalar,
        place: tuple[Scalar, Scalar],
        result: Array,
        largest: Array,
        total: Array,
    ) -> None:
        """Add the sums of split ``other`` to those of the first. The sums of a split without keys have a largest score
        that makes their factor 0.
        """
        kernel, merged, (row_index, column) = self.kernel, self.merged, place
        assert merged is not None
        if other > 1:
            kernel.barrier()
        with kernel.when(split == other):
            for v in range(self.heads.vectors):
                self.attended[row_index, column + v] = result[v]
            merged[0, item], merged[1, item] = largest[0], total[0]
        kernel.barrier()
        with kernel.when(split == 0):
            new = kernel.let("new_largest", maximum(largest[0], merged[0, item]))
            mine = kernel.let("mine", weight(largest[0], new))
            theirs = kernel.let("theirs", weight(merged[0, item], new))
            total[0] = total[0] * mine + merged[1, item] * theirs
            largest[0] = new
            for v in range(self.heads.vectors):
                result[v] = result[v] * splat(mine) + self.attended[row_index, column + v] * splat(theirs)

    def _keys_of(self, row: Scalar) -> tuple[Scalar, Scalar | int, Scalar]:
        """The first row of a row's text, the first key that the row sees, and the key after the last."""
        kernel = self.kernel
        text = kernel.local("text", 1, "int32", fill=0)
        with kernel.loop("other", kernel.size("B")) as other:
            text[0] = text[0] + select(self.seq_starts[other + 1] <= row, 1, 0)
        start, stop = (kernel.let("text_row", self.seq_starts[text[0] + after]) for after in range(2))
        if self.positions is None:
            return start, 0, kernel.let("end", stop - start)
        position = kernel.let("position", self.positions[row])
        first = first_key(self.scores, position)
        end = kernel.let("end", last_key(self.scores, position, stop - start - 1) + 1)
        return start, first if isinstance(first, int) else kernel.let("first", first), end

    def project(self) -> None:
        """Multiply the attention's result by the weight, and store the results."""
        kernel, facts, arguments = self.kernel, self.facts, self.arguments
        fmt = facts.weight
        groups = ROW_GROUPS if fmt.block_columns <= LOADED_COLUMNS else 2 * ROW_GROUPS
        rows, lanes = self.shape.rows // groups, self.shape.threads // groups
        group, lane = kernel.let("row_group", self.thread // lanes), kernel.let("lane", self.thread % lanes)
        rounds = -(-facts.outputs // (lanes * MAX_OUTPUTS))
        outputs = -(-facts.outputs // (lanes * rounds))
        unroll = max(1, min(LOADED_COLUMNS // fmt.block_columns, arguments.weight.blocks))
        steps = -(-arguments.weight.blocks // unroll)
        inputs = [AttendedRow(self.attended, group * rows + i, fmt.block_columns // 4) for i in range(rows)]
        sums = [kernel.local("sums", outputs, "float32") for _ in inputs]
        with kernel.loop("round", rounds) as turn:
            first = kernel.let("first_output", (turn * lanes + lane) * outputs)
            for each in sums:
                for i in range(outputs):
                    each[i] = 0
            with kernel.loop("step", steps) as step:
                blocks = [kernel.let("block", step * unroll + i) for i in range(unroll)]
                clamp = facts.outputs % (lanes * outputs) != 0
                loaded = [
                    load_blocks(kernel, arguments, first, outputs, each, steps * unroll, clamp=clamp) for each in blocks
                ]
                for block, weights in zip(blocks, loaded, strict=True):
                    with kernel.when(guard_below(block, arguments.weight.blocks, unroll)):
                        dot_products_of_rows(kernel, arguments, inputs, block, weights, sums)
            for i, each in enumerate(sums):
                row = kernel.let("result_row", self.first_row + group * rows + i)
                for j in range(outputs):
                    output = kernel.let("output", first + j)
                    guard = all_of(row < kernel.size("S"), output < facts.outputs)
                    arguments.store(kernel, row, output, [each[j]], guard)


@dataclass(frozen=True, slots=True)
class AttendedRow:
    """A row of the attention's result, as `dot_products_of_rows` reads it."""

    attended: Array
    row: Scalar
    quads: int

    def quad(self, block: Scalar, j: int) -> Scalar:
        return self.attended[self.row, block * self.quads + j]

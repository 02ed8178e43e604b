"""linear for few rows: matrix times vector, each sum folded by the threads of one subgroup.

One subgroup: ``rows`` weight rows at a time; its threads divide the columns among themselves, block by block.
One workgroup: ``groups * rows`` outputs of one input row, which is read through workgroup memory, one tile at a time.
Needs: subgroups, and in WGSL the language feature subgroup_id.

The kernel is correct for subgroups of any size. WGSL does not specify which threads of a workgroup form a subgroup, so
nothing here is computed from the thread's index: a thread's index in its subgroup is the number of threads before it,
the size of its subgroup is their count, and the subgroup's index is the built-in value subgroup_id, which WGSL
guarantees to be 0 to num_subgroups - 1 (W3C, WGSL, subgroup_id). If a workgroup has fewer subgroups than groups of
rows, each subgroup processes several groups in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

from .builder import Kernel, KernelBuilder, all_of, guard_below, truncated_quotient
from .maths import rms_factor
from .projection import Projection, ProjectionArguments
from .vector_parts import InputTile, dot_products, load_blocks


@dataclass(frozen=True, slots=True)
class SubgroupShape:
    """``threads`` per workgroup, ``groups`` of ``rows`` weight rows (in each half of a gated projection), ``columns``
    of the input per tile.

    If groups = threads / 32, each subgroup of 32 threads processes one group, each of 64 two in turn, and half of the
    subgroups of 16 are idle.
    """

    threads: int = 128
    groups: int = 4
    rows: int = 2
    columns: int = 2048


def linear_subgroup(name: str, facts: Projection, shape: SubgroupShape) -> Kernel:
    kernel = KernelBuilder(name)
    arguments = ProjectionArguments(kernel, facts, blocks=True)
    weight, rows, blocks = (
        arguments.weight,
        shape.rows,
        min(shape.columns // facts.weight.block_columns, arguments.weight.blocks),
    )
    halves = 2 if facts.gated else 1
    outputs, steps = shape.groups * rows, -(-weight.blocks // blocks)

    column_block, row = kernel.grid(["ceildiv", facts.outputs, outputs], facts.batch)
    thread = kernel.threads(shape.threads)
    subgroup = kernel.subgroup()

    sums = kernel.local("sums", rows * halves, "float32")
    tile = InputTile(kernel, arguments, thread, shape.threads, blocks, steps, row, column_block == 0)
    # At most one subgroup per thread: WebGPU's smallest subgroup size is 4, but a subgroup need not be full.
    squares = kernel.shared("subgroup_squares", (shape.threads,), "float32")
    inverse = kernel.local("inverse", 1, "float32")
    turns = kernel.let("turns", truncated_quotient(subgroup.count + (shape.groups - 1), subgroup.count))
    with kernel.loop("turn", turns) as turn:
        group = kernel.let("group", turn * subgroup.count + subgroup.index)
        first_output = kernel.let("first_output", column_block * outputs + group * rows)
        for i in range(rows * halves):
            sums[i] = 0
        tile.clear_squares()
        with kernel.loop("step", steps) as step:
            kernel.barrier()
            tile.fill(step)
            kernel.barrier()
            with kernel.loop("round", truncated_quotient(subgroup.size + (blocks - 1), subgroup.size)) as i:
                block_index = kernel.let("block_index", i * subgroup.size + subgroup.lane)
                with kernel.when(block_index < blocks):
                    loaded = load_blocks(
                        kernel, arguments, first_output, rows, step * blocks + block_index, steps * blocks, clamp=True
                    )
                    dot_products(kernel, arguments, [tile], block_index, loaded, [sums])
        for i in range(rows * halves):
            sums[i] = subgroup.sum(sums[i])
        if tile.squares is not None and facts.norm is not None:
            inverse[0] = subgroup.sum(tile.squares)
            with kernel.when(subgroup.lane == 0):
                squares[subgroup.index] = inverse[0]
            kernel.barrier()
            inverse[0] = 0
            with kernel.loop("other", subgroup.count) as other:
                inverse[0] = inverse[0] + squares[other]
            inverse[0] = rms_factor(inverse[0], facts.columns, facts.norm["eps"])
        with kernel.when(all_of(subgroup.lane == 0, group < shape.groups)):
            for r in range(rows):
                results = [sums[half * rows + r] for half in range(halves)]
                if tile.squares is not None:
                    results = [result * inverse[0] for result in results]
                output = kernel.let("output", first_output + r)
                arguments.store(kernel, row, output, results, guard_below(output, facts.outputs, outputs))
    return kernel.finish()

"""The instructions of the projection kernels for one to four rows on CUDA, counted without a GPU.

``make bench-cuda-sass`` compiles the kernels that `targets/cuda/tuning.py` chooses with NVRTC and reads their SASS with
nvdisasm. For each matrix it prints, of `linear_async` and of `linear_few`: registers, shared memory, the instructions
that a launch executes for each weight, and the time that these take if every scheduler issues one in each cycle. A loop
counts as often as it runs: a round of `linear_few` has a known number of matrix products, and the loops of
`linear_async` are not unrolled. The counts are upper bounds, with the copies that the last rounds omit. The file
``cuda-sass.json`` in ``tests/bench/results`` has them all.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench_cuda_projections import MATRICES, projection
from rich.console import Console
from rich.table import Table
from sass import Function, functions_of

from nearfar.compiler import quant
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.kernels.cuda.chunk_codes import remainders_of
from nearfar.compiler.kernels.cuda.linear_async import TILE_COLUMNS, AsyncShape, linear_async
from nearfar.compiler.kernels.cuda.linear_few import FewShape, linear_few
from nearfar.compiler.kernels.projection import Projection
from nearfar.compiler.quant.kernel_format import weight_format
from nearfar.targets.cuda.nvrtc import compile_cubin
from nearfar.targets.cuda.source import cuda, source_file
from nearfar.targets.cuda.tuning import FEW_ROW_COUNTS, SCHEDULERS, few_shapes, tuning_for, vector_shape
from nearfar.targets.cuda.variants import NUMBERS

RESULTS = Path(__file__).parent / "results" / "cuda-sass.json"
ARCH = "sm_90"
# Of an H200 under load, an estimate.
CLOCK_HERTZ = 1.755e9
THREADS_OF_WARP = 32


@dataclass(frozen=True)
class Count:
    """One kernel of a matrix: ``instructions`` of a thread, and those of all threads for each weight."""

    matrix: str
    rows: int
    template: str
    shape: dict[str, Any]
    workgroups: int
    registers: int
    spilled_bytes: int
    shared_bytes: int
    instructions: int
    instructions_per_weight: float
    issue_microseconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quantization", default="q4f16")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    counts = [
        count
        for matrix, (columns, outputs, rest) in MATRICES.items()
        for rows in FEW_ROW_COUNTS
        for count in counts_of(
            matrix, projection(columns, outputs, weight_format(quant.form_by_name(options.quantization)), rest), rows
        )
    ]
    document = {"arch": ARCH, "quantization": options.quantization, "counts": [asdict(each) for each in counts]}
    options.output.write_text(json.dumps(document, indent=1) + "\n")
    print_counts(counts)


def counts_of(matrix: str, facts: Projection, rows: int) -> list[Count]:
    """Those of the shapes that the rules choose, of `linear_async` up to two rows and of `linear_few`."""
    tuning = tuning_for(ARCH)
    few = few_shapes(facts, tuning, rows)[0]
    after = count_of(matrix, facts, few, linear_few("kernel", facts, few), few.splits, executed_by_few)
    if rows > NUMBERS.max_vector_rows:
        return [after]
    vector = vector_shape(facts, tuning, rows)
    return [count_of(matrix, facts, vector, linear_async("kernel", facts, vector), 1, executed_by_async), after]


def count_of(
    matrix: str,
    facts: Projection,
    shape: Any,
    kernel: Kernel,
    splits: int,
    executed: Callable[[Function, Projection, Any], int],
) -> Count:
    cubin, log = compile_cubin(source_file([cuda(kernel, f"{ARCH}a")]), ARCH, "sass.cu")
    (function,) = functions_of(cubin).values()
    instructions = executed(function, facts, shape)
    workgroups = -(-facts.outputs // shape.outputs) * splits
    threads = workgroups * kernel.workgroup_size
    issued = threads / THREADS_OF_WARP * instructions
    registers = re.search(r"Used (\d+) registers", log)
    assert registers is not None, log
    return Count(
        matrix,
        shape.x_rows,
        "linear_few" if isinstance(shape, FewShape) else "linear_async",
        asdict(shape),
        workgroups,
        int(registers[1]),
        sum(int(each) for each in re.findall(r"(\d+) bytes spill stores", log)),
        kernel.shared_bytes,
        instructions,
        round(threads * instructions / (facts.weight_rows * facts.columns), 2),
        round(issued / (tuning_for(ARCH).multiprocessors * SCHEDULERS * CLOCK_HERTZ) * 1e6, 2),
    )


def executed_by_few(function: Function, facts: Projection, shape: FewShape) -> int:
    """The instructions of a thread: a round's products show how many rounds the loop and the rest of the code have."""

    def products(first: int = 0, last: int | None = None) -> int:
        end = len(function.instructions) if last is None else last + 1
        return sum(each.opcode.startswith("HMMA") for each in function.instructions[first:end])

    correction = sum(4 for each in remainders_of(facts.weight) if each) + (8 if facts.weight.offset else 0)
    of_round = (8 * shape.tiles * (2 if facts.gated else 1) + correction) * shape.pairs
    loop = next((each for each in function.loops if products(*each)), None)
    if loop is None:
        assert products() == of_round * shape.rounds(facts.columns), (products(), shape)
        return len(function.instructions)
    inside = products(*loop)
    turns, left = divmod(of_round * shape.rounds(facts.columns) - (products() - inside), inside)
    assert left == 0, (shape, inside, products())
    return len(function.instructions) + (turns - 1) * loop.length


def executed_by_async(function: Function, facts: Projection, shape: AsyncShape) -> int:
    """The instructions of a thread: the loop over tiles of the input contains that over rounds."""
    rounds = -(-facts.columns // (facts.weight.block_columns * shape.lanes))
    tile_rounds = min(rounds, max(1, TILE_COLUMNS // (shape.lanes * facts.weight.block_columns)))
    if not function.loops:
        assert rounds == 1, shape
        return len(function.instructions)
    outer, inner = function.loops[0], function.loops[-1]
    tiles = -(-rounds // tile_rounds)
    return len(function.instructions) - outer.length + tiles * (outer.length - inner.length) + rounds * inner.length


def print_counts(counts: list[Count]) -> None:
    table = Table(title="projections of one to four rows on CUDA")
    for column in ("matrix", "rows", "kernel", "workgroups", "registers", "spilled", "shared KB", "SASS", "issue us"):
        table.add_column(column)
    for each in counts:
        numbers = each.rows, each.template, each.workgroups, each.registers, each.spilled_bytes, each.shared_bytes >> 10
        times = each.instructions_per_weight, each.issue_microseconds
        table.add_row(each.matrix, *map(str, numbers), *(f"{number:.2f}" for number in times))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

"""Projection kernels on this machine's CPU: time, bytes of weights, and bytes per second, by weight format.

``make bench-cpu-kernels`` prints a table. Every call reads a copy of the weights that no cache still
holds. Formats alternate, and a figure is the median of many calls of the best variant for the batch.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import cpu_steps
from bench_compile import machine
from rich.console import Console
from rich.table import Table

from nearfar.compiler.ir.expr import holds
from nearfar.targets.threads import default_threads
from nearfar.targets.variant import Variant

# A feed-forward's and an attention's projections of Gemma 4 E2B.
SHAPES = ("6144x1536", "1536x6144", "2048x1536")
FORMATS = (
    "q4f16", "q8f16", "q2c", "q4c", "q8c", "q4g128_f16", "q4g128z_f16", "q4g128b_f16", "q4g32b_f16", "q4g32b", "q6g16",
)  # fmt: skip
ROWS = (1, 64)
COLD_BYTES = 192 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="NxK", help="weight rows by columns")
    parser.add_argument("--formats", nargs="+", default=FORMATS)
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS, metavar="S", help="input rows")
    parser.add_argument("--activation", choices=("float32", "int8"), default="float32")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    table = Table(title=f"{machine()}, {options.threads} threads, {options.activation} activations")
    for column in ("weight", "rows", "format", "MB", "microseconds", "GB/s", "time against the first"):
        table.add_column(column, justify="left" if column in ("weight", "format") else "right")
    with tempfile.TemporaryDirectory() as folder:
        for shape in options.shapes:
            measure(shape, options, Path(folder), table)
    Console(width=110).print(table)


def measure(shape: str, options: argparse.Namespace, folder: Path, table: Table) -> None:
    outputs, columns = map(int, shape.split("x"))
    batches = [cpu_steps.Batch({"S": rows}) for rows in options.rows]
    cases = {
        name: cpu_steps.StepCase(
            f"{name}_{shape}",
            "linear",
            {"x": ("float32", "S", columns), "weight": ("matrix", outputs, columns)},
            {"dtype": "float32"},
            batches,
            options.activation,
            name,
            (cpu_steps.LEVELS[0].name,),
        )
        for name in options.formats
    }
    (folder / shape).mkdir()
    library = cpu_steps.StepLibrary(tuple(cases.values()), folder / shape)
    library.library.start_threads(options.threads)
    for batch in batches:
        seconds: dict[str, list[float]] = {name: [] for name in cases}
        prepared = {}
        for name, case in cases.items():
            run = cpu_steps.run_of(case, batch)
            size = sum(array.nbytes for role, array in run.arrays.items() if role.startswith("weight."))
            copies = [library.prepared(best(case, batch), run) for _ in range(max(2, COLD_BYTES // size // 4))]
            prepared[name] = size, copies
        for _ in range(options.rounds):
            for name, (_, copies) in prepared.items():
                seconds[name] += [library.timed(launches, scalars) for launches, scalars, _ in copies]
        medians = {name: statistics.median(each) for name, each in seconds.items()}
        first = next(iter(medians.values()))
        for name, median in medians.items():
            size = prepared[name][0]
            figures = f"{size / 1e6:.2f}", f"{median * 1e6:.0f}", f"{size / median / 1e9:.1f}", f"{median / first:.2f}"
            table.add_row(shape, str(batch.dims["S"]), name, *figures)


def best(case: cpu_steps.StepCase, batch: cpu_steps.Batch) -> Variant:
    """The row that a runtime takes."""
    return next(row for row in case.variants(cpu_steps.LEVELS) if holds(row.when, batch.dims))


if __name__ == "__main__":
    main()

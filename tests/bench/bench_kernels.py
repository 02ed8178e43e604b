"""Projection kernels on this machine's GPU through Dawn: time, bytes per second, and share of the device's copy speed.

``make bench-kernels`` runs this, prints a table and writes ``build/bench/kernels.json``. It is meant for GPUs: figures
of a CPU driver do not predict theirs. Every dispatch reads a copy of the weights that no cache still holds.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from nearfar.compiler import quant
from nearfar.compiler.ir.expr import evaluate, holds
from nearfar.compiler.kernels.projection import Projection
from nearfar.compiler.quant.kernel_format import weight_format
from nearfar.targets.variant import Variant
from nearfar.targets.webgpu.lower import wgsl
from nearfar.targets.webgpu.runner import round_up, spread
from nearfar.targets.webgpu.variants import projection_variants

ROOT = Path(__file__).resolve().parents[2]
# The projections of a layer of Qwen3-0.6B, and its head.
SHAPES = ("4096x1024", "1024x2048", "6144x1024", "1024x3072", "151936x1024")
# A part as kernels get it.
NORM = {"op": "rms_norm", "eps": 1e-6, "centered": False, "row": None, "bias": False, "keep": False}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="NxK", help="weight rows by columns")
    parser.add_argument("--rows", nargs="+", type=int, default=(1, 64, 512), metavar="S", help="input rows")
    parser.add_argument("--quantization", default="q4f16", help="a weight format: q4f16, q8f16, q2c, q4c, q8c, ...")
    parser.add_argument(
        "--cold-megabytes",
        type=int,
        default=256,
        help="size of the weights through which dispatches cycle; more than the largest cache",
    )
    parser.add_argument("--milliseconds", type=int, default=50, help="duration of one measurement")
    parser.add_argument("--only", default="", help="a regular expression; only kernels whose names match are measured")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench", help="folder for requests and results")
    options = parser.parse_args()
    node = shutil.which("node")
    if node is None:
        parser.error("Node.js was not found; install Node.js 20 or newer")
    options.folder.mkdir(parents=True, exist_ok=True)
    request, answer = options.folder / "kernels.request.json", options.folder / "kernels.json"
    cases = [
        case
        for shape in options.shapes
        for size in options.rows
        for case in cases_of(shape, size, options.quantization)
        if re.search(options.only, case["name"])
    ]
    settings = {"coldBytes": options.cold_megabytes << 20, "milliseconds": options.milliseconds}
    request.write_text(json.dumps({**settings, "cases": cases}))
    subprocess.run([node, str(Path(__file__).with_suffix(".mjs")), str(request), str(answer)], check=True)
    print_results(json.loads(answer.read_text()), cases, options.quantization)


def cases_of(shape: str, size: int, quantization: str) -> list[dict[str, Any]]:
    """The cases of a norm and projection for a batch of ``size`` rows."""
    outputs, columns = map(int, shape.split("x"))
    fmt = quant.form_by_name(quantization)
    planes = {plane.name: plane for plane in fmt.planes(columns)}
    facts = Projection("S", columns, outputs, weight_format(fmt), "float32", "float32", load=[NORM])
    sizes = {"x": 4 * size * columns, "load0_weight": 4 * columns, "y": 4 * size * outputs}
    sizes |= {f"weight.{name}": outputs * plane.row_bytes for name, plane in planes.items()}
    rows = [row for row in projection_variants(facts, "float16") if holds(row.when, {"S": size})]
    return [case_of(row, {"S": size}, sizes, 2 * size * outputs * columns) for row in rows]


def case_of(row: Variant, dims: dict[str, int], sizes: dict[str, int], operations: int) -> dict[str, Any]:
    (call,) = row.kernels
    kernel = wgsl(call.build())
    x, y = (evaluate(expr, dims) for expr in kernel.kernel.grid)
    facts: Projection = call.facts["facts"]
    shape = "_".join(map(str, asdict(call.facts["shape"]).values()))
    return {
        "name": f"{call.template.__name__}_{facts.weight_rows}x{facts.columns}_{shape}",
        "rows": dims["S"],
        "code": kernel.text,
        "entry": kernel.entry,
        "needs": row.needs,
        "bindings": [
            {"size": round_up(sizes[role], 16), "cold": role.startswith("weight.")} for role in kernel.buffers
        ],
        "uniforms": [evaluate(expr, dims) for expr in kernel.uniforms],
        "grid": spread(x, y),
        "bytes": sum(sizes[role] for role in kernel.buffers),
        "operations": operations,
    }


def print_results(answer: dict[str, Any], cases: list[dict[str, Any]], quantization: str) -> None:
    copy = answer["copyBytesPerSecond"]
    table = Table(title=f"{quantization} on {answer['adapter']}, which copies (reads and writes) {copy / 1e9:.1f} GB/s")
    for column in ("kernel", "rows", "microseconds", "GB/s", "of copy", "GFLOP/s"):
        table.add_column(column, justify="left" if column == "kernel" else "right", no_wrap=True)
    for case, seconds in zip(cases, answer["seconds"], strict=True):
        if seconds is None:
            table.add_row(case["name"], str(case["rows"]), f"needs {', '.join(case['needs'])}")
            continue
        rate = case["bytes"] / seconds
        figures = (
            f"{seconds * 1e6:.1f}",
            f"{rate / 1e9:.1f}",
            f"{rate / copy:.0%}",
            f"{case['operations'] / seconds / 1e9:.0f}",
        )
        table.add_row(case["name"], str(case["rows"]), *figures)
    Console(width=170).print(table)


if __name__ == "__main__":
    main()

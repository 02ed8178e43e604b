"""Compile time and peak memory for real shapes, dispatches per decoded token, and the size of a bundle without weights.

``make bench`` runs this, prints a table and writes ``build/bench/compile.json``. Each model is compiled in its own
process. The peak memory is the kernel's count of that process's resident pages.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import resource
from pathlib import Path

from checkpoints import QWEN2_0_5B, QWEN3_0_6B, Shapes, compile_in_process, write_checkpoint
from rich.console import Console
from rich.table import Table

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.measure.report import make_report

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "web" / "dist" / "nearfar.js"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "bench", help="folder for checkpoints and bundles"
    )
    folder = parser.parse_args().folder
    results = [measure(shapes, folder) for shapes in (QWEN3_0_6B, QWEN2_0_5B)]
    (folder / "compile.json").write_text(json.dumps({"machine": machine(), "results": results}, indent=2))
    table = Table(title=f"compile, q4f16, webgpu, on {machine()}")
    for column in results[0]:
        table.add_column(column, justify="right")
    for result in results:
        table.add_row(*(str(value) for value in result.values()))
    Console(width=170).print(table)


def measure(shapes: Shapes, folder: Path) -> dict[str, object]:
    checkpoint, bundle = folder / shapes.name, folder / f"{shapes.name}-bundle"
    if not (checkpoint / "model.safetensors").exists():
        write_checkpoint(shapes, checkpoint)
    seconds = compile_in_process(checkpoint, bundle)
    # This is the peak of all children so far, so each model must be smaller than the one before it.
    peak_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    report = make_report(open_bundle(bundle).manifest)
    return {
        "model": shapes.name,
        "seconds": round(seconds, 1),
        "peak GB": round(peak_bytes / 1e9, 2),
        "weights MB": round(report.weight_bytes / 1e6, 1),
        "dispatches a token": report.dispatches_per_token,
        f"at {report.context}": report.dispatches_at_context,
        "manifest and kernels kB gz": round(overhead_bytes(bundle) / 1e3, 1),
        "runtime kB gz": round(len(gzip.compress(RUNTIME.read_bytes())) / 1e3, 1) if RUNTIME.exists() else "not built",
    }


def overhead_bytes(bundle: Path) -> int:
    """Gzipped size of the manifest and all kernels, which a page loads besides the weights and the tokenizer."""
    files = [bundle / "manifest.json", *(bundle / "kernels").iterdir()]
    return sum(len(gzip.compress(file.read_bytes())) for file in files)


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
    return f"{os.cpu_count()} cores of {name}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()

"""Compile time and peak memory for real shapes of dense models, of models with states and of mixtures; dispatches per
decoded token, and the size of a bundle without weights.

``make bench`` runs this, prints a table and writes ``build/bench/compile.json``. Each model is compiled in its own
process, without compiled kernels. Processor time, which other work of the machine hardly changes, is that of all
threads; the peak is the kernel's count of that process's resident pages. Checkpoints that were not there before and
bundles are removed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import shutil
from dataclasses import replace
from pathlib import Path

from checkpoints import QWEN2_0_5B, QWEN3_0_6B, QWEN3_5_0_8B, Shapes, compile_in_process, published, write_checkpoint
from rich.console import Console
from rich.table import Table

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.measure.report import make_report

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "web" / "dist" / "nearfar.js"
# Dense models first, then those with states, with Mamba-2 beside attention, and with experts.
MODELS = (
    QWEN2_0_5B,
    QWEN3_0_6B,
    published("llama-3.2-1b-instruct"),
    QWEN3_5_0_8B,
    replace(QWEN3_5_0_8B, name="Qwen3.5-0.8B with heads", draft_layers=1),
    published("granite-4.0-h-350m"),
    published("falcon-h1-0.5b-instruct"),
    published("granite-3.1-1b-a400m-instruct"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "bench", help="folder for checkpoints and bundles"
    )
    parser.add_argument("--model", action="append", help="one of the models only; may be given more than once")
    parser.add_argument("--target", default="webgpu")
    options = parser.parse_args()
    models = [shapes for shapes in MODELS if options.model is None or shapes.name in options.model]
    results = []
    for shapes in models:
        results.append(measure(shapes, options.folder, options.target))
        print(json.dumps(results[-1]), flush=True)
    answer = {"machine": machine(), "target": options.target, "results": results}
    (options.folder / "compile.json").write_text(json.dumps(answer, indent=2) + "\n")
    table = Table(title=f"compile, q4f16, {options.target}, on {machine()}")
    for column in results[0]:
        table.add_column(column, justify="right")
    for result in results:
        table.add_row(*(str(value) for value in result.values()))
    Console(width=190).print(table)
    if RUNTIME.exists():
        print(f"runtime: {len(gzip.compress(RUNTIME.read_bytes())) / 1e3:.1f} kB gzipped")


def measure(shapes: Shapes, folder: Path, target: str) -> dict[str, object]:
    checkpoint, bundle = folder / shapes.name, folder / f"{shapes.name}-bundle"
    written = not (checkpoint / "model.safetensors").exists()
    if written:
        write_checkpoint(shapes, checkpoint)
    try:
        usage = compile_in_process(checkpoint, bundle, "--target", target)
        report = make_report(open_bundle(bundle).manifest)
        return {
            "model": shapes.name,
            "seconds": round(usage.seconds, 1),
            "processor seconds": round(usage.processor_seconds, 1),
            "peak MB": round(usage.peak_bytes / 1e6),
            "weights MB": round(report.weight_bytes / 1e6, 1),
            "kernels": len(list((bundle / "kernels").iterdir())),
            "dispatches a token": report.dispatches_per_token,
            "at the longest context": report.dispatches_at_context,
            "manifest and kernels kB gz": round(overhead_bytes(bundle) / 1e3, 1),
        }
    finally:
        shutil.rmtree(bundle, ignore_errors=True)
        if written:
            shutil.rmtree(checkpoint)


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

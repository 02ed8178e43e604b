"""Time of one decoded token at several lengths of context, on the WebGPU device that wgpu finds, beside the floor that its bytes set.

``make bench-decode-context`` runs it, prints a table for float16 and one for 8-bit keys and values, and writes
``build/bench/decode_context.json``. Nothing is prefilled: a token takes as long over pages of zeros. The lengths take turns, so that what
else the machine does falls on all of them, and medians are given.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from checkpoints import QWEN2_0_5B, write_checkpoint
from rich.console import Console
from rich.table import Table

from nearfar.compiler.batch import Chunk, Limits, make_batch
from nearfar.compiler.bundle import open_bundle
from nearfar.compiler.manifest import Manifest
from nearfar.compiler.report import make_report
from nearfar.targets.webgpu.runner import WebGPURunner

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench", help="where the checkpoint and the bundles go")
    parser.add_argument(
        "--positions", type=int, nargs="+", default=(127, 2047, 8191), help="tokens before the decoded one, the first the base"
    )
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    results = []
    for kv in ("activation", "q8"):
        folder = compiled(options.folder, kv, max(options.positions) + 1)
        results.append(measure(folder, kv, tuple(options.positions), options.rounds))
    (options.folder / "decode_context.json").write_text(json.dumps(results, indent=2))
    for result in results:
        table = Table(title=f"{result['model']}, keys and values {result['kv']}, on {result['device']}")
        for column in ("context", "seconds", "times the first", "MB read", "times the first's bytes"):
            table.add_column(column, justify="right")
        for row in result["rows"]:
            table.add_row(*(str(value) for value in row.values()))
        Console(width=120).print(table)


def compiled(folder: Path, kv: str, context: int) -> Path:
    """A bundle of Qwen2-0.5B's shapes with random weights, made where it is not there yet."""
    checkpoint, bundle = folder / QWEN2_0_5B.name, folder / f"{QWEN2_0_5B.name}-{kv}-{context}"
    if not (checkpoint / "model.safetensors").exists():
        write_checkpoint(QWEN2_0_5B, checkpoint)
    # Always anew: the kernels are what is measured.
    command = [sys.executable, "-m", "nearfar.compiler.cli", "compile", str(checkpoint), "-o", str(bundle), "--force", "--json"]
    command += ["--context", str(context), "--kv", kv, "--no-self-test"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return bundle


def measure(folder: Path, kv: str, positions: tuple[int, ...], rounds: int) -> dict[str, object]:
    runner = WebGPURunner(open_bundle(folder), limits=Limits(tokens=4, sequences=1, rows=1))
    manifest = runner.manifest
    pages = [int(page) for page in np.random.default_rng(0).permutation(runner.num_pages)]
    seconds: dict[int, list[float]] = {position: [] for position in positions}
    for turn in range(rounds + 1):
        for position in positions:
            chunk = Chunk([7], position, pages[: manifest.pages_for(position + 1)], [0])
            batch = make_batch([chunk], manifest.page_size)
            started = time.perf_counter()
            runner.forward(batch)
            # The first turn compiles kernels.
            if turn:
                seconds[position].append(time.perf_counter() - started)
    device = runner.device
    runner.close()
    medians = {position: float(np.median(values)) for position, values in seconds.items()}
    read = {position: make_report(manifest).weight_bytes + (position + 1) * kv_bytes_a_token(manifest) for position in positions}
    first = positions[0]
    rows = [
        {
            "context": position + 1,
            "seconds": round(medians[position], 3),
            "times the first": round(medians[position] / medians[first], 2),
            "MB read": round(read[position] / 1e6),
            "times the first's bytes": round(read[position] / read[first], 2),
        }
        for position in positions
    ]
    return {"model": f"{QWEN2_0_5B.name} {manifest.quantization}", "kv": kv, "device": device, "rows": rows}


def kv_bytes_a_token(manifest: Manifest) -> int:
    """Bytes of all layers' keys and values for one token; activations are float16 where the device can."""
    total = 0
    for name in manifest.page_states():
        entry = manifest.plan.states[name]
        elements = int(np.prod([extent for extent in entry.shape if isinstance(extent, int)]))
        total += elements * (2 if entry.dtype == "activation" else 4) // manifest.page_size
    return total


if __name__ == "__main__":
    main()

"""Time of a decoded token, and the bytes that it reads, at several context lengths on the WebGPU device that wgpu
finds.

``make bench-decode-context`` runs this, prints a table for float16 and one for 8-bit keys and values, and writes
``build/bench/decode_context.json``. Nothing is prefilled, because a token takes as long over pages of zeros. The
lengths alternate, so that other work on the machine affects all of them, and the figures are medians. On a CPU adapter
of a busy machine, the processor time of all threads is the relevant figure.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import QWEN2_0_5B, compile_in_process, write_checkpoint
from rich.console import Console
from rich.table import Table

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.bundle.manifest import Manifest
from nearfar.compiler.measure.report import make_report
from nearfar.compiler.runtime.batch import Chunk, Limits, make_batch
from nearfar.targets.webgpu.runner import WebGPURunner

ROOT = Path(__file__).resolve().parents[2]
# Cached tokens before the decoded one. The other lengths are compared with the first.
POSITIONS = (127, 2047, 8191)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "bench", help="folder for the checkpoint and the bundles"
    )
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    results = []
    for kv in ("activation", "q8"):
        title, rows = measure(compiled(options.folder, kv), options.rounds)
        results.append({"title": title, "rows": rows})
        table = Table(title=title)
        for column in rows[0]:
            table.add_column(column, justify="right")
        for row in rows:
            table.add_row(*map(str, row.values()))
        Console(width=120).print(table)
    (options.folder / "decode_context.json").write_text(json.dumps(results, indent=2))


def compiled(folder: Path, kv: str) -> Path:
    """A bundle of Qwen2-0.5B's shapes with random weights."""
    checkpoint, bundle = folder / QWEN2_0_5B.name, folder / f"{QWEN2_0_5B.name}-kv-{kv}"
    if not (checkpoint / "model.safetensors").exists():
        write_checkpoint(QWEN2_0_5B, checkpoint)
    compile_in_process(checkpoint, bundle, "--context", str(max(POSITIONS) + 1), "--kv", kv, "--no-self-test")
    return bundle


def measure(folder: Path, rounds: int) -> tuple[str, list[dict[str, Any]]]:
    """Returns a title that names the device, and a row of figures for each length."""
    runner = WebGPURunner(open_bundle(folder), limits=Limits(tokens=4, sequences=1, rows=1))
    manifest = runner.manifest
    pages = [int(page) for page in np.random.default_rng(0).permutation(runner.num_pages)]
    taken: dict[int, list[tuple[float, float]]] = {position: [] for position in POSITIONS}
    for turn in range(rounds + 1):
        for position in POSITIONS:
            chunk = Chunk([7], position, pages[: manifest.pages_for(position + 1)], [0])
            batch = make_batch([chunk], manifest.page_size)
            started, processor = time.perf_counter(), time.process_time()
            runner.forward(batch)
            # The first round compiles kernels.
            if turn:
                taken[position].append((time.perf_counter() - started, time.process_time() - processor))
    title = f"{QWEN2_0_5B.name}, {manifest.quantization}, keys and values {manifest.kv}, on {runner.device}"
    token_bytes = kv_bytes_a_token(manifest, np.dtype(runner.activation).itemsize)
    runner.close()
    weights = make_report(manifest).weight_bytes
    figures = np.array(
        [[*np.median(taken[each], axis=0), (weights + (each + 1) * token_bytes) / 1e6] for each in POSITIONS]
    )
    rows: list[dict[str, Any]] = []
    for position, values, ratios in zip(POSITIONS, figures, figures / figures[0], strict=True):
        row: dict[str, Any] = {"context": position + 1}
        for name, value, ratio in zip(("seconds", "CPU seconds", "MB read"), values, ratios, strict=True):
            row |= {name: f"{value:.4g}", f"x {name}": f"{ratio:.2f}"}
        rows.append(row)
    return title, rows


def kv_bytes_a_token(manifest: Manifest, activation_bytes: int) -> int:
    """Bytes of all layers' keys and values for one token."""
    total = 0
    for name in manifest.page_states(0):
        state = manifest.states[name]
        elements = int(np.prod([extent for extent in state.shape if isinstance(extent, int)]))
        total += elements * (activation_bytes if state.dtype == "activation" else np.dtype(state.dtype).itemsize)
    return total // manifest.page_size


if __name__ == "__main__":
    main()

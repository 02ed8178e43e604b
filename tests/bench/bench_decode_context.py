"""Time of a decoded token, and the bytes that it reads, at several context lengths for each format of keys and values,
on the WebGPU device that wgpu finds or, with ``--target cpu``, on this machine's CPU.

``make bench-decode-context`` runs this (``TARGET=cpu``), prints a table for each format, and writes
``build/bench/decode_context.json``. Nothing is prefilled, because a token takes as long over pages of zeros. Formats
and lengths alternate, so that other work on the machine affects all of them, and the figures are medians. On a CPU
adapter of a busy machine, the processor time of all threads is the relevant figure.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import QWEN2_0_5B, QWEN3_0_6B, Shapes, compile_in_process, write_checkpoint
from rich.console import Console
from rich.table import Table

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.bundle.manifest import Manifest
from nearfar.compiler.ir.kv_format import KV_NAMES
from nearfar.compiler.measure.report import make_report
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.plan_runner import PlanRunner
from nearfar.compiler.runtime.runner import Limits

ROOT = Path(__file__).resolve().parents[2]
# Cached tokens before the decoded one. The other lengths are compared with the first.
POSITIONS = (127, 2047, 8191)
# On CPUs a model whose keys and values are larger than its weights at the longest context.
MODELS = {"webgpu": QWEN2_0_5B, "cpu": QWEN3_0_6B}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "bench", help="folder for the checkpoint and the bundles"
    )
    parser.add_argument("--target", choices=tuple(MODELS), default="webgpu")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    shapes = MODELS[options.target]
    folders = {kv: compiled(options.folder, shapes, options.target, kv) for kv in KV_NAMES}
    results = measure(shapes.name, options.target, folders, options.rounds)
    for title, rows in results.items():
        table = Table(title=title)
        for column in rows[0]:
            table.add_column(column, justify="right")
        for row in rows:
            table.add_row(*map(str, row.values()))
        Console(width=120).print(table)
    listed = [{"title": title, "rows": rows} for title, rows in results.items()]
    (options.folder / "decode_context.json").write_text(json.dumps(listed, indent=2))


def compiled(folder: Path, shapes: Shapes, target: str, kv: str) -> Path:
    """A bundle with random weights."""
    checkpoint, bundle = folder / shapes.name, folder / f"{shapes.name}-{target}-kv-{kv}"
    if not (checkpoint / "model.safetensors").exists():
        write_checkpoint(shapes, checkpoint)
    context = ("--context", str(max(POSITIONS) + 1))
    compile_in_process(checkpoint, bundle, "--target", target, *context, "--kv", kv, "--no-self-test")
    return bundle


def measure(model: str, target: str, folders: Mapping[str, Path], rounds: int) -> dict[str, list[dict[str, Any]]]:
    """For each format of keys and values, a title that names the device, and a row of figures for each length."""
    pages = open_bundle(folders["q8"]).manifest.pages_for(POSITIONS[-1] + 1)
    limits = Limits(tokens=4, sequences=1, rows=1, pages=pages)
    runners = {kv: open_runner(target, open_bundle(folder), limits) for kv, folder in folders.items()}
    taken: dict[tuple[str, int], list[tuple[float, float]]] = {(kv, each): [] for kv in runners for each in POSITIONS}
    for turn in range(rounds + 1):
        for position in POSITIONS:
            for kv, runner in runners.items():
                assert isinstance(runner, PlanRunner)
                manifest = runner.manifest
                order = [int(page) for page in np.random.default_rng(0).permutation(pages)]
                chunk = Chunk([7], position, order[: manifest.pages_for(position + 1)], [0])
                batch = make_batch([chunk], manifest.page_size)
                started, processor = time.perf_counter(), time.process_time()
                runner.forward(batch)
                # The first round compiles kernels.
                if turn:
                    taken[kv, position].append((time.perf_counter() - started, time.process_time() - processor))
    results = {}
    for kv, runner in runners.items():
        assert isinstance(runner, PlanRunner)
        title = f"{model}, {runner.manifest.quantization}, keys and values {kv}, on {runner.device}"
        results[title] = rows_of(runner.manifest, runner.activation, [taken[kv, each] for each in POSITIONS])
        runner.close()
    return results


def rows_of(
    manifest: Manifest, activation: str, taken: Sequence[Sequence[tuple[float, float]]]
) -> list[dict[str, Any]]:
    """The medians at each length, and their ratios to the first."""
    reports = [make_report(manifest, context=position + 1, activation=activation) for position in POSITIONS]
    figures = np.array(
        [
            [*np.median(times, axis=0), report.bytes_per_token_at_context / 1e6]
            for report, times in zip(reports, taken, strict=True)
        ]
    )
    rows: list[dict[str, Any]] = []
    for position, values, ratios in zip(POSITIONS, figures, figures / figures[0], strict=True):
        row: dict[str, Any] = {"context": position + 1}
        for name, value, ratio in zip(("seconds", "CPU seconds", "MB read"), values, ratios, strict=True):
            row |= {name: f"{value:.4g}", f"x {name}": f"{ratio:.2f}"}
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()

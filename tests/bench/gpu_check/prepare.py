"""Prepares the GPU checks with TVM: kernel cases with their results, the demo model's CUDA bundle, and one with real
shapes.

It needs no GPU. The folder can be copied to a machine without a network. It is small, because the random weights of the
large bundle are written on that machine (`bundles.py`).
"""

from __future__ import annotations

import argparse
import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.ir.expr import evaluate
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.server_fallback.executors.devices import default_arch
from nearfar.targets.cuda.nvrtc import DEFAULT_ARCH, compile_cubin

from .bundles import without_weights
from .prepared import CASES_FILE, CUBIN_FILE, DEMO, LARGE, SOURCE_FILE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--arch", default=DEFAULT_ARCH, help="architecture of the GPU; auto: this machine's (default: %(default)s)"
    )
    parser.add_argument(
        "--without-large", action="store_true", help="leave out the bundle with the shapes of Qwen3-0.6B"
    )
    options = parser.parse_args()
    arch = default_arch("cuda") if options.arch == "auto" else options.arch
    assert arch is not None
    options.folder.mkdir(parents=True, exist_ok=True)
    compile_model(str(CHECKPOINT), options.folder / DEMO, CompileOptions(target="cuda", arch=arch, force=True))
    if not options.without_large:
        prepare_large(options.folder, arch)
    # This is written last, because gpu-check prepares again if it is missing.
    prepare_cases(options.folder, arch)


def prepare_cases(folder: Path, arch: str) -> None:
    """Write all kernels into one cubin, and for each run of a case its arrays, launches and results as plain values."""
    from cuda_cases import cuda_cases
    from cuda_harness import lower_cases

    cases = list(cuda_cases())
    kernels, source = lower_cases(cases, arch)
    (folder / SOURCE_FILE).write_text(source)
    (folder / CUBIN_FILE).write_bytes(compile_cubin(source, arch, SOURCE_FILE)[0])
    prepared = []
    for case in cases:
        runs: list[dict[str, Any]] = []
        for run in case.runs():
            scratch = {
                f"scratch.{name}": count for each in kernels[case.name] for name, count in each.kernel.scratch.items()
            }
            launches = [
                (
                    each.entry,
                    tuple(evaluate(size, run.dims) for size in each.kernel.grid),
                    each.kernel.workgroup_size,
                    list(each.buffers),
                    [evaluate(scalar, run.dims) for scalar in each.scalars],
                )
                for each in kernels[case.name]
            ]
            filled = {name: np.full(evaluate(count, run.dims), np.nan, np.float32) for name, count in scratch.items()}
            runs.append(
                {
                    "dims": run.dims,
                    "arrays": {**run.arrays, **filled},
                    "expected": dict(run.expected),
                    "launches": launches,
                }
            )
        prepared.append({"name": case.name, "dtype": case.dtype, "runs": runs})
    (folder / CASES_FILE).write_bytes(gzip.compress(pickle.dumps(prepared), 6))


def prepare_large(folder: Path, arch: str) -> None:
    from checkpoints import QWEN3_0_6B, write_checkpoint

    checkpoint = folder.parent / QWEN3_0_6B.name
    if not (checkpoint / "model.safetensors").exists():
        write_checkpoint(QWEN3_0_6B, checkpoint)
    compile_model(
        str(checkpoint), folder / LARGE, CompileOptions(target="cuda", arch=arch, self_test=False, force=True)
    )
    without_weights(folder / LARGE)


if __name__ == "__main__":
    main()

"""`make gpu-prepare`: on a machine without a GPU, compiles with TVM everything that the check runs on a machine without
TVM.

The folder holds the kernels of all cases, the demo model as bundles with its self-test and questions with their
answers, and bundles without weights of the benchmarks' shapes. FOLDER.tar.xz, a few megabytes, is the folder to copy.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import bench_cuda_projections
from bench_kernels import cases_of
from cuda_harness import lower_cases

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.pipeline.export import export_model
from nearfar.server_fallback.executors.devices import default_arch
from nearfar.targets.cuda.arch import HOPPER, parse_arch
from nearfar.targets.cuda.nvrtc import DEFAULT_ARCH, compile_cubin

from . import machine
from .cases import CUDA, WEBGPU, all_cases, write_kernels
from .packages import pack
from .persistent_kernel import prepare as prepare_persistent
from .prepared import (
    CUBIN_FILE,
    CUDA_PROJECTIONS,
    DEMO_CUDA,
    DEMO_ONNX_CUDA,
    DEMO_ONNX_WEBGPU,
    DEMO_WEBGPU,
    FACTS_FILE,
    LONG_QUESTION_FILE,
    PROJECTIONS_FILE,
    QUESTIONS_FILE,
    SOURCE_FILE,
    bundle_name,
)
from .questions import LONG_TURNS, confident_questions
from .sizes import Sizes, sizes
from .weightless import compile_without_weights

ROOT = Path(__file__).resolve().parents[3]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--arch", default=DEFAULT_ARCH, help="architecture of the GPU; auto: this machine's (default: %(default)s)"
    )
    parser.add_argument("--rehearse", action="store_true", help="what gpu-check --rehearse runs")
    options = parser.parse_args()
    arch = default_arch("cuda") if options.arch == "auto" else options.arch
    unfinished = options.folder.with_name(f"{options.folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    prepare(unfinished, arch or DEFAULT_ARCH, sizes(rehearse=options.rehearse), rehearse=options.rehearse)
    shutil.rmtree(options.folder, ignore_errors=True)
    unfinished.rename(options.folder)
    archive = options.folder.with_name(f"{options.folder.name}.tar.xz")
    pack(archive, {"": options.folder})
    print(f"{archive}: {archive.stat().st_size / 1e6:.1f} MB")


def prepare(folder: Path, arch: str, chosen: Sizes, *, rehearse: bool) -> None:
    """``folder`` is empty."""
    prepare_demo(folder, arch, chosen.clients)
    prepare_kernels(folder, arch, chosen.case_stride)
    for name, shapes in chosen.far.items():
        options = CompileOptions(target="cuda", arch=arch, quantization="q4f16")
        compile_without_weights(shapes, folder / bundle_name(name, CUDA), options)
    matrices = chosen.far_matrices
    bench_cuda_projections.prepare(folder / CUDA_PROJECTIONS, arch, "q4f16", matrices, chosen.far_rows)
    prepare_persistent(folder, rehearse=rehearse)
    for name, shapes in chosen.near.items():
        options = CompileOptions(quantization="q4f16", context=chosen.near_context)
        compile_without_weights(shapes, folder / bundle_name(name, WEBGPU), options)
    projections = [
        case
        for shape in chosen.projections
        for rows in chosen.projection_rows
        for case in cases_of(shape, rows, "q4f16")
    ]
    settings = {"coldBytes": chosen.cold_bytes, "milliseconds": chosen.projection_milliseconds}
    (folder / PROJECTIONS_FILE).write_text(json.dumps({**settings, "cases": projections}))
    facts: dict[str, Any] = {"arch": arch, "rehearsal": rehearse, **(machine.commit(ROOT) or {})}
    (folder / FACTS_FILE).write_text(json.dumps(facts))


def prepare_demo(folder: Path, arch: str, questions: int) -> Bundle:
    """The demo model for every device, and questions with the answers that the reference gives."""
    checkpoint = str(CHECKPOINT)
    compile_model(checkpoint, folder / DEMO_WEBGPU, CompileOptions())
    bundle = compile_model(checkpoint, folder / DEMO_CUDA, CompileOptions(target="cuda", arch=arch))
    export_model(
        checkpoint, folder / DEMO_ONNX_CUDA, CompileOptions(target="onnx", quantization="q4f16", device="cuda")
    )
    for dtype, name in DEMO_ONNX_WEBGPU.items():
        export_model(
            checkpoint,
            folder / name,
            CompileOptions(target="onnx", quantization="q4f16", device="webgpu", activations=(dtype,)),
        )
    (folder / QUESTIONS_FILE).write_text(json.dumps(confident_questions(bundle, questions)))
    (folder / LONG_QUESTION_FILE).write_text(json.dumps(confident_questions(bundle, 1, turns=LONG_TURNS)))
    return bundle


def prepare_kernels(folder: Path, arch: str, stride: int) -> None:
    """All CUDA kernels in one cubin, and how to launch each case's kernels."""
    cuda, webgpu = (list(all_cases(target).values())[::stride] for target in (CUDA, WEBGPU))
    if parse_arch(arch)[:2] != HOPPER:
        cuda = [case for case in cuda if "wgmma" not in case.name]
    kernels, source = lower_cases(cuda, arch)
    (folder / SOURCE_FILE).write_text(source)
    (folder / CUBIN_FILE).write_bytes(compile_cubin(source, arch, SOURCE_FILE)[0])
    write_kernels(folder, {CUDA: kernels, WEBGPU: {case.name: case.lowered().kernels for case in webgpu}})


if __name__ == "__main__":
    main()

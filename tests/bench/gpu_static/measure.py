"""The statistics of the kernels of bundles on every GPU."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from checkpoints import LLAMA_3_2_1B, QWEN3_0_6B, Shapes
from gpu_check.weightless import compile_without_weights

from nearfar.compiler.bundle.manifest import Manifest
from nearfar.compiler.pipeline.compile import CompileOptions
from nearfar.compiler.runtime.errors import DeviceError

from .devices import DEVICES, Compiled, Device, Statistics, compile_shaders
from .kernels import ShaderSource, keep_loops, sources_of, translate
from .packages import Compilers, Progress

# The activations of each model's bundle; None for those of the quantization.
MODELS: tuple[tuple[Shapes, tuple[str, ...] | None], ...] = (
    (LLAMA_3_2_1B, ("int8", "float16", "float32")),
    (QWEN3_0_6B, None),
)
CONTEXT = 8448


@dataclass(frozen=True, slots=True)
class Figures(Statistics):
    """``per_weight``: the instructions for each weight of a pass over the columns in a matrix-vector kernel whose
    loops are not unrolled, those before and after the loop included; None for other kernels.
    """

    per_weight: float | None = None


# The figures of a kernel by device, by the kernel's label, and by the name of its bundle.
OfKernel = dict[str, Figures]
OfBundle = dict[str, OfKernel]


def make_bundles(folder: Path, progress: Progress) -> dict[Path, Manifest]:
    """Bundles of MODELS without weights."""
    shutil.rmtree(folder, ignore_errors=True)
    for shapes, activations in MODELS:
        progress(f"compiling {shapes.name}")
        options = CompileOptions(quantization="q4f16", context=CONTEXT, activations=activations)
        compile_without_weights(shapes, folder / shapes.name, options)
    bundles = [folder / shapes.name for shapes, _ in MODELS]
    return {each: Manifest.model_validate_json((each / "manifest.json").read_text()) for each in bundles}


def measure(
    compilers: Compilers, bundles: Mapping[Path, Manifest], folder: Path, progress: Progress
) -> dict[str, OfBundle]:
    """``folder`` is for the SPIR-V. Raises DeviceError, which names them, if compilers refuse kernels."""
    kernels = {bundle.name: sources_of(bundle, manifest.kernels) for bundle, manifest in bundles.items()}
    # Bundles may have kernels in common.
    sources = {each.name: each for of_bundle in kernels.values() for each in of_bundle}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shaders = {name: folder / f"{name}.spv" for name in sources}
    looped = {f"{name} looped": folder / f"{name}.looped.spv" for name, each in sources.items() if each.weights}
    progress(f"translating {len(sources)} kernels to SPIR-V")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda name: translate(compilers, sources[name].path, shaders[name]), sources))
        for name, copy in looped.items():
            keep_loops(shaders[name.split()[0]], copy)

        def compile_for(device: Device) -> Compiled:
            compiled = compile_shaders(compilers, device, {**shaders, **looped})
            progress(f"compiled for {device.name}")
            return compiled

        found = dict(zip((device.name for device in DEVICES), pool.map(compile_for, DEVICES), strict=True))
    problems = [f"{device}: {name}: {error}" for device, each in found.items() for name, error in each.errors.items()]
    if problems:
        raise DeviceError(f"gpu-static: {len(problems)} kernels do not compile: {'; '.join(problems[:5])}")

    def figures_of(source: ShaderSource, statistics: Mapping[str, Statistics]) -> Figures:
        per_weight = statistics[f"{source.name} looped"].instructions / source.weights if source.weights else None
        return Figures(**asdict(statistics[source.name]), per_weight=per_weight and round(per_weight, 2))

    return {
        bundle: {
            each.label: {device: figures_of(each, compiled.statistics) for device, compiled in found.items()}
            for each in of_bundle
        }
        for bundle, of_bundle in kernels.items()
    }

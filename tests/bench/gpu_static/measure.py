"""The statistics of the kernels of bundles on every GPU."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from checkpoints import LLAMA_3_2_1B, MINILM, MIXTURE, QWEN2_0_5B, QWEN3_0_6B, Shapes
from gpu_check.weightless import compile_without_weights

from nearfar.compiler.bundle.entries import VariantEntry
from nearfar.compiler.bundle.manifest import Manifest
from nearfar.compiler.ir.kv_format import KvName
from nearfar.compiler.pipeline.compile import CompileOptions
from nearfar.compiler.runtime.errors import DeviceError

from .devices import DEVICES, Compiled, Device, Statistics, compile_shaders
from .kernels import ShaderSource, keep_loops, sources_of, translate
from .packages import Compilers, Progress

INT8, HALVES = ("int8", "float16", "float32"), ("float16", "float32")
DECODE = ("attention_decode", "attention_few_rows")
CONTEXT = 8448


@dataclass(frozen=True, slots=True)
class Measured:
    """A model's bundle: its weights, its activations, the format of its pages, and the templates whose kernels are
    measured; all if there are none.
    """

    shapes: Shapes
    quantization: str = "q4f16"
    activations: tuple[str, ...] = HALVES
    kv: KvName = "activation"
    templates: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.shapes.name if self.kv == "activation" else f"{self.shapes.name}-{self.kv}-pages"


def layer_of(shapes: Shapes) -> Shapes:
    """All layers have the same kernels."""
    return replace(shapes, config={**shapes.config, "num_hidden_layers": 1})


# Of models whose other kernels are like those of the first two, those of decode attention: over groups of seven and of
# eight heads, and over pages of integers.
MODELS = (
    Measured(LLAMA_3_2_1B, activations=INT8),
    Measured(QWEN3_0_6B),
    Measured(layer_of(QWEN2_0_5B), templates=DECODE),
    Measured(layer_of(MIXTURE)),
    Measured(layer_of(LLAMA_3_2_1B), kv="q8", templates=DECODE),
    Measured(layer_of(MINILM), "q8f16"),
)


@dataclass(frozen=True, slots=True)
class Figures(Statistics):
    """``per_weight``: the instructions for each weight of a pass over the columns in a matrix-vector kernel whose
    loops are not unrolled, those before and after the loop included; None for other kernels. ``tuned``: it spills, and
    the GPU runs it only if a tuner finds it faster than the row that the GPU takes first.
    """

    per_weight: float | None = None
    tuned: bool = False


# The figures of a kernel by device, by the kernel's label, and by the name of its bundle.
OfKernel = dict[str, Figures]
OfBundle = dict[str, OfKernel]


def make_bundles(folder: Path, progress: Progress) -> dict[Path, Manifest]:
    """Bundles of MODELS without weights, with the kernels that are measured."""
    shutil.rmtree(folder, ignore_errors=True)
    made = {}
    for model in MODELS:
        progress(f"compiling {model.name}")
        bundle = folder / model.name
        options = CompileOptions(
            quantization=model.quantization,
            context=min(CONTEXT, model.shapes.config["max_position_embeddings"]),
            activations=model.activations,
            kv=model.kv,
        )
        compile_without_weights(model.shapes, bundle, options)
        manifest = Manifest.model_validate_json((bundle / "manifest.json").read_text())
        kernels = {
            name: each
            for name, each in manifest.kernels.items()
            if not model.templates or each.template in model.templates
        }
        made[bundle] = manifest.model_copy(update={"kernels": kernels})
    return made


def first_kernels(manifest: Manifest, vendor: str) -> set[str]:
    """The kernels of the rows that a vendor's GPUs may take before a tuner has measured: those before which no row with
    the same condition, or for every batch, runs on each GPU that runs them.
    """
    own = f"vendor-{vendor}"
    found: set[str] = set()
    for variants in manifest.variants.values():
        before: list[VariantEntry] = []
        for row in variants:
            if any(need.startswith("vendor-") and need != own for need in row.needs):
                continue
            needs = {*row.needs, own}
            if not any(
                each.activation in (None, row.activation) and set(each.needs) <= needs and each.when in (None, row.when)
                for each in before
            ):
                found.update(row.kernels)
            before.append(row)
    return found


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

    def figures_of(source: ShaderSource, statistics: Mapping[str, Statistics], first: Set[str]) -> Figures:
        per_weight = statistics[f"{source.name} looped"].instructions / source.weights if source.weights else None
        own = statistics[source.name]
        tuned = own.spills > 0 and source.name not in first
        return Figures(**asdict(own), per_weight=per_weight and round(per_weight, 2), tuned=tuned)

    of_all: dict[str, OfBundle] = {}
    for bundle, manifest in bundles.items():
        first = {device.name: first_kernels(manifest, device.vendor) for device in DEVICES}
        of_all[bundle.name] = {
            each.label: {name: figures_of(each, compiled.statistics, first[name]) for name, compiled in found.items()}
            for each in kernels[bundle.name]
        }
    return of_all

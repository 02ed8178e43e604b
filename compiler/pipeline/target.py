"""What a target gives the compiler: for a plan, every kernel as source text and the variants of every step.

A target is a package `targets/<name>` with a module ``lower`` (see `Target`) and a module ``runner`` with ``open_runner``. A framework with
kernels of its own has a module ``export`` (see `Exporter`) in place of ``lower``. They are found by name: the compiler knows no device.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from ..bundle.folder import Bundle, ExportBundle
from ..bundle.manifest import EXPORTS, ActivationEntry, BindingEntry, BufferEntry, VariantEntry
from ..errors import RequestError
from ..formats import Checkpoint
from ..ir.expr import Expr
from ..ir.graph import Graph
from ..ir.plan import Plan
from ..quant import Quantization
from ..quant.layout import Layout
from ..runtime.batch import Limits, Runner
from ..runtime.plan_runner import PlanRunner
from ..runtime.reference import ReferenceRunner
from ..runtime.trust import check_runner

TARGETS = ("webgpu", "cpu", "cuda")
RUNNERS = ("numpy", *TARGETS, *EXPORTS)


@dataclass(frozen=True, slots=True)
class KernelSource:
    """One kernel as it goes into a bundle; see `manifest.KernelEntry`. ``file`` is one of the plan's `LoweredPlan.files`.

    ``scratch`` gives the float32 elements of each scratch buffer that it binds.
    """

    name: str
    template: str
    facts: Mapping[str, Any]
    file: str
    entry: str
    bindings: tuple[BindingEntry, ...]
    uniforms: tuple[Expr, ...]
    grid: tuple[Expr, Expr]
    workgroup_size: int
    scratch: Mapping[str, Expr]


@dataclass(frozen=True, slots=True)
class LoweredPlan:
    """``step_variants[i]`` names the list in ``variants`` for step i; ``files`` are what kernels are in, by their place in the bundle.

    ``arch`` is what the files were compiled for, None where they are source that any device of the target takes.
    """

    arch: str | None
    files: Mapping[str, bytes]
    activations: tuple[ActivationEntry, ...]
    kernels: Mapping[str, KernelSource]
    variants: Mapping[str, tuple[VariantEntry, ...]]
    scratch: Mapping[str, BufferEntry]
    step_variants: tuple[str, ...]


class Target(Protocol):
    # The largest buffer that a kernel may bind, in bytes.
    MAX_BINDING_BYTES: int
    # The dtypes of activations that it offers beside those of the quantization: of "bfloat16", "int8".
    EXTRA_ACTIVATIONS: tuple[str, ...]
    # Whether its bundles can take LoRA adapters.
    TAKES_LORA: bool
    # How its kernels read matrices.
    LAYOUT: Layout

    def lower_plan(
        self,
        plan: Plan,
        quantization: Quantization,
        activations: tuple[str, ...],
        arch: str | None,
        progress: Callable[[int, int], None],
    ) -> LoweredPlan:
        """Lower every kernel that the plan's steps may use, for ``arch`` or the target's default. ``progress`` is told kernels done and in
        all. Raises RequestError for an ``arch`` that the target does not know.
        """


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What is to be written. ``quantization`` has the wanted group size; ``activation`` is one of its dtypes; ``context`` in tokens."""

    quantization: Quantization
    activation: str
    device: str | None
    kv: str
    context: int


class Exporter(Protocol):
    # The devices that graphs differ for, the default first; none where the framework asks for no choice.
    DEVICES: tuple[str, ...]

    def activations(self, device: str | None) -> tuple[str, ...]:
        """The dtypes that activations may have on a device."""

    def export(
        self,
        checkpoint: Checkpoint,
        graph: Graph,
        options: ExportOptions,
        folder: Path,
        progress: Callable[[int, int], None],
    ) -> None:
        """Write the framework's files into ``folder``, tokenizer.json too. ``progress`` is told elements of weights done and in all.

        Raises RequestError or QuantizationError for what the framework's kernels do not take, or run badly.
        """

    def file_sizes(
        self, checkpoint: Checkpoint, graph: Graph, options: ExportOptions, folder: Path
    ) -> Mapping[str, int]:
        """The size in bytes of every file that `export` would write. No weight is read; ``folder`` is a place for small files.

        Raises as `export` does for everything that does not depend on the weights' values.
        """


def load_exporter(name: str) -> Exporter:
    return cast(Exporter, importlib.import_module(f"nearfar.targets.{name}.export"))


def load_target(name: str) -> Target:
    """Raises RequestError for a name that is not in TARGETS."""
    if name not in TARGETS:
        raise RequestError(f"target {name!r} is not known; known: {', '.join(TARGETS)}")
    return cast(Target, importlib.import_module(f"nearfar.targets.{name}.lower"))


def open_runner(name: str, bundle: Bundle | ExportBundle, limits: Limits) -> Runner:
    """A runner for batches up to ``limits``: "numpy", the reference, which takes any plan, or a target's own. It has passed the self-test.

    Raises RequestError for an unknown name or a bundle of another target, BundleError for a file whose hash is wrong, and DeviceError if
    this machine cannot run it or computes it incorrectly.
    """
    bundle.verify()
    if name not in RUNNERS:
        raise RequestError(f"runner {name!r} is not known; known: {', '.join(RUNNERS)}")
    if name != bundle.manifest.target and (name != "numpy" or not isinstance(bundle, Bundle)):
        raise RequestError(f"{bundle.path}: was compiled for {bundle.manifest.target}; the {name} runner cannot run it")
    if not isinstance(bundle, Bundle):
        return cast(Runner, importlib.import_module(f"nearfar.targets.{name}.runner").open_runner(bundle, limits))
    runner: PlanRunner
    if name == "numpy":
        runner = ReferenceRunner(bundle, limits=limits)
    else:
        runner = importlib.import_module(f"nearfar.targets.{name}.runner").open_runner(bundle, limits)
    try:
        check_runner(runner, bundle.manifest)
    except BaseException:
        runner.close()
        raise
    return runner


def check_machine(bundle: Bundle | ExportBundle) -> None:
    """Raises DeviceError or ToolError if this machine cannot run the bundle on its own target, without reading the weights."""
    importlib.import_module(f"nearfar.targets.{bundle.manifest.target}.runner").check_machine(bundle)

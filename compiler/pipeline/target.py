"""The interface between the compiler and targets: a target lowers a plan to kernels and to the variants of every step.

A target is a package `targets/<name>` with a module ``lower`` (see `Target`) and a module ``runner`` with
``open_runner``. A framework with its own kernels has a module ``export`` (see `Exporter`) instead of ``lower``. Targets
are found by name: the compiler knows no device.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from ..bundle.entries import ActivationEntry, BindingEntry, BufferEntry, VariantEntry
from ..bundle.folder import Bundle, ExportBundle
from ..formats import Checkpoint
from ..ir.expr import Expr
from ..ir.graph import Graph
from ..ir.plan import Plan
from ..names import RUNNERS, TARGETS
from ..quant import Quantization
from ..quant.layout import Layout
from ..runtime.errors import RequestError
from ..runtime.plan_runner import PlanRunner
from ..runtime.reference import ReferenceRunner
from ..runtime.runner import Limits, Runner
from ..runtime.trust import check_runner


@dataclass(frozen=True, slots=True)
class KernelSource:
    """One kernel of a bundle; see `entries.KernelEntry`. ``file`` is one of the plan's `LoweredPlan.files`.

    ``scratch`` gives the number of float32 elements of each scratch buffer that the kernel binds.
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
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LoweredPlan:
    """``step_variants[i]`` names the list in ``variants`` for step i. ``files`` contain the kernels, by their path in
    the bundle.

    ``arch`` is the architecture that the files were compiled for; None if they are source code for any device of the
    target.
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
    # The activation dtypes that it offers in addition to those of the quantization: "bfloat16" or "int8".
    EXTRA_ACTIVATIONS: tuple[str, ...]
    # The formats of keys and values that its kernels read, besides those of activations; see `ir/kv_format.py`.
    KV_FORMATS: tuple[str, ...]
    # Whether its runtimes gather the rows of tables that stay on the host. Otherwise a kernel looks them up.
    HOST_TABLES: bool
    # Whether its kernels read int8 scales with units; see `quant/codes.py`.
    UNIT_SCALES: bool
    # The memory layout of matrices for its kernels.
    LAYOUT: Layout

    def lower_plan(
        self,
        plan: Plan,
        quantization: Quantization,
        activations: tuple[str, ...],
        arch: str | None,
        progress: Callable[[int, int], None],
    ) -> LoweredPlan:
        """Lower every kernel that the plan's steps may use, for ``arch`` or the target's default.

        ``progress`` receives the number of lowered kernels and of all kernels. Raises RequestError for an unknown
        ``arch``.
        """


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of an export. ``quantization`` has the requested group size; ``activation`` is one of its dtypes.

    ``context`` is in tokens.
    """

    quantization: Quantization
    activation: str
    device: str | None
    kv: str
    context: int


class Exporter(Protocol):
    # The devices that need graphs of their own, the default first; empty if one graph serves all devices.
    DEVICES: tuple[str, ...]
    # The plans whose graphs its folders can hold.
    PLANS: tuple[str, ...]

    def activations(self, device: str | None) -> tuple[str, ...]:
        """The dtypes that activations may have on a device."""

    def notes(self, checkpoint: Checkpoint) -> tuple[str, ...]:
        """What the framework's tools compute otherwise than the model, as sentences for users."""

    def export(
        self,
        checkpoint: Checkpoint,
        graphs: Mapping[str, Graph],
        options: ExportOptions,
        folder: Path,
        progress: Callable[[int, int], None],
    ) -> None:
        """Write the framework's files into ``folder``, including tokenizer.json. ``graphs`` are those of PLANS by the
        plan's name; ``progress`` receives the number of finished weight elements and of all weight elements.

        Raises RequestError or QuantizationError for options that the framework's kernels do not support, or run badly.
        """

    def file_sizes(
        self, checkpoint: Checkpoint, graphs: Mapping[str, Graph], options: ExportOptions, folder: Path
    ) -> Mapping[str, int]:
        """The size in bytes of every file that `export` would write. No weight is read; ``folder`` may hold small
        temporary files.

        Raises the same errors as `export`, except for errors that depend on the weights' values.
        """


def load_exporter(name: str) -> Exporter:
    return cast(Exporter, importlib.import_module(f"nearfar.targets.{name}.export"))


def load_target(name: str) -> Target:
    """Raises RequestError for a name that is not in TARGETS."""
    if name not in TARGETS:
        raise RequestError(f"target {name!r} is not known; known: {', '.join(TARGETS)}")
    return cast(Target, importlib.import_module(f"nearfar.targets.{name}.lower"))


def open_runner(name: str, bundle: Bundle | ExportBundle, limits: Limits) -> Runner:
    """A runner for batches up to ``limits``: "numpy", the reference, which runs any plan, or the target's own runner.

    The runner has passed the self-test. Raises RequestError for an unknown name or a bundle of another target,
    BundleError for a file whose hash is wrong, and DeviceError if this machine cannot run the bundle or computes it
    incorrectly.
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
    """Raises DeviceError or ToolError if this machine cannot run the bundle on its own target, and UnsupportedModel if
    our runner computes no such model, without reading the weights.
    """
    importlib.import_module(f"nearfar.targets.{bundle.manifest.target}.runner").check_machine(bundle)

"""Open a WebGPU device through wgpu, with exactly the features and limits that a bundle needs."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nearfar.compiler.bundle.entries import ActivationEntry
from nearfar.compiler.bundle.manifest import Manifest
from nearfar.compiler.kernels.integer_groups import FEATURE as INTEGER_DOTS
from nearfar.compiler.runtime.errors import DeviceError

MAX_GRID = 65_535
# The first line of WGSL that uses subgroups.
ENABLE_SUBGROUPS = "enable subgroups;\n"
# The vendors of GPUs as browsers name them, by their ids on the PCI bus. Metal knows no ids.
VENDORS = {0x1002: "amd", 0x106B: "apple", 0x10DE: "nvidia", 0x5143: "qualcomm", 0x8086: "intel"}
# The kinds of adapters in wgpu, fastest first.
ADAPTER_TYPES = ("DiscreteGPU", "IntegratedGPU", "VirtualGPU", "Unknown", "CPU")
# WebGPU's defaults, requested explicitly so that a large adapter does not accept a kernel that ordinary devices reject.
DEFAULT_LIMITS = {
    "max-storage-buffers-per-shader-stage": 8,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-storage-size": 16 << 10,
    "max-storage-buffer-binding-size": 128 << 20,
}


def open_device(manifest: Manifest, activation: str | None, path: Path) -> tuple[str, Any, str]:
    """The adapter's name, a device, and the activation dtype chosen. Raises DeviceError."""
    adapter, chosen = find_adapter(manifest, activation, path)
    features = [*(set(chosen.needs) & set(adapter.features)), *({"subgroup"} & set(adapter.features))]
    device = adapter.request_device_sync(required_features=features, required_limits=DEFAULT_LIMITS)
    return str(adapter.info["device"]), device, chosen.dtype


def find_adapter(manifest: Manifest, activation: str | None, path: Path) -> tuple[Any, ActivationEntry]:
    """The adapter that a bundle runs on, and the activations chosen. Raises DeviceError."""
    adapter = require_adapter([entry.needs for entry in manifest.activations if activation in (None, entry.dtype)])
    return adapter, choose_activation(manifest, features_of(adapter.features), activation, path)


def require_adapter(offered: Sequence[Collection[str]]) -> Any:
    """As `preferred_adapter`. Raises DeviceError if there is no adapter."""
    adapter = preferred_adapter(offered)
    if adapter is None:
        raise DeviceError(
            "no WebGPU adapter was found; install a Vulkan driver (Debian: apt-get install mesa-vulkan-drivers), or "
            "compile the model for the CPU (nearfar compile MODEL --target cpu)"
        )
    return adapter


def preferred_adapter(offered: Sequence[Collection[str]]) -> Any | None:
    """A discrete GPU before an integrated one before a CPU; among those of one kind, the one that has the earliest of
    these sets of features. None if there is no adapter.
    """
    import wgpu

    # wgpu may prefer OpenGL, and some limits of OpenGL are below WebGPU's defaults.
    with runtime_dir():
        adapters = [each for each in wgpu.gpu.enumerate_adapters_sync() if each.info["backend_type"] != "OpenGL"]

    def rank(adapter: Any) -> tuple[int, int]:
        kind = adapter.info["adapter_type"]
        found = features_of(adapter.features)
        first = next((i for i, needs in enumerate(offered) if set(needs) <= found), len(offered))
        return ADAPTER_TYPES.index(kind if kind in ADAPTER_TYPES else "Unknown"), first

    return min(adapters, key=rank, default=None)


@contextmanager
def runtime_dir() -> Iterator[None]:
    """Without a desktop, Wayland's library prints an error about the missing XDG_RUNTIME_DIR for each driver that
    looks for a display, which no computation needs. In an empty folder it finds none, and prints nothing.
    """
    if os.environ.get("XDG_RUNTIME_DIR"):
        yield
        return
    with TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        try:
            yield
        finally:
            del os.environ["XDG_RUNTIME_DIR"]


def for_naga(code: str) -> str:
    """A kernel in the form that wgpu's compiler accepts: with subgroups, but without the line that enables them, which
    only Tint's and WebKit's compilers support.
    """
    return code.removeprefix(ENABLE_SUBGROUPS)


def features_of(names: Collection[str], vendor: str = "") -> set[str]:
    """What variants may need, for a device with wgpu's features ``names``: wgpu's "subgroup" includes subgroup ids, and
    its compiler has integer products for every device. The vendor is one of them.
    """
    subgroups = ("subgroups", "subgroup_id") if "subgroup" in names else ()
    return {*names, *subgroups, INTEGER_DOTS, *([vendor_need(vendor)] if vendor else [])}


def vendor_of(info: Mapping[str, Any]) -> str:
    """The vendor of wgpu's adapter as browsers name it, "" for one that is not among VENDORS."""
    return VENDORS.get(info["vendor_id"], "apple" if info["backend_type"] == "Metal" else "")


def vendor_need(vendor: str) -> str:
    """What a variant needs that is for one vendor's GPUs."""
    return f"vendor-{vendor}"


def choose_activation(manifest: Manifest, features: set[str], requested: str | None, path: Path) -> ActivationEntry:
    """The first activation entry that the device can run, or the requested one."""
    offered = [entry for entry in manifest.activations if requested in (None, entry.dtype)]
    if not offered:
        known = ", ".join(entry.dtype for entry in manifest.activations)
        raise DeviceError(f"{path}: was compiled for {known} activations, not for {requested}")
    for entry in offered:
        if set(entry.needs) <= features:
            return entry
    missing = ", ".join(sorted(set(offered[-1].needs) - features))
    raise DeviceError(
        f"{path}: needs {missing}, which this device does not have; compile it with --activations float16 float32"
    )

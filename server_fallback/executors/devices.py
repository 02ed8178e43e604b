"""What this machine can serve on, found without loading a library of ours: the GPU as CUDA's driver tells it, and the memory."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nearfar.compiler.errors import DeviceError
from nearfar.compiler.pipeline.target import TARGETS

# What keys and values may take where nobody says: a share of the machine's memory, or of a GPU's that holds nothing else.
HOST_SHARE, GPU_SHARE = 0.25, 0.8
# A CPU is slow before it needs more, and the memory is others' too.
HOST_KV_BYTES = 4 * 10**9
# What all models together may take where nobody says.
MODELS_SHARE = 0.9
# Linux's two versions of control groups.
CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
# Numbers of the driver's interface (cuda.h).
COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 75, 76


@dataclass(frozen=True, slots=True)
class Gpu:
    """The first of the machine; ``arch`` as the cuda target names it, such as sm_90."""

    arch: str
    memory_bytes: int


def find_gpu() -> Gpu | None:
    """None where there is no GPU or no driver for it."""
    with suppress(OSError):
        driver = ctypes.CDLL("libcuda.so.1")
        device, total, major, minor = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_int(), ctypes.c_int()
        if (
            driver.cuInit(0) == 0
            and driver.cuDeviceGet(ctypes.byref(device), 0) == 0
            and driver.cuDeviceTotalMem_v2(ctypes.byref(total), device) == 0
            and driver.cuDeviceGetAttribute(ctypes.byref(major), COMPUTE_CAPABILITY_MAJOR, device) == 0
            and driver.cuDeviceGetAttribute(ctypes.byref(minor), COMPUTE_CAPABILITY_MINOR, device) == 0
        ):
            return Gpu(f"sm_{major.value}{minor.value}", total.value)
    return None


def default_target() -> str:
    """ "cuda" where there is a GPU, else "cpu"."""
    return "cuda" if "cuda" in TARGETS and find_gpu() is not None else "cpu"


def default_arch(target: str) -> str | None:
    """What to compile for on this machine; None leaves it to the target. Raises DeviceError for a GPU that is not there."""
    if target != "cuda":
        return None
    gpu = find_gpu()
    if gpu is None:
        raise DeviceError(
            "target cuda: there is no NVIDIA GPU here, or no driver for it; without --target the CPU serves"
        )
    return gpu.arch


def kv_memory_bytes(target: str, weight_bytes: int, context_bytes: int) -> int:
    """How much keys and values of a model may take on a device beside its weights. One sequence's whole context takes ``context_bytes``."""
    gpu = find_gpu() if target == "cuda" else None
    if gpu is not None:
        return max(0, int(gpu.memory_bytes * GPU_SHARE) - weight_bytes)
    return min(int(host_memory_bytes() * HOST_SHARE), max(HOST_KV_BYTES, context_bytes))


def models_memory_bytes(target: str) -> int:
    """How much all models together may take on a device."""
    gpu = find_gpu() if target == "cuda" else None
    return int((gpu.memory_bytes if gpu is not None else host_memory_bytes()) * MODELS_SHARE)


def host_memory_bytes() -> int:
    """The machine's, or what this process's container may have of it."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in CONTAINER_LIMITS:
        # "max" where there is no limit.
        with suppress(OSError, ValueError):
            sizes.append(int(file.read_text()))
    return min(sizes)

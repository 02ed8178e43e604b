"""The devices of this machine, found without loading a heavy library: the GPU as reported by the CUDA driver, and the
memory.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass

from nearfar.compiler.names import TARGETS
from nearfar.compiler.runtime.errors import DeviceError, RequestError
from nearfar.targets.host_memory import host_memory_bytes

# The default limits for keys and values: a share of the machine's memory, or of the memory of a GPU that holds nothing
# else.
HOST_SHARE, GPU_SHARE = 0.25, 0.8
# A CPU becomes too slow before it needs more, and other programs need memory too.
HOST_KV_BYTES = 4 * 10**9
# The default limit for all models together.
MODELS_SHARE = 0.9
# Constants of the driver's interface (cuda.h).
COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 75, 76


@dataclass(frozen=True, slots=True)
class Gpu:
    """The machine's first GPU; ``arch`` is the cuda target's name for it, such as sm_90."""

    arch: str
    memory_bytes: int


def find_gpu() -> Gpu | None:
    """None if there is no GPU or no driver for it."""
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
    """ "cuda" if there is a GPU, else "cpu"."""
    return "cuda" if "cuda" in TARGETS and find_gpu() is not None else "cpu"


def default_arch(target: str) -> str | None:
    """The device to compile for on this machine; None leaves it to the target. Raises DeviceError for a missing GPU."""
    if target != "cuda":
        return None
    gpu = find_gpu()
    if gpu is None:
        raise DeviceError(
            "target cuda: this machine has no NVIDIA GPU, or no driver for it; omit --target to serve on the CPU"
        )
    return gpu.arch


def kv_memory_bytes(target: str, weight_bytes: int, context_bytes: int) -> int:
    """The memory for keys and values of a model on a device beside its weights. One sequence with a full context needs
    ``context_bytes``. Raises RequestError for weights that a GPU cannot hold; it holds all experts of a mixture.
    """
    gpu = find_gpu() if target == "cuda" else None
    if gpu is not None:
        most = int(gpu.memory_bytes * GPU_SHARE)
        if weight_bytes > most:
            raise RequestError(
                f"the weights take {weight_bytes:,} bytes, and the GPU has {gpu.memory_bytes:,}, of which a model gets "
                f"{most:,}; compile with fewer bits, or serve with --target cpu, which reads experts from their files",
                param="model",
            )
        return most - weight_bytes
    return min(int(host_memory_bytes() * HOST_SHARE), max(HOST_KV_BYTES, context_bytes))


def models_memory_bytes(target: str) -> int:
    """The memory that all models together may use on a device."""
    gpu = find_gpu() if target == "cuda" else None
    return int((gpu.memory_bytes if gpu is not None else host_memory_bytes()) * MODELS_SHARE)

"""What this machine can serve on, found without loading a library of ours: CUDA's driver where there is one, and the memory."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

from nearfar.compiler.target import TARGETS

# What keys and values may take where nobody says: a share of the machine's memory, or of a GPU's that holds nothing else.
HOST_SHARE, GPU_SHARE = 0.25, 0.8


def default_target() -> str:
    """ "cuda" where the driver finds a GPU, else "cpu"."""
    return "cuda" if "cuda" in TARGETS and gpu_memory_bytes() is not None else "cpu"


def kv_memory_bytes(target: str, weight_bytes: int) -> int:
    """How much keys and values of a model may take on a device beside its weights."""
    gpu = gpu_memory_bytes() if target == "cuda" else None
    if gpu is not None:
        return max(0, int(gpu * GPU_SHARE) - weight_bytes)
    return int(host_memory_bytes() * HOST_SHARE)


def host_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def gpu_memory_bytes() -> int | None:
    """Of the first GPU, None where there is none."""
    with suppress(OSError):
        driver = ctypes.CDLL("libcuda.so.1")
        device, total = ctypes.c_int(), ctypes.c_size_t()
        done = driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0
        if done and driver.cuDeviceTotalMem_v2(ctypes.byref(total), device) == 0:
            return total.value
    return None

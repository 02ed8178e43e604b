"""Describes the GPU by its driver's name for it, the machine, and the commit. Standard library only."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

# cuda.h: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
COMPUTE_CAPABILITY = (75, 76)
NVIDIA_SMI_FIELDS = ("name", "driver_version", "memory.total", "clocks.max.sm", "clocks.max.memory", "power.limit")


def facts(root: Path, path: str) -> dict[str, Any]:
    """``path``: the PATH on which Node.js is looked for."""
    return {
        "cuda": cuda_device(),
        "nvidia_smi": nvidia_smi(),
        "processor": processor(),
        "processors": len(os.sched_getaffinity(0)),
        "memory_gigabytes": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "node": output_of([shutil.which("node", path=path) or "node", "--version"], root),
    }


def cuda_device() -> dict[str, Any]:
    """Name, compute capability, CUDA version of the driver, and memory; or ``missing``, the reason why there is no
    GPU.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"missing": f"NVIDIA's driver is not installed ({error})"}
    device, version, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    status = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0)
    if status:
        return {"missing": f"NVIDIA's driver finds no GPU (CUDA error {status})"}
    name = ctypes.create_string_buffer(100)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDriverGetVersion(ctypes.byref(version))
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    capability = [ctypes.c_int(), ctypes.c_int()]
    for number, attribute in zip(capability, COMPUTE_CAPABILITY, strict=True):
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
    return {
        "name": name.value.decode(),
        "arch": f"sm_{capability[0].value}{capability[1].value}",
        "cuda_version": f"{version.value // 1000}.{version.value % 1000 // 10}",
        "memory_gigabytes": round(memory.value / 1e9, 1),
    }


def runs_cubins(device: str, compiled: str) -> bool:
    """Whether a GPU of one architecture runs cubins of another: it must be of the same generation, and not older."""
    (major, minor), (compiled_major, compiled_minor) = (generation(name) for name in (device, compiled))
    return major == compiled_major and minor >= compiled_minor


def generation(arch: str) -> tuple[int, int]:
    """(9, 0) for "sm_90", "sm_90a" or "sm_90-cuda12"."""
    found = re.match(r"sm_(\d+)(\d)", arch)
    assert found is not None, arch
    return int(found[1]), int(found[2])


def nvidia_smi() -> dict[str, str] | None:
    """The driver's version and the device's limits, as nvidia-smi prints them; None without it."""
    text = output_of(["nvidia-smi", f"--query-gpu={','.join(NVIDIA_SMI_FIELDS)}", "--format=csv,noheader"], Path("/"))
    if text is None:
        return None
    values = text.splitlines()[0].split(",") if text else []
    return dict(zip(NVIDIA_SMI_FIELDS, (value.strip() for value in values), strict=False))


def commit(root: Path) -> dict[str, Any] | None:
    """None for a copy of the tree without its history."""
    identifier = output_of(["git", "rev-parse", "HEAD"], root)
    if identifier is None:
        return None
    changed = (output_of(["git", "status", "--short"], root) or "").splitlines()
    return {"commit": identifier, "changed_files": len(changed)}


def processor() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.machine()


def output_of(command: Sequence[str], folder: Path) -> str | None:
    """None if the command is missing or fails."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=30, check=False)
        return done.stdout.strip() if done.returncode == 0 else None
    return None

"""The requirements of a bundle's cubins: an architecture, and the major version of CUDA whose NVRTC compiled them. The
manifest's ``arch`` names both: "sm_90" for CUDA 13, "sm_90-cuda12" for CUDA 12.

A cubin of CUDA 12 runs on every driver of CUDA 12 and later, one of CUDA 13 needs a driver of CUDA 13 (CUDA
Compatibility, "Minor Version Compatibility" and "Why CUDA Compatibility"). PTX would not help: a driver compiles no PTX
that is newer than itself, and NVRTC emits PTX of its own version.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from nearfar.compiler.runtime.errors import DeviceError, RequestError

from .driver import Driver

DEFAULT_CUDA, OLDER_CUDA = 13, 12
# The oldest driver of each major version of CUDA (CUDA Compatibility, table 1).
OLDEST_DRIVERS = {12: 525, 13: 580}
# No other GPU has this major version.
HOPPER = (9, 0)
WARP = 32
# The shared memory of a workgroup (CUDA programming guide, technical specifications).
LEAST_DYNAMIC_KB = 99
DYNAMIC_KB = {"sm_80": 163, "sm_87": 163, "sm_90": 227, "sm_100": 227, "sm_101": 227, "sm_103": 227, "sm_110": 227}
NAME = re.compile(r"sm_(\d+)(\d)([af]?)(?:-cuda(\d+))?")


class Arch(NamedTuple):
    """The compute capability; "a" for code that runs on exactly this one, "f" for its family; the version of CUDA."""

    major: int
    minor: int
    suffix: str
    cuda: int

    @property
    def gpu(self) -> str:
        """The name that NVRTC knows, such as "sm_80". wgmma needs "sm_90a", whose cubins run on the GPUs of "sm_90"."""
        return self._gpu(self.suffix or ("a" if (self.major, self.minor) == HOPPER else ""))

    @property
    def name(self) -> str:
        """The name that the manifest holds."""
        gpu = self._gpu(self.suffix)
        return gpu if self.cuda == DEFAULT_CUDA else f"{gpu}-cuda{self.cuda}"

    def _gpu(self, suffix: str) -> str:
        return f"sm_{self.major}{self.minor}{suffix}"


def parse_arch(name: str) -> Arch:
    """Raises RequestError for a name of another form, or a version of CUDA that is not supported."""
    match = NAME.fullmatch(name)
    if match is None or (cuda := int(match[4] or DEFAULT_CUDA)) not in OLDEST_DRIVERS:
        raise RequestError(
            f"--arch {name}: is not the name of a CUDA architecture, such as sm_90, or sm_90-cuda{OLDER_CUDA} for "
            f"drivers of CUDA {OLDER_CUDA}"
        )
    return Arch(int(match[1]), int(match[2]), match[3], cuda)


def max_dynamic_bytes(arch: str) -> int:
    """The most shared memory of a workgroup on an architecture."""
    return DYNAMIC_KB.get(arch.rstrip("af"), LEAST_DYNAMIC_KB) << 10


def require_device(path: Path, compiled_for: str | None, driver: Driver) -> None:
    """Raise DeviceError unless the GPU and its driver run a bundle's cubins. The GPU must be of the same generation,
    and not older.
    """
    arch, gpu = parse_arch(compiled_for or ""), parse_arch(driver.arch)
    runs = arch.minor == gpu.minor if arch.suffix == "a" else arch.minor <= gpu.minor
    if arch.major != gpu.major or not runs:
        name = gpu._replace(cuda=arch.cuda).name
        raise DeviceError(
            f"{path}: was compiled for {compiled_for}, this GPU ({driver.name}) is {driver.arch}; "
            f"compile the model with --target cuda --arch {name}"
        )
    if driver.cuda_version >= (arch.cuda, 0):
        return
    older = arch._replace(cuda=OLDER_CUDA)
    advice = f"update NVIDIA's driver to {OLDEST_DRIVERS[arch.cuda]} or newer"
    if arch != older and driver.cuda_version >= (OLDER_CUDA, 0):
        advice += (
            f", or compile the model with --target cuda --arch {older.name}, whose cubins run on driver "
            f"{OLDEST_DRIVERS[OLDER_CUDA]} or newer"
        )
    found = ".".join(map(str, driver.cuda_version))
    raise DeviceError(f"{path}: its cubins need CUDA {arch.cuda}.0, this driver supports CUDA {found}; {advice}")

"""Levels of instruction sets: the levels that kernels are compiled for, and which of them this machine supports.

A variant's `needs` are those of its level. The last level of an architecture is its base, which every machine needs.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from nearfar.compiler.bundle.manifest import MANIFEST_FILE, Manifest
from nearfar.compiler.runtime.errors import BundleError, DeviceError, RequestError

if TYPE_CHECKING:
    from nearfar.compiler.kernels.cpu.builder import Isa

CPUINFO = Path("/proc/cpuinfo")
# Linux's system call arch_prctl, its request for a permission, and the registers of AMX among those that need one.
ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, TILE_DATA = 158, 0x1023, 18


@dataclass(frozen=True, slots=True)
class Level:
    """An instruction set: ``needs`` of the machine beyond the base, LLVM's ``cpu`` and ``attributes``, and the
    properties that templates use.
    """

    name: str
    needs: tuple[str, ...]
    cpu: str
    attributes: tuple[str, ...]
    lanes: int
    registers: int

    @property
    def isa(self) -> Isa:
        from nearfar.compiler.kernels.cpu.builder import Isa

        return Isa(self.name, self.lanes, self.registers)


@dataclass(frozen=True, slots=True)
class Arch:
    """``levels``, best first; ``base`` are the features that the last level requires."""

    name: str
    triple: str
    levels: tuple[Level, ...]
    base: tuple[str, ...]


# Only for plans that have no pages: its results depend on the number of rows.
AMX = Level("amx", ("avx512", "amx_bf16"), "x86-64-v4", ("+amx-tile", "+amx-bf16"), 16, 32)
# Without the last attribute, LLVM splits a fused multiply-add into two instructions if it expects a sum to wait.
VNNI = Level("vnni", ("avx512", "avx512_vnni"), "x86-64-v4", ("+avx512vnni", "+fast-dpwssd"), 16, 32)
AVX512 = Level("avx512", ("avx512",), "x86-64-v4", (), 16, 32)
AVX2 = Level("avx2", (), "x86-64-v3", (), 8, 16)
DOTPROD = Level("dotprod", ("dotprod",), "generic", ("+neon", "+dotprod"), 4, 32)
NEON = Level("neon", (), "generic", ("+neon",), 4, 32)
ARCHS = {
    "x86_64": Arch("x86_64", "x86_64-linux-gnu", (AMX, VNNI, AVX512, AVX2), ("avx2",)),
    "aarch64": Arch("aarch64", "aarch64-linux-gnu", (DOTPROD, NEON), ("neon",)),
}

# A feature, and the flags in /proc/cpuinfo that it requires.
FLAGS = {
    "avx2": {"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe"},
    "avx512": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "avx512_vnni": {"avx512_vnni"},
    "amx_bf16": {"amx_tile", "amx_bf16"},
    "neon": {"asimd"},
    "dotprod": {"asimddp"},
}


def by_name(name: str | None) -> Arch:
    """The architecture of that name, or this machine's. Raises RequestError for one that is not in ARCHS."""
    wanted = name or {"arm64": "aarch64", "AMD64": "x86_64"}.get(platform.machine(), platform.machine())
    if wanted not in ARCHS:
        raise RequestError(f"--arch {wanted}: is not known to the cpu target; known: {', '.join(ARCHS)}")
    return ARCHS[wanted]


def features(cpuinfo: str | None = None) -> frozenset[str]:
    """The features in FLAGS that this machine's processors have and this process may use, or those in the text of a
    /proc/cpuinfo.
    """
    text = CPUINFO.read_text() if cpuinfo is None and CPUINFO.is_file() else cpuinfo or ""
    lines = (line.partition(":") for line in text.splitlines())
    flags = [set(value.split()) for name, _, value in lines if name.strip() in ("flags", "Features")]
    common = set.intersection(*flags) if flags else set()
    found = frozenset(name for name, wanted in FLAGS.items() if wanted <= common)
    return found if cpuinfo is not None or permits_amx() else found - {"amx_bf16"}


@cache
def permits_amx() -> bool:
    """Ask Linux for the permission that a process needs once, before its first instruction of AMX."""
    if platform.machine() != "x86_64" or not sys.platform.startswith("linux"):
        return False
    refused: int = ctypes.CDLL(None).syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, TILE_DATA)
    return refused == 0


def require_needs(manifest: Manifest) -> None:
    """Raise BundleError if a variant does not need everything that its kernels' instruction sets need."""
    levels = {level.name: level for arch in ARCHS.values() for level in arch.levels}
    for name, variants in manifest.variants.items():
        for variant in variants:
            for kernel in variant.kernels:
                isa = manifest.kernels[kernel].facts.get("isa")
                level = levels.get(str(isa.get("name"))) if isinstance(isa, dict) else None
                if level is None or not set(level.needs) <= set(variant.needs):
                    raise BundleError(
                        f"{MANIFEST_FILE}: variants.{name}: {kernel} may use instructions that the variant does not "
                        "need; the file was changed after compilation, so compile the bundle again"
                    )


def require(arch: str | None, found: frozenset[str]) -> None:
    """Raise DeviceError unless this machine runs a bundle for ``arch``."""
    mine = platform.machine()
    if not sys.platform.startswith("linux") or mine != arch:
        raise DeviceError(
            f"the bundle is for {arch} on Linux, this machine is {mine} on {sys.platform}; compile it with --arch "
            f"{mine}"
        )
    missing = [name for name in ARCHS[arch].base if name not in found]
    if missing:
        raise DeviceError(
            f"this processor lacks {', '.join(missing)}, which the cpu target's kernels require; compile the model "
            "for ONNX Runtime (nearfar compile MODEL --target onnx)"
        )

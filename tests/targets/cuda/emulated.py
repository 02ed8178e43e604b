"""Runs CUDA C++ on the CPU: this machine's C++ compiler compiles the source for NVRTC after `emulator/prelude.hpp`."""

from __future__ import annotations

import ctypes
import hashlib
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
from made_once import made_once

from nearfar.compiler.kernels.cuda.sources import WAIT
from nearfar.compiler.pipeline.kernel_cache import KernelCache
from nearfar.targets.cpu.levels import CPUINFO

EMULATOR = Path(__file__).parent / "emulator"
PRELUDE, RACES = EMULATOR / "prelude.hpp", EMULATOR / "races.cpp"
FUNCTION = re.compile(r'extern "C" __global__ void __launch_bounds__\(\d+(, 1)?\) (\w+)\(')
# Operations for which a thread must wait for others.
TOGETHER = re.compile(
    r"__sync|subgroupAdd|any_in_warp|quad_|pair_sum|warp_|mma_|_products|load_transposed|wait_for_copies"
)


def find_compiler() -> list[str] | None:
    """The command of a C++ compiler: the system's, or the one in the package ziglang."""
    for name in ("g++", "clang++"):
        if shutil.which(name):
            return [name]
    return [sys.executable, "-m", "ziglang", "c++"] if find_spec("ziglang") else None


class Library:
    """Kernels of a file like those of `source.source_file`. Each distinct source is compiled once in a folder."""

    def __init__(self, source: str, folder: Path, optimization: str = "-Og") -> None:
        self.path = library_of(source, folder, optimization)
        self._library = ctypes.CDLL(str(self.path))

    def launch(
        self, entry: str, grid: tuple[int, int], threads: int, parameters: Sequence[int] | npt.NDArray[np.uint64]
    ) -> None:
        """Run a kernel on addresses and integers, in the order of its parameters."""
        values = np.array(parameters, np.uint64)
        pointers = values.ctypes.data + 8 * np.arange(len(values), dtype=np.uint64)
        sizes = np.array(grid, np.uint32)
        launch = self._library[f"launch_{entry}"]
        launch(ctypes.c_void_p(pointers.ctypes.data), ctypes.c_void_p(sizes.ctypes.data), ctypes.c_uint(threads))

    def launch_together(
        self,
        entry: str,
        blocks: int,
        threads: int,
        parameters: Sequence[int] | npt.NDArray[np.uint64],
        memory: Sequence[tuple[int, int]],
        seed: int,
    ) -> None:
        """Run resident blocks of a kernel with a second launch bound, in an order that depends on ``seed``. Raises
        AssertionError if they access ``memory``, the ranges of global memory as addresses and sizes, without an order,
        and if they wait for ever.
        """
        values = np.array(parameters, np.uint64)
        pointers = values.ctypes.data + 8 * np.arange(len(values), dtype=np.uint64)
        ranges = np.array(sorted(memory), np.uint64)
        launch = self._library[f"together_{entry}"]
        launch.restype = ctypes.c_char_p
        race = launch(
            ctypes.c_void_p(pointers.ctypes.data),
            blocks,
            threads,
            seed,
            ctypes.c_void_p(ranges.ctypes.data),
            len(ranges),
        )
        assert race is None, race.decode()


def library_of(source: str, folder: Path, optimization: str = "-Og") -> Path:
    """The shared library of a file of kernels, with functions "launch_NAME", numbers "parameters_NAME"
    and, for those that wait for the previous kernel, "waits_NAME". A kernel with a second launch bound has
    "together_NAME", and is the only one of its file.
    """
    head, *kernels = re.split(r'(?=^extern "C" __global__)', source, flags=re.MULTILINE)
    resident = "__launch_bounds__" in source and all(FUNCTION.match(each)[1] for each in kernels)  # type: ignore[index]
    parts = [*(["#define NEARFAR_RESIDENTS"] if resident else []), f'#include "{PRELUDE}"', head]
    for kernel in kernels:
        name = FUNCTION.match(kernel)
        assert name is not None, kernel[:200]
        alone, waits = not TOGETHER.search(kernel), f"{WAIT}();" in kernel
        parts += [kernel, f"RESIDENT_KERNEL({name[2]})" if resident else f"KERNEL({name[2]}, {alone:d}, {waits:d})"]
    text = "\n".join(parts)
    file = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.cpp"

    def make(library: Path) -> None:
        file.write_text(text)
        library.write_bytes(compiled_before(file, text, optimization))

    return made_once(file.with_suffix(".so"), make)


def compiled_before(file: Path, text: str, optimization: str) -> bytes:
    """The shared library of a C++ file with this text, from the cache of compiled kernels or compiled now."""
    compiler = find_compiler()
    assert compiler is not None
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=True).stdout
    # The compiler's options name this machine's own instructions.
    flags = re.search(r"^(flags|Features)\s*:.*", CPUINFO.read_text(), re.MULTILINE) if CPUINFO.exists() else None
    headers = [header.read_bytes() for header in (*sorted(EMULATOR.glob("*.hpp")), RACES)]

    def compile_now() -> bytes:
        library = file.with_suffix(".library")
        if "#define NEARFAR_RESIDENTS\n" in text:
            compile_watched(file, library, optimization)
        else:
            compile_library(file, library, optimization)
        return library.read_bytes()

    key = [version, *headers, platform.machine().encode(), (flags[0] if flags else "").encode(), optimization.encode()]
    return KernelCache.of_user().kept([*key, text.replace(str(EMULATOR), "")], compile_now)


def libcuda(folder: Path) -> Path:
    """The folder, with a libcuda.so.1 in it for LD_LIBRARY_PATH."""
    made_once(folder / "libcuda.so.1", lambda library: compile_library(EMULATOR / "libcuda.cpp", library))
    return folder


def compile_watched(source: Path, library: Path, optimization: str) -> None:
    """A library whose accesses to memory `races.cpp` sees. Linked with the option, it would get the compiler's own
    functions for it.
    """
    kernels = source.with_suffix(".o")
    run_compiler(source, kernels, optimization, "-fsanitize=thread", "-c")
    races = made_once(source.parent / "races.o", lambda watcher: run_compiler(RACES, watcher, "-O2", "-c"))
    run_compiler(kernels, library, "-shared", str(races))
    kernels.unlink()


def compile_library(source: Path, library: Path, optimization: str = "-Og") -> None:
    """Compile C++ with the available compiler. Warnings about generated code are ignored."""
    run_compiler(source, library, optimization, "-shared")


def run_compiler(source: Path, output: Path, *options: str) -> None:
    compiler = find_compiler()
    assert compiler is not None
    command = [*compiler, "-std=c++17", "-march=native", "-w", "-fPIC", "-o", str(output), str(source), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]

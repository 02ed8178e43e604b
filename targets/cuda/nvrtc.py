"""Compile CUDA C++ to a cubin with NVRTC, NVIDIA's compiler as a library. It needs no GPU, driver or toolkit."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nearfar.compiler.errors import RequestError, ToolError

DEFAULT_ARCH = "sm_90"
# It introduced bfloat16, asynchronous copies and the tensor core instructions that kernels use.
OLDEST_ARCH = 80


def known_archs() -> tuple[str, ...]:
    """The architectures that this NVRTC supports and our kernels run on. Raises ToolError if NVRTC is not installed."""
    nvrtc = load_nvrtc()
    status, numbers = nvrtc.nvrtcGetSupportedArchs()
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, status
    return tuple(f"sm_{number}" for number in numbers if number >= OLDEST_ARCH)


def check_arch(arch: str | None) -> str:
    """The requested architecture, or the default. Raises RequestError for an unknown one."""
    arch = arch or DEFAULT_ARCH
    # NVRTC does not list architectures with a letter, such as sm_90a, but compiles for them.
    if arch.rstrip("af") not in (known := known_archs()):
        raise RequestError(
            f"--arch {arch}: is not known to this NVRTC, or older than sm_{OLDEST_ARCH}; known: {', '.join(known)}"
        )
    return arch


def compile_cubin(source: str, arch: str, name: str) -> tuple[bytes, str]:
    """The cubin and the compiler's report on registers, shared memory and spills. ``name`` appears in messages."""
    nvrtc = load_nvrtc()
    options = [f"--gpu-architecture={arch}", "--std=c++17", "--ptxas-options=-v", "--disable-warnings"]
    status, program = nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], [])
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, status
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        text = log.rstrip(b"\0 \n").decode(errors="replace")
        # An error of NVRTC is a bug in our templates.
        assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, f"{name}: {text[:4000]}"
        _, size = nvrtc.nvrtcGetCUBINSize(program)
        cubin = b" " * size
        nvrtc.nvrtcGetCUBIN(program, cubin)
        return cubin, text
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def load_nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        preload()
        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise ToolError(
            f"compiling for CUDA needs NVRTC, which was not found ({error}); pip install 'nearfar[cuda]'"
        ) from error
    return nvrtc


def preload() -> None:
    """Load NVRTC from its wheel, which NVIDIA's own search misses if a .pth file adds the wheel to the path."""
    spec = find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        for library in sorted(Path(folder).glob("cu*/lib/libnvrtc.so.*")):
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
            return

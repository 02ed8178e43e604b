"""Compile CUDA C++ to a cubin with NVRTC, NVIDIA's compiler as a library. It needs no GPU, driver or toolkit.

The wheels of several versions of CUDA can be installed beside each other; `arch` says which one compiles.
"""

from __future__ import annotations

import ctypes
import sys
from importlib.util import find_spec
from pathlib import Path

from nearfar.compiler.pipeline.kernel_cache import KernelCache
from nearfar.compiler.runtime.errors import RequestError, ToolError

from .arch import DEFAULT_CUDA, OLDER_CUDA, parse_arch

DEFAULT_ARCH = "sm_90"
# It introduced bfloat16, asynchronous copies and the tensor core instructions that kernels use.
OLDEST_ARCH = 80
PACKAGES = {12: "nvidia-cuda-nvrtc-cu12", 13: "'nearfar[cuda]'"}
SUCCESS = 0


class Nvrtc:
    """The C interface of one version of NVRTC (nvrtc.h)."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def archs(self) -> tuple[int, ...]:
        """The architectures without their letters, such as 90."""
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", numbers)
        return tuple(numbers)

    def version(self) -> tuple[int, int]:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def compile(self, source: str, name: str, options: list[str]) -> tuple[bytes, str]:
        """The cubin and the log."""
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
        try:
            passed = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = self._library.nvrtcCompileProgram(program, len(options), passed)
            log = self._bytes("nvrtcGetProgramLog", program).rstrip(b"\0 \n").decode(errors="replace")
            # An error of NVRTC is a bug in our templates.
            assert status == SUCCESS, f"{name}: {log[:4000]}"
            return self._bytes("nvrtcGetCUBIN", program), log
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _bytes(self, function: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{function}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(function, program, buffer)
        return buffer.raw

    def _call(self, function: str, *arguments: object) -> None:
        status = self._library[function](*arguments)
        assert status == SUCCESS, (function, status)


def known_archs(cuda: int = DEFAULT_CUDA) -> tuple[str, ...]:
    """The architectures that an NVRTC supports and our kernels run on. Raises ToolError if it is not installed."""
    suffix = "" if cuda == DEFAULT_CUDA else f"-cuda{cuda}"
    return tuple(f"sm_{number}{suffix}" for number in load_nvrtc(cuda).archs() if number >= OLDEST_ARCH)


def check_arch(name: str | None) -> str:
    """The requested architecture, or the default. Raises RequestError for an unknown one."""
    arch = parse_arch(name or DEFAULT_ARCH)
    known = known_archs(arch.cuda)
    # NVRTC does not list architectures with a letter, such as sm_90a, but compiles for them.
    if arch._replace(suffix="").name not in known:
        raise RequestError(
            f"--arch {name}: is not known to this NVRTC, or older than sm_{OLDEST_ARCH}; known: {', '.join(known)}"
        )
    return arch.name


def compile_cubin(source: str, arch: str, name: str) -> tuple[bytes, str]:
    """The cubin and the compiler's report on registers, shared memory and spills. ``name`` appears in messages.

    What was compiled before is in the `KernelCache`.
    """
    parsed = parse_arch(arch)
    options = [f"--gpu-architecture={parsed.gpu}", "--std=c++17", "--ptxas-options=-v", "--disable-warnings"]
    nvrtc = load_nvrtc(parsed.cuda)
    # Updates of a version differ in the sizes of their libraries.
    libraries = [f"{file.name} {file.stat().st_size}" for file in wheel_libraries(parsed.cuda)]

    def compile_now() -> bytes:
        cubin, log = nvrtc.compile(source, name, options)
        return log.encode() + b"\0" + cubin

    key = [f"NVRTC {nvrtc.version()}", *libraries, *options, name, source]
    log, _, cubin = KernelCache.of_user().kept(key, compile_now).partition(b"\0")
    return cubin, log.decode()


def load_nvrtc(cuda: int = DEFAULT_CUDA) -> Nvrtc:
    """Raises ToolError if NVRTC of this major version of CUDA is not installed."""
    try:
        return Nvrtc(load_library(cuda))
    except OSError as error:
        other = DEFAULT_CUDA + OLDER_CUDA - cuda
        raise ToolError(
            f"compiling for CUDA {cuda} needs its NVRTC, which was not found ({error}); pip install {PACKAGES[cuda]}"
            + (f", or choose an --arch of CUDA {other}, whose NVRTC is installed" if wheel_libraries(other) else "")
        ) from error


def load_library(cuda: int) -> ctypes.CDLL:
    """From its wheel, or else from the system's library path."""
    windows = sys.platform == "win32"
    found = [*wheel_libraries(cuda), f"nvrtc64_{cuda}0_0.dll" if windows else f"libnvrtc.so.{cuda}"]
    return ctypes.CDLL(str(found[0]))


def wheel_libraries(cuda: int) -> list[Path]:
    spec = find_spec("nvidia")
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()] if spec else []
    # nvidia/cuda_nvrtc/lib of CUDA 12, nvidia/cu13/lib, nvidia/cu13/bin/x86_64.
    patterns = (f"*/lib/libnvrtc.so.{cuda}*", f"*/bin/**/nvrtc64_{cuda}0_0.dll")
    return sorted(file for folder in folders for pattern in patterns for file in folder.glob(pattern))

"""Load a bundle's shared library into this process: TVM's runtime without the rest of TVM, kernels by name, and lists
of launches.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.runtime.errors import BundleError, DeviceError

# An argument of TVM FFI: its type, then 8 bytes of value; and `launch` in launch.c.
ARGUMENT = np.dtype([("type", "<i4"), ("padding", "<u4"), ("value", "<i8")])
LAUNCH = np.dtype([("function", "<u8"), ("arguments", "<u8"), ("count", "<i8")])
INTEGER, POINTER = 1, 4
# The functions of TVM's runtime that kernels call.
RUNTIME_FUNCTIONS = ("TVMBackendParallelLaunch",)
# The number of iterations that a thread spins before it sleeps. TVM's default of 300,000 would occupy cores that others
# need.
SPIN_COUNT = 20_000
NUM_THREADS = "TVM_NUM_THREADS"


@dataclass(frozen=True, slots=True)
class Launches:
    """Kernels to run one after the other, with their arguments. ``scalars`` are the locations of values that change
    from batch to batch.
    """

    launches: npt.NDArray[Any]
    arguments: npt.NDArray[Any]
    scalars: npt.NDArray[np.intp]


class Library:
    """Raises DeviceError if TVM's runtime is not installed or the library cannot be loaded."""

    @classmethod
    def of_bundle(cls, bundle: Bundle, file: str) -> Library:
        """The library that a bundle's manifest names, loaded from the same bytes whose hash was verified. Raises
        BundleError.
        """
        with private_copy(bundle.kernel_file(file)) as copy:
            return cls(copy)

    def __init__(self, path: Path) -> None:
        self._runtime = load_runtime()
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise DeviceError(f"{path}: cannot be loaded: {error}") from error
        # Libraries that TVM compiles call its runtime through pointers, which the loader sets.
        for name in RUNTIME_FUNCTIONS:
            pointer = ctypes.c_void_p.in_dll(self._library, f"__{name}")
            pointer.value = ctypes.cast(getattr(self._runtime, name), ctypes.c_void_p).value
        self._launch = self._library.nearfar_launch
        self._launch.argtypes = (ctypes.c_void_p, ctypes.c_int32)
        self._launch.restype = ctypes.c_int32

    def start_threads(self, count: int) -> None:
        """Create the calling thread's pool of ``count`` threads, itself included. Its kernels run on the pool until the
        thread ends.

        TVM's runtime reads the number from the process's environment. Threads are not bound to cores: the threads of
        two processes would be bound to the same ones.
        """
        self._threads = os.environ[NUM_THREADS] = str(count)
        wanted = {"TVM_BIND_THREADS": "0", "TVM_THREAD_POOL_SPIN_COUNT": str(SPIN_COUNT)}
        # Do not override the user's setting.
        changed = {name: value for name, value in wanted.items() if name not in os.environ}
        before = {name: os.environ.get(name) for name in changed}
        os.environ.update(changed)
        try:
            self._runtime.TVMBackendParallelLaunch(self._library.nearfar_idle, None, 0)
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def address(self, symbol: str) -> int:
        """The address of a kernel. Raises BundleError for one that the library does not have."""
        try:
            address = ctypes.cast(getattr(self._library, symbol), ctypes.c_void_p).value
        except AttributeError as error:
            raise BundleError(f"the bundle's library has no kernel {symbol!r}; compile the bundle again") from error
        assert address is not None, symbol
        return address

    def prepare(self, calls: Sequence[tuple[str, Sequence[int], int]]) -> Launches:
        """Launches of (symbol, addresses of buffers, number of scalars after them)."""
        arguments = np.zeros(sum(len(pointers) + scalars for _, pointers, scalars in calls), ARGUMENT)
        launches = np.zeros(len(calls), LAUNCH)
        indices: list[int] = []
        start = 0
        for i, (symbol, pointers, scalars) in enumerate(calls):
            stop = start + len(pointers)
            arguments["type"][start:stop], arguments["value"][start:stop] = POINTER, pointers
            arguments["type"][stop : stop + scalars] = INTEGER
            indices += range(stop, stop + scalars)
            launches[i] = (
                self.address(symbol),
                arguments.ctypes.data + start * ARGUMENT.itemsize,
                len(pointers) + scalars,
            )
            start = stop + scalars
        return Launches(launches, arguments, np.array(indices, np.intp))

    def run(self, launches: Launches, scalars: npt.NDArray[np.int64]) -> None:
        """Run all launches, without Python's lock. ``scalars`` are the values for the launches' scalar locations."""
        launches.arguments["value"][launches.scalars] = scalars
        # At every launch, the runtime looks up the size of a new pool: by default half of the processors. If that is
        # one, kernels run only on the calling thread, whatever the size of its pool.
        if os.environ.get(NUM_THREADS) != self._threads:
            os.environ[NUM_THREADS] = self._threads
        failed = self._launch(launches.launches.ctypes.data, len(launches.launches))
        if failed:
            raise BundleError(
                f"kernel {failed} of {len(launches.launches)} of a batch refuses its arguments; compile the bundle "
                f"again"
            )


@contextmanager
def private_copy(data: bytes) -> Iterator[Path]:
    """A file of these bytes that nobody else can change. The original file may have been replaced after its hash was
    verified.
    """
    with TemporaryDirectory(prefix="nearfar-") as folder:
        # Loaders identify a library by its path, so each copy has a unique path.
        path = Path(folder) / "kernels.so"
        if not hasattr(os, "memfd_create"):
            path.write_bytes(data)
            yield path
            return
        # In memory, because folders for temporary files are often mounted noexec.
        descriptor = os.memfd_create("nearfar-kernels")
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(data)
            path.symlink_to(f"/proc/self/fd/{descriptor}")
            yield path
        finally:
            os.close(descriptor)


def load_runtime() -> ctypes.CDLL:
    """TVM FFI's library and TVM's runtime, 6 MB together, without their Python packages, which load torch if it is
    installed.

    Raises DeviceError if they are not installed.
    """
    ctypes.CDLL(str(library_of("tvm_ffi", "libtvm_ffi.so")), ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(library_of("tvm", "libtvm_runtime.so")), ctypes.RTLD_GLOBAL)


def library_of(package: str, file: str) -> Path:
    spec = find_spec(package)
    path = Path(spec.origin).parent / "lib" / file if spec is not None and spec.origin else None
    if path is None or not path.is_file():
        raise DeviceError(f"{file} was not found; install apache-tvm")
    return path

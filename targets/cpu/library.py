"""Load a bundle's shared library into this process: kernels by name, lists of launches, and the threads that run
them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any
from weakref import finalize

import numpy as np
import numpy.typing as npt

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.runtime.errors import BundleError, DeviceError

# An argument of TVM FFI: its type, then 8 bytes of value; and `launch` in launch.c.
ARGUMENT = np.dtype([("type", "<i4"), ("padding", "<u4"), ("value", "<i8")])
LAUNCH = np.dtype([("function", "<u8"), ("arguments", "<u8"), ("count", "<i8")])
INTEGER, POINTER = 1, 4


@dataclass(frozen=True, slots=True)
class Launches:
    """Kernels to run one after the other, with their arguments. ``scalars`` are the locations of values that change
    from batch to batch.
    """

    launches: npt.NDArray[Any]
    arguments: npt.NDArray[Any]
    scalars: npt.NDArray[np.intp]


class Library:
    """Raises DeviceError if the library cannot be loaded, BundleError if it lacks a function."""

    @classmethod
    def of_bundle(cls, bundle: Bundle, file: str) -> Library:
        """The library that a bundle's manifest names, loaded from the same bytes whose hash was verified. Raises
        BundleError.
        """
        with private_copy(bundle.kernel_file(file)) as copy:
            return cls(copy)

    def __init__(self, path: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise DeviceError(f"{path}: cannot be loaded: {error}") from error
        self._launch = self._function("nearfar_launch", ctypes.c_void_p, ctypes.c_int32)
        self._threads: list[Thread] = []

    def start_threads(self, count: int) -> None:
        """Run kernels on ``count`` threads, that of `run` included, until `stop_threads`."""
        self._function("nearfar_set_threads", ctypes.c_int32)(count)
        work = self._function("nearfar_work", ctypes.c_int32)
        # They stay outside Python's lock until they end, so they must not keep the interpreter or this object alive.
        self._threads = [Thread(target=work, args=(i,), name="nearfar-kernels", daemon=True) for i in range(1, count)]
        self._stop = finalize(self, self._function("nearfar_stop"))
        self._stop.atexit = False
        for thread in self._threads:
            thread.start()

    def stop_threads(self) -> None:
        """End the threads. No kernels may be running."""
        self._stop()
        for thread in self._threads:
            thread.join()

    def _function(self, symbol: str, *types: Any) -> Any:
        function = getattr(self._library, symbol, None)
        if function is None:
            raise BundleError(f"the bundle's library has no function {symbol!r}; compile the bundle again")
        function.argtypes = types
        return function

    def address(self, symbol: str) -> int:
        """The address of a kernel. Raises BundleError for one that the library does not have."""
        address = ctypes.cast(self._function(symbol), ctypes.c_void_p).value
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

    def run(
        self,
        launches: Launches,
        scalars: npt.NDArray[np.int64],
        stops: Sequence[int] = (),
        reached: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Run all launches, without Python's lock. ``scalars`` are the values for the launches' scalar locations.
        Each of ``stops`` is a number of launches, after which ``reached`` is called with its index.
        """
        launches.arguments["value"][launches.scalars] = scalars
        start = 0
        for index, stop in enumerate(stops):
            self._run(launches, start, stop)
            reached(index)
            start = stop
        self._run(launches, start, len(launches.launches))

    def _run(self, launches: Launches, start: int, stop: int) -> None:
        failed = self._launch(launches.launches.ctypes.data + start * LAUNCH.itemsize, stop - start)
        if failed:
            raise BundleError(
                f"kernel {start + failed} of {len(launches.launches)} of a batch refuses its arguments; compile the "
                f"bundle again"
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

"""The driver's interface on emulated CUDA: device memory is host memory, and every call takes effect immediately."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from emulated import Library

from nearfar.compiler.runtime.errors import DeviceError
from nearfar.targets.cuda.driver import Arguments, Bytes, Launch

Recorded = tuple[Library, str, tuple[int, int], int, npt.NDArray[np.uint64]]


class EmulatedDriver:
    """``folder`` caches compiled libraries. Memory starts as NaN. If ``broken`` is set, every event fails. ``launched``
    counts launches. Workgroups that are launched together are ``multiprocessors``, in the order of ``seed``, which
    counts on; ``missing`` arrivals never come.
    """

    name = "emulated GPU"
    cuda_version = (13, 0)

    def __init__(self, folder: Path, arch: str = "sm_90") -> None:
        self.arch = arch
        self.broken = False
        self.launched = self.captured = self.replayed = 0
        self._folder = folder
        self._memory: dict[int, Bytes] = {}
        self.graph_bytes = 1 << 16
        self._graph_count = 0
        self.multiprocessors, self.seed, self.missing = 3, 0, 0
        self.launched_together = 0

    def load(self, cubin: Path) -> Library:
        assert cubin.read_bytes().startswith(b"\x7fELF")
        return Library(cubin.with_suffix(".cu").read_text(), self._folder)

    def function(self, module: Library, entry: str, shared_bytes: int = 0) -> tuple[Library, str]:
        assert shared_bytes <= 227 << 10
        return module, entry

    def allocate(self, size: int) -> int:
        layout = np.full(size + 512, 0xFF, np.uint8)
        address = layout.ctypes.data + -layout.ctypes.data % 256
        self._memory[address] = layout
        return address

    def free(self, address: int) -> None:
        del self._memory[address]

    def allocate_pinned(self, size: int) -> Bytes:
        return np.full(size, 0xFF, np.uint8)

    def upload(self, address: int, data: npt.NDArray[Any]) -> None:
        self._at(address, data.nbytes)[...] = np.ascontiguousarray(data).reshape(-1).view(np.uint8)

    def download(self, data: npt.NDArray[Any], address: int) -> None:
        if data.size:
            data.reshape(-1).view(np.uint8)[...] = self._at(address, data.nbytes)

    def copy(self, destination: int, source: int, size: int) -> None:
        self._at(destination, size)[...] = self._at(source, size)

    def clear(self, address: int, size: int) -> None:
        self._at(address, size)[...] = 0

    def launch(self, function: tuple[Library, str], grid: tuple[int, int], threads: int, arguments: Arguments) -> None:
        self._run((*function, grid, threads, arguments.values.copy()))

    def resident_workgroups(self, function: tuple[Library, str], threads: int) -> int:  # noqa: ARG002
        return self.multiprocessors

    def launch_together(
        self, function: tuple[Library, str], workgroups: int, threads: int, arguments: Arguments
    ) -> None:
        library, entry = function
        assert workgroups == self.multiprocessors
        memory = [(layout.ctypes.data, layout.nbytes) for layout in self._memory.values()]
        values = arguments.values.copy()
        # The expected arrivals are counted from this parameter on.
        values[4] += np.uint64(self.missing)
        library.launch_together(entry, workgroups, threads, values, memory, self.seed)
        self.seed += 1
        self.launched_together += 1

    def capture(self, submit: Callable[[Launch], None]) -> list[Recorded]:
        graph: list[Recorded] = []

        def record(function: tuple[Library, str], grid: tuple[int, int], threads: int, arguments: Arguments) -> None:
            graph.append((*function, grid, threads, arguments.values.copy()))

        submit(record)
        self.captured += 1
        self._graph_count += 1
        return graph

    def discard(self, graph: list[Recorded]) -> None:
        graph.clear()
        self._graph_count -= 1

    def available_bytes(self) -> int:
        return (1 << 40) - self.graph_bytes * self._graph_count

    def replay(self, graph: list[Recorded]) -> None:
        assert graph
        self.replayed += 1
        for launch in graph:
            self._run(launch)

    def record(self) -> object:
        return object()

    def wait(self, event: object) -> None:
        assert event is not None
        if self.broken:
            raise DeviceError("CUDA: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered")

    def close(self) -> None:
        self._memory.clear()

    def _run(self, launch: Recorded) -> None:
        library, entry, grid, threads, values = launch
        library.launch(entry, grid, threads, values)
        self.launched += 1

    def _at(self, address: int, size: int) -> Bytes:
        """A range of device memory, which must lie in one allocation."""
        for start, layout in self._memory.items():
            if start <= address and address + size <= layout.ctypes.data + layout.nbytes:
                offset = address - layout.ctypes.data
                return layout[offset : offset + size]
        raise AssertionError(f"{size} bytes at {address:#x} were not allocated")

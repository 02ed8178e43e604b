"""NVIDIA's driver as the runner uses it: one GPU, one stream, and what happens on it in order. A test may put another in its place.

All addresses are ints. What copies, clears or launches returns at once and happens behind all that was asked for before.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from nearfar.compiler.errors import DeviceError

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Arguments:
    """A launch's parameters, each in 8 bytes of ``values``; ``pointers`` are the addresses of these, which is what CUDA takes."""

    values: npt.NDArray[np.uint64]
    pointers: npt.NDArray[np.uint64] = field(init=False)

    def __post_init__(self) -> None:
        pointers = self.values.ctypes.data + 8 * np.arange(len(self.values), dtype=np.uint64)
        object.__setattr__(self, "pointers", pointers)


class Driver(Protocol):
    """Every call may raise DeviceError, also for what went wrong on the device since the last."""

    @property
    def name(self) -> str: ...

    @property
    def arch(self) -> str:
        """What the GPU is, as "sm_90"."""

    def enter_thread(self) -> None:
        """Called once by each further thread before its other calls."""

    def load(self, cubin: Path) -> Any:
        """A module."""

    def function(self, module: Any, entry: str) -> Any: ...

    def allocate(self, size: int) -> int:
        """Device memory at a multiple of 256 bytes."""

    def free(self, address: int) -> None: ...

    def allocate_pinned(self, size: int) -> Bytes:
        """Host memory from and to which copies run beside the host's work. Until `close`."""

    def upload(self, address: int, data: npt.NDArray[Any]) -> None:
        """Copy an array to the device. A pinned one must stay as it is until an event behind the call has been waited for."""

    def download(self, data: npt.NDArray[Any], address: int) -> None:
        """Fill an array from the device; it is filled once an event behind the call has been waited for."""

    def copy(self, destination: int, source: int, size: int) -> None: ...

    def clear(self, address: int, size: int) -> None:
        """Fill with zeros."""

    def launch(self, function: Any, grid: tuple[int, int], threads: int, arguments: Arguments) -> None: ...

    def begin_capture(self) -> None:
        """From here on launches are only written down."""

    def end_capture(self) -> Any:
        """A graph of the launches since `begin_capture`, with the arguments that they had."""

    def replay(self, graph: Any) -> None: ...

    def record(self) -> Any:
        """An event that happens when all before it is done; to be waited for once."""

    def wait(self, event: Any) -> None: ...

    def close(self) -> None:
        """Give everything back."""


class NvidiaDriver:
    """The first GPU that CUDA_VISIBLE_DEVICES leaves. Raises DeviceError where there is none."""

    def __init__(self) -> None:
        try:
            from cuda.bindings import driver

            self._cuda = driver
            self._check(driver.cuInit(0))
        except (ImportError, RuntimeError) as error:
            raise DeviceError(
                f"CUDA cannot be used here ({error}); it needs an NVIDIA GPU with its driver and pip install 'nearfar[cuda]'; "
                "or use --runner numpy"
            ) from error
        self._device = self._check(driver.cuDeviceGet(0))
        self._context = self._check(driver.cuDevicePrimaryCtxRetain(self._device))
        self.enter_thread()
        name = self._check(driver.cuDeviceGetName(100, self._device))
        self.name = name.split(b"\0")[0].decode()
        attributes = driver.CUdevice_attribute
        major, minor = (
            self._check(driver.cuDeviceGetAttribute(attribute, self._device))
            for attribute in (
                attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        self.arch = f"sm_{major}{minor}"
        self._stream = self._check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self._modules: list[Any] = []
        self._graphs: list[Any] = []
        self._allocated: set[int] = set()
        self._pinned: list[int] = []

    def enter_thread(self) -> None:
        self._check(self._cuda.cuCtxSetCurrent(self._context))

    def load(self, cubin: Path) -> Any:
        self._modules.append(self._check(self._cuda.cuModuleLoadData(cubin.read_bytes())))
        return self._modules[-1]

    def function(self, module: Any, entry: str) -> Any:
        return self._check(self._cuda.cuModuleGetFunction(module, entry.encode()))

    def allocate(self, size: int) -> int:
        address = int(self._check(self._cuda.cuMemAlloc(max(size, 1))))
        self._allocated.add(address)
        return address

    def free(self, address: int) -> None:
        self._allocated.remove(address)
        self._check(self._cuda.cuMemFree(address))

    def allocate_pinned(self, size: int) -> Bytes:
        address = int(self._check(self._cuda.cuMemAllocHost(max(size, 1))))
        self._pinned.append(address)
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def upload(self, address: int, data: npt.NDArray[Any]) -> None:
        if data.nbytes:
            self._check(self._cuda.cuMemcpyHtoDAsync(address, data.ctypes.data, data.nbytes, self._stream))

    def download(self, data: npt.NDArray[Any], address: int) -> None:
        if data.nbytes:
            self._check(self._cuda.cuMemcpyDtoHAsync(data.ctypes.data, address, data.nbytes, self._stream))

    def copy(self, destination: int, source: int, size: int) -> None:
        self._check(self._cuda.cuMemcpyDtoDAsync(destination, source, size, self._stream))

    def clear(self, address: int, size: int) -> None:
        self._check(self._cuda.cuMemsetD8Async(address, 0, size, self._stream))

    def launch(self, function: Any, grid: tuple[int, int], threads: int, arguments: Arguments) -> None:
        self._check(
            self._cuda.cuLaunchKernel(function, grid[0], grid[1], 1, threads, 1, 1, 0, self._stream, arguments.pointers.ctypes.data, 0)
        )

    def begin_capture(self) -> None:
        # Relaxed, for another thread may be waiting for an event.
        self._check(self._cuda.cuStreamBeginCapture(self._stream, self._cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))

    def end_capture(self) -> Any:
        graph = self._check(self._cuda.cuStreamEndCapture(self._stream))
        self._graphs.append(self._check(self._cuda.cuGraphInstantiate(graph, 0)))
        self._check(self._cuda.cuGraphDestroy(graph))
        return self._graphs[-1]

    def replay(self, graph: Any) -> None:
        self._check(self._cuda.cuGraphLaunch(graph, self._stream))

    def record(self) -> Any:
        flags = self._cuda.CUevent_flags
        event = self._check(self._cuda.cuEventCreate(flags.CU_EVENT_DISABLE_TIMING | flags.CU_EVENT_BLOCKING_SYNC))
        self._check(self._cuda.cuEventRecord(event, self._stream))
        return event

    def wait(self, event: Any) -> None:
        self._check(self._cuda.cuEventSynchronize(event))
        self._check(self._cuda.cuEventDestroy(event))

    def close(self) -> None:
        self._check(self._cuda.cuStreamSynchronize(self._stream))
        for graph in self._graphs:
            self._check(self._cuda.cuGraphExecDestroy(graph))
        for module in self._modules:
            self._check(self._cuda.cuModuleUnload(module))
        for address in self._allocated:
            self._check(self._cuda.cuMemFree(address))
        for address in self._pinned:
            self._check(self._cuda.cuMemFreeHost(address))
        self._check(self._cuda.cuStreamDestroy(self._stream))
        self._check(self._cuda.cuDevicePrimaryCtxRelease(self._device))

    def _check(self, answer: tuple[Any, ...]) -> Any:
        """What a call gave beside its status. Raises DeviceError for a status other than success."""
        status, *values = answer
        if status != self._cuda.CUresult.CUDA_SUCCESS:
            _, text = self._cuda.cuGetErrorString(status)
            reason = text.decode() if isinstance(text, bytes) else str(text)
            advice = "; give it fewer pages, or close what else uses the GPU" if "OUT_OF_MEMORY" in status.name else ""
            raise DeviceError(f"CUDA: {status.name}: {reason}{advice}", status=status.name)
        return values[0] if values else None

"""The interface to NVIDIA's driver that the runner uses: one GPU and one stream, which runs its work in order. A test
may replace it.

All addresses are ints. Copies, clears and launches return at once; the stream runs them after everything that was
submitted before.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from nearfar.compiler.runtime.errors import DeviceError

Bytes = npt.NDArray[np.uint8]

# cuda.h says of these: "This leaves the process in an inconsistent state and any further CUDA work will return the same
# error. To continue using CUDA, the process must be terminated and relaunched."
FATAL = frozenset(
    f"CUDA_ERROR_{name}"
    for name in (
        "ASSERT", "CONTAINED", "CONTEXT_IS_DESTROYED", "ECC_UNCORRECTABLE", "EXTERNAL_DEVICE", "HARDWARE_STACK_ERROR",
        "ILLEGAL_ADDRESS", "ILLEGAL_INSTRUCTION", "INVALID_ADDRESS_SPACE", "INVALID_PC", "LAUNCH_FAILED",
        "LAUNCH_TIMEOUT", "MISALIGNED_ADDRESS", "TENSOR_MEMORY_LEAK",
    )
)  # fmt: skip
# The first version of CUDA that records launches which may start early in graphs (programming guide, "Use in CUDA
# Graphs" of programmatic dependent launch).
EARLY_START_VERSION = (12, 3)
# The name in a cubin all of whose kernels wait for the previous one; `compiler/kernels/cuda/device.cuh` declares it.
ALL_WAIT = "every_kernel_waits"
ADVICE = {
    "CUDA_ERROR_OUT_OF_MEMORY": "; give it fewer pages, or close other programs that use the GPU",
    "CUDA_ERROR_INVALID_IMAGE": "; the cubin is damaged, or too new for the driver: update NVIDIA's driver",
    **dict.fromkeys(FATAL, "; this process cannot use the GPU any more: start it again"),
}


@dataclass(frozen=True, slots=True)
class Arguments:
    """A launch's parameters, each in 8 bytes of ``values``; ``pointers`` are the addresses of these values, which CUDA
    requires.
    """

    values: npt.NDArray[np.uint64]
    pointers: npt.NDArray[np.uint64] = field(init=False)

    def __post_init__(self) -> None:
        pointers = self.values.ctypes.data + 8 * np.arange(len(self.values), dtype=np.uint64)
        object.__setattr__(self, "pointers", pointers)


class Function(NamedTuple):
    """A kernel, and the shared memory that its launches add. ``starts_early``: it waits for the previous kernel by
    itself, so it may start before that one has ended.
    """

    handle: Any
    shared_bytes: int
    starts_early: bool


@dataclass(frozen=True, slots=True)
class Event:
    """``uploaded``: the arrays that the stream reads before the event. They must exist until the event has occurred."""

    handle: Any
    uploaded: tuple[npt.NDArray[Any], ...]


class Launch(Protocol):
    """Launch a function on a grid of blocks, each of ``threads`` threads."""

    def __call__(self, function: Any, grid: tuple[int, int], threads: int, arguments: Arguments) -> None: ...


class Driver(Protocol):
    """Callable from any thread. Every call may raise DeviceError, also for an earlier failure on the device."""

    @property
    def name(self) -> str: ...

    @property
    def arch(self) -> str:
        """The GPU's architecture, such as "sm_90"."""

    @property
    def cuda_version(self) -> tuple[int, int]:
        """The latest version of CUDA that the driver supports, major and minor."""

    def load(self, cubin: Path) -> Any:
        """A module."""

    def function(self, module: Any, entry: str, shared_bytes: int = 0) -> Any:
        """A kernel of a module, which is launched with ``shared_bytes`` of shared memory beside what it declares."""

    def allocate(self, size: int) -> int:
        """Device memory at a multiple of 256 bytes."""

    def free(self, address: int) -> None:
        """Free memory of `allocate`, which no pending work uses."""

    def available_bytes(self) -> int:
        """Device memory that nobody has allocated."""

    def allocate_pinned(self, size: int) -> Bytes:
        """Host memory for asynchronous copies. It exists until `close`."""

    def upload(self, address: int, data: npt.NDArray[Any]) -> None:
        """Copy an array to the device. The array must not change until the caller has waited for a later event; the
        driver holds a reference to it.
        """

    def download(self, data: npt.NDArray[Any], address: int) -> None:
        """Fill an array from the device. The data is valid once the caller has waited for a later event."""

    def copy(self, destination: int, source: int, size: int) -> None: ...

    def clear(self, address: int, size: int) -> None:
        """Fill with zeros."""

    def launch(self, function: Any, grid: tuple[int, int], threads: int, arguments: Arguments) -> None:
        """Launch a function with the shared memory that `function` was given."""

    def resident_workgroups(self, function: Any, threads: int) -> int:
        """How many workgroups of a function can be on the GPU at the same time, of those that each multiprocessor has
        room for; 0 if they cannot be launched together.
        """

    def launch_together(self, function: Any, workgroups: int, threads: int, arguments: Arguments) -> None:
        """Launch workgroups that may wait for each other. It fails if they cannot all be on the GPU at once."""

    def capture(self, submit: Callable[[Launch], None]) -> Any:
        """A graph of the launches that ``submit`` makes through its argument. They do not run yet. Other threads may
        submit work meanwhile, which does not become part of the graph. If ``submit`` raises, the capture ends without a
        graph.
        """

    def replay(self, graph: Any) -> None: ...

    def discard(self, graph: Any) -> None:
        """Free a graph. Replays that were submitted before still run."""

    def record(self) -> Any:
        """An event that occurs when all earlier work is done. Wait for it once."""

    def wait(self, event: Any) -> None: ...

    def close(self) -> None:
        """Free everything. A second call does nothing; any other call raises DeviceError from now on."""


class NvidiaDriver:
    """The first GPU that CUDA_VISIBLE_DEVICES exposes. Raises DeviceError if no GPU is exposed.

    The context is the device's primary one, which all drivers of a process share. CUDA has a current context per
    thread, so every call goes through `_api`, which sets it on the calling thread first.
    """

    def __init__(self) -> None:
        try:
            from cuda.bindings import driver

            self._cuda = driver
            self._check(driver.cuInit(0))
        except (ImportError, RuntimeError) as error:
            raise DeviceError(
                f"CUDA cannot be used here ({error}); it needs an NVIDIA GPU with its driver and pip install "
                "'nearfar[cuda]', or 'nearfar[cuda12]' for a driver older than 580; or compile the "
                "model for the CPU (nearfar compile MODEL --target cpu)"
            ) from error
        self._device = self._check(driver.cuDeviceGet(0))
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
        version = self._check(driver.cuDriverGetVersion())
        self.cuda_version = version // 1000, version % 1000 // 10
        self._closed = False
        self._thread = threading.local()
        self._modules: list[Any] = []
        self._starts_early = major >= 9 and self.cuda_version >= EARLY_START_VERSION
        # The modules whose kernels wait for the previous kernel by themselves.
        self._waiting: set[int] = set()
        self._graphs: set[Any] = set()
        self._allocated: set[int] = set()
        self._pinned: list[int] = []
        self._uploaded: list[npt.NDArray[Any]] = []
        self._context = self._check(driver.cuDevicePrimaryCtxRetain(self._device))
        # Captures have a stream of their own, one at a time, so that they do not record what other threads submit.
        self._capturing = threading.Lock()
        try:
            flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
            self._stream, self._capture_stream = (self._check(self._api.cuStreamCreate(flags)) for _ in range(2))
        except DeviceError:
            driver.cuDevicePrimaryCtxRelease(self._device)
            raise

    def load(self, cubin: Path) -> Any:
        code = cubin.read_bytes()
        self._modules.append(self._check(self._api.cuModuleLoadData(code)))
        if self._starts_early and ALL_WAIT.encode() in code:
            self._waiting.add(int(self._modules[-1]))
        return self._modules[-1]

    def function(self, module: Any, entry: str, shared_bytes: int = 0) -> Function:
        handle = self._check(self._api.cuModuleGetFunction(module, entry.encode()))
        if shared_bytes:
            attribute = self._cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._check(self._api.cuFuncSetAttribute(handle, attribute, shared_bytes))
        return Function(handle, shared_bytes, int(module) in self._waiting)

    def allocate(self, size: int) -> int:
        address = int(self._check(self._api.cuMemAlloc(max(size, 1))))
        self._allocated.add(address)
        return address

    def free(self, address: int) -> None:
        self._allocated.remove(address)
        self._check(self._api.cuMemFree(address))

    def available_bytes(self) -> int:
        # `_check` returns the first of two values.
        return int(self._check(self._api.cuMemGetInfo()))

    def allocate_pinned(self, size: int) -> Bytes:
        address = int(self._check(self._api.cuMemAllocHost(max(size, 1))))
        self._pinned.append(address)
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def upload(self, address: int, data: npt.NDArray[Any]) -> None:
        if data.nbytes:
            # A driver that shares the host's page tables reads unpinned memory as late as pinned memory.
            self._uploaded.append(data)
            self._check(self._api.cuMemcpyHtoDAsync(address, data.ctypes.data, data.nbytes, self._stream))

    def download(self, data: npt.NDArray[Any], address: int) -> None:
        if data.nbytes:
            self._check(self._api.cuMemcpyDtoHAsync(data.ctypes.data, address, data.nbytes, self._stream))

    def copy(self, destination: int, source: int, size: int) -> None:
        self._check(self._api.cuMemcpyDtoDAsync(destination, source, size, self._stream))

    def clear(self, address: int, size: int) -> None:
        self._check(self._api.cuMemsetD8Async(address, 0, size, self._stream))

    def launch(self, function: Function, grid: tuple[int, int], threads: int, arguments: Arguments) -> None:
        self._launch_on(self._stream, function, grid, threads, arguments)

    def resident_workgroups(self, function: Function, threads: int) -> int:
        attributes = self._cuda.CUdevice_attribute
        together, multiprocessors = (
            self._check(self._api.cuDeviceGetAttribute(attribute, self._device))
            for attribute in (
                attributes.CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH,
                attributes.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            )
        )
        each = self._check(
            self._api.cuOccupancyMaxActiveBlocksPerMultiprocessor(function.handle, threads, function.shared_bytes)
        )
        return int(each) * int(multiprocessors) if together else 0

    def launch_together(self, function: Function, workgroups: int, threads: int, arguments: Arguments) -> None:
        pointers, shared = arguments.pointers.ctypes.data, function.shared_bytes
        self._check(
            self._api.cuLaunchCooperativeKernel(
                function.handle, workgroups, 1, 1, threads, 1, 1, shared, self._stream, pointers
            )
        )

    def capture(self, submit: Callable[[Launch], None]) -> Any:
        with self._capturing:
            graph = self._record_graph(submit)
            try:
                executable = self._check(self._api.cuGraphInstantiate(graph, 0))
            finally:
                self._cuda.cuGraphDestroy(graph)
            self._graphs.add(executable)
            # Otherwise the first replay would wait for the upload.
            self._check(self._api.cuGraphUpload(executable, self._capture_stream))
            self._check(self._api.cuStreamSynchronize(self._capture_stream))
            return executable

    def replay(self, graph: Any) -> None:
        self._check(self._api.cuGraphLaunch(graph, self._stream))

    def discard(self, graph: Any) -> None:
        self._graphs.remove(graph)
        # "If the executable graph is in-flight, it will not be terminated, but rather freed asynchronously on
        # completion."
        self._check(self._api.cuGraphExecDestroy(graph))

    def record(self) -> Event:
        flags = self._cuda.CUevent_flags
        event = self._check(self._api.cuEventCreate(flags.CU_EVENT_DISABLE_TIMING | flags.CU_EVENT_BLOCKING_SYNC))
        try:
            self._check(self._api.cuEventRecord(event, self._stream))
        except DeviceError:
            self._cuda.cuEventDestroy(event)
            raise
        uploaded, self._uploaded = self._uploaded, []
        return Event(event, tuple(uploaded))

    def wait(self, event: Event) -> None:
        try:
            self._check(self._api.cuEventSynchronize(event.handle))
        finally:
            self._cuda.cuEventDestroy(event.handle)

    def close(self) -> None:
        if self._closed:
            return
        failures: list[DeviceError] = []

        def free(call: Callable[..., tuple[Any, ...]], *arguments: Any) -> None:
            try:
                self._check(call(*arguments))
            except DeviceError as error:
                failures.append(error)

        # The calls below report its failure.
        with suppress(DeviceError):
            _ = self._api
        cuda = self._cuda
        free(cuda.cuStreamSynchronize, self._stream)
        for graph in self._graphs:
            free(cuda.cuGraphExecDestroy, graph)
        for module in self._modules:
            free(cuda.cuModuleUnload, module)
        for address in self._allocated:
            free(cuda.cuMemFree, address)
        for address in self._pinned:
            free(cuda.cuMemFreeHost, address)
        for stream in (self._stream, self._capture_stream):
            free(cuda.cuStreamDestroy, stream)
        free(cuda.cuDevicePrimaryCtxRelease, self._device)
        self._closed = True
        # After a fatal failure, which its own call has raised, nothing can be freed before the process ends.
        if failures and failures[0].details["status"] not in FATAL:
            raise failures[0]

    def _launch_on(
        self, stream: Any, function: Function, grid: tuple[int, int], threads: int, arguments: Arguments
    ) -> None:
        handle, shared, starts_early = function
        pointers = arguments.pointers.ctypes.data
        if not starts_early:
            self._check(
                self._api.cuLaunchKernel(handle, grid[0], grid[1], 1, threads, 1, 1, shared, stream, pointers, 0)
            )
            return
        config = self._early_launch
        config.gridDimX, config.gridDimY, config.blockDimX = grid[0], grid[1], threads
        config.sharedMemBytes, config.hStream = shared, stream
        self._check(self._api.cuLaunchKernelEx(config, handle, pointers, 0))

    @property
    def _early_launch(self) -> Any:
        """This thread's configuration of launches that may start early; the rest of it is set for each launch."""
        if not hasattr(self._thread, "early_launch"):
            attribute = self._cuda.CUlaunchAttribute()
            attribute.id = self._cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config = self._cuda.CUlaunchConfig()
            config.gridDimZ = config.blockDimY = config.blockDimZ = 1
            config.attrs, config.numAttrs = [attribute], 1
            self._thread.early_launch = config
        return self._thread.early_launch

    def _record_graph(self, submit: Callable[[Launch], None]) -> Any:
        """The launches of ``submit`` as a graph that cannot run yet."""
        stream = self._capture_stream
        # A forbidden call of this thread invalidates the capture. Other threads may allocate and synchronize, which the
        # default mode forbids.
        mode = self._cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._check(self._api.cuStreamBeginCapture(stream, mode))
        try:
            submit(partial(self._launch_on, stream))
        except BaseException:
            # A stream that is still capturing would reject all other calls.
            _, graph = self._cuda.cuStreamEndCapture(stream)
            if graph is not None:
                self._cuda.cuGraphDestroy(graph)
            raise
        return self._check(self._api.cuStreamEndCapture(stream))

    @property
    def _api(self) -> Any:
        """NVIDIA's bindings, ready to be called by this thread."""
        if self._closed:
            raise DeviceError("CUDA: the model was closed, and its memory on the GPU was freed; load it again")
        if not hasattr(self._thread, "entered"):
            self._check(self._cuda.cuCtxSetCurrent(self._context))
            self._thread.entered = True
        return self._cuda

    def _check(self, answer: tuple[Any, ...]) -> Any:
        """The value that a call returned beside its status. Raises DeviceError for a status other than success."""
        status, *values = answer
        if status != self._cuda.CUresult.CUDA_SUCCESS:
            _, text = self._cuda.cuGetErrorString(status)
            reason = text.decode() if isinstance(text, bytes) else str(text)
            raise DeviceError(f"CUDA: {status.name}: {reason}{ADVICE.get(status.name, '')}", status=status.name)
        return values[0] if values else None

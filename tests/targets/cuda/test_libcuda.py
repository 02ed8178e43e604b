"""The emulated driver rejects calls that NVIDIA's driver API documentation forbids, so code that passes on it follows
these rules. Each test calls a library of its own, because a fault lasts until the process ends.
"""

from __future__ import annotations

import ctypes
import shutil
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cuda.bindings.driver import CUresult
from emulated import libcuda, library_of

KERNEL = """
extern "C" __global__ void __launch_bounds__(32) put(uint* out, uint index, uint value) { out[index] = value; }
"""
GLOBAL, THREAD_LOCAL, RELAXED = range(3)
EVENT_FLAGS = 3
SIZE = 300


class Driver:
    """The driver's functions by name. A call returns the name of its status."""

    def __init__(self, file: Path) -> None:
        self.library = ctypes.CDLL(str(file))
        self.context, self.stream, self.function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.module = ctypes.c_void_p()
        self.success("cuInit", 0)
        self.success("cuDevicePrimaryCtxRetain", self.context, 7)
        self.success("cuCtxSetCurrent", self.context.value)
        self.success("cuStreamCreate", self.stream, 1)
        self.success("cuModuleLoadData", self.module, image(7))
        self.success("cuModuleGetFunction", self.function, self.module.value, b"put")

    def __call__(self, name: str, *arguments: Any) -> str:
        """Integers are passed in 64 bits, objects of ctypes by their address."""
        passed = [
            ctypes.byref(each)
            if isinstance(each, ctypes._SimpleCData)
            else ctypes.c_uint64(each or 0)
            if isinstance(each, int | None)
            else each.ctypes.data_as(ctypes.c_void_p)
            if isinstance(each, np.ndarray)
            else each
            for each in arguments
        ]
        name_of_status: str = CUresult(self.library[name](*passed)).name
        return name_of_status.removeprefix("CUDA_ERROR_").removeprefix("CUDA_")

    def success(self, name: str, *arguments: Any) -> None:
        assert self(name, *arguments) == "SUCCESS", name

    def allocate(self, size: int = SIZE) -> int:
        address = ctypes.c_uint64()
        self.success("cuMemAlloc", address, size)
        return address.value

    def launch(self, address: int, index: int = 0, value: int = 7, grid: Sequence[int] = (1, 1)) -> str:
        values = np.array([address, index, value], np.uint64)
        pointers = values.ctypes.data + 8 * np.arange(3, dtype=np.uint64)
        return self("cuLaunchKernel", self.function.value, *grid, 1, 1, 1, 1, 0, self.stream.value, pointers, None)

    def synchronize(self) -> str:
        return self("cuStreamSynchronize", self.stream.value)

    def begin_capture(self, mode: int = THREAD_LOCAL) -> None:
        self.success("cuStreamBeginCapture", self.stream.value, mode)

    def end_capture(self) -> tuple[str, int | None]:
        graph = ctypes.c_void_p()
        return self("cuStreamEndCapture", self.stream.value, graph), graph.value

    def executable(self, address: int) -> ctypes.c_void_p:
        """A graph of one launch, which writes 7 to an address."""
        self.begin_capture()
        assert self.launch(address) == "SUCCESS"
        executable = ctypes.c_void_p()
        self.success("cuGraphInstantiateWithFlags", executable, self.end_capture()[1], 0)
        return executable


def image(abi_version: int, name: str = "put") -> bytes:
    """The parts of a cubin that the emulated driver reads: an ELF header and the names of functions."""
    names = b"\0" + name.encode() + b"\0"
    ident = b"\x7fELF".ljust(8, b"\0") + bytes([abi_version]) + bytes(7)
    return ident + bytes(24) + struct.pack("<Q", 64) + bytes(10) + struct.pack("<HHH", len(names), 1, 0) + names


@pytest.fixture(scope="module")
def kernels(emulated_cuda: Path) -> Path:
    return library_of(KERNEL, emulated_cuda, "-O0")


@pytest.fixture
def driver(emulated_cuda: Path, kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setenv("NEARFAR_EMULATED", str(kernels))
    return Driver(Path(shutil.copy(libcuda(emulated_cuda) / "libcuda.so.1", tmp_path / "libcuda.so.1")))


def on_another_thread(work: Callable[[], str]) -> str:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def downloaded(driver: Driver, address: int, words: int = 1) -> npt.NDArray[np.uint32]:
    found = np.zeros(words, np.uint32)
    driver.success("cuMemcpyDtoHAsync", found, address, found.nbytes, driver.stream.value)
    assert driver.synchronize() == "SUCCESS"
    return found


# --- contexts and handles ---


def test_each_thread_needs_a_current_context(driver: Driver) -> None:
    address = ctypes.c_uint64()

    def in_context() -> str:
        driver.success("cuCtxSetCurrent", driver.context.value)
        return driver("cuMemAlloc", address, 8)

    assert on_another_thread(lambda: driver("cuMemAlloc", address, 8)) == "INVALID_CONTEXT"
    assert on_another_thread(lambda: driver.launch(0)) == "INVALID_CONTEXT"
    assert on_another_thread(in_context) == "SUCCESS"


def test_a_context_and_its_objects_end_with_its_last_release(driver: Driver) -> None:
    address, old = driver.allocate(), driver.stream.value
    driver.success("cuDevicePrimaryCtxRelease", 7)
    assert driver.synchronize() == "CONTEXT_IS_DESTROYED"
    assert driver("cuDevicePrimaryCtxRelease", 7) == "INVALID_VALUE"
    driver.success("cuDevicePrimaryCtxRetain", driver.context, 7)
    driver.success("cuCtxSetCurrent", driver.context.value)
    assert driver("cuStreamSynchronize", old) == "INVALID_HANDLE"
    assert driver.launch(driver.allocate()) == "INVALID_HANDLE"
    assert driver("cuMemFree", address) == "INVALID_VALUE"


def test_objects_are_not_used_after_their_destruction(driver: Driver) -> None:
    address = driver.allocate()
    executable, event, stream = driver.executable(address), ctypes.c_void_p(), driver.stream.value
    driver.success("cuEventCreate", event, EVENT_FLAGS)
    assert driver("cuEventSynchronize", event.value) == "INVALID_VALUE"
    driver.success("cuEventRecord", event.value, stream)
    uses: tuple[tuple[str, int | None, Callable[[], str]], ...] = (
        ("cuGraphExecDestroy", executable.value, lambda: driver("cuGraphLaunch", executable.value, stream)),
        ("cuEventDestroy", event.value, lambda: driver("cuEventSynchronize", event.value)),
        ("cuModuleUnload", driver.module.value, lambda: driver.launch(address)),
        ("cuStreamDestroy", stream, lambda: driver("cuEventRecord", event.value, stream)),
    )
    for destroy, handle, use in uses:
        driver.success(destroy, handle)
        assert driver(destroy, handle) == "INVALID_HANDLE"
        assert use() == "INVALID_HANDLE", destroy


def test_a_graph_in_flight_may_be_destroyed_but_not_the_module_of_its_kernels(driver: Driver) -> None:
    address = driver.allocate()
    executable = driver.executable(address)
    driver.success("cuGraphLaunch", executable.value, driver.stream.value)
    driver.success("cuGraphExecDestroy", executable.value)
    assert downloaded(driver, address)[0] == 7
    assert driver.launch(address) == "SUCCESS"
    driver.success("cuModuleUnload", driver.module.value)
    assert driver.synchronize() == "UNKNOWN"


# --- order and memory ---


def test_work_runs_when_somebody_waits_and_in_order(driver: Driver) -> None:
    address, event = driver.allocate(), ctypes.c_void_p()
    found = np.zeros(1, np.uint32)
    driver.success("cuEventCreate", event, EVENT_FLAGS)
    assert driver.launch(address, value=1) == "SUCCESS"
    driver.success("cuMemcpyDtoHAsync", found, address, 4, driver.stream.value)
    driver.success("cuEventRecord", event.value, driver.stream.value)
    assert driver.launch(address, value=2) == "SUCCESS"
    # The destination of a copy is undefined until then.
    assert found[0] == 0xDDDDDDDD
    assert driver("cuEventQuery", event.value) == "NOT_READY"
    driver.success("cuEventSynchronize", event.value)
    assert found[0] == 1
    # Legacy copies do not wait for a stream that was created as non-blocking.
    driver.success("cuMemcpyDtoH", found, address, 4)
    assert found[0] == 1
    assert downloaded(driver, address)[0] == 2


def test_host_memory_must_not_change_before_it_is_copied(driver: Driver) -> None:
    address, data = driver.allocate(), np.ones(8, np.uint8)
    driver.success("cuMemcpyHtoDAsync", address, data, data.nbytes, driver.stream.value)
    data[7] = 2
    assert driver.synchronize() == "UNKNOWN"


def test_pinned_memory_must_not_be_freed_before_it_is_copied(driver: Driver) -> None:
    address, pinned = driver.allocate(), ctypes.c_uint64()
    driver.success("cuMemAllocHost", pinned, 64)
    driver.success("cuMemcpyHtoDAsync", address, pinned.value, 64, driver.stream.value)
    driver.success("cuMemFreeHost", pinned.value)
    assert driver("cuMemFreeHost", pinned.value) == "INVALID_VALUE"
    assert driver.synchronize() == "ILLEGAL_ADDRESS"


@pytest.mark.parametrize("work", ["launch", "upload", "download", "copy from", "copy to", "clear"])
def test_memory_is_not_freed_while_work_that_uses_it_is_pending(driver: Driver, work: str) -> None:
    address, other, data, stream = driver.allocate(), driver.allocate(), np.zeros(4, np.uint8), driver.stream.value
    calls: dict[str, tuple[Any, ...]] = {
        "upload": ("cuMemcpyHtoDAsync", address, data, 4, stream),
        "download": ("cuMemcpyDtoHAsync", data, address, 4, stream),
        "copy from": ("cuMemcpyDtoDAsync", other, address, 4, stream),
        "copy to": ("cuMemcpyDtoDAsync", address, other, 4, stream),
        "clear": ("cuMemsetD8Async", address, 0, 4, stream),
    }
    assert (driver.launch(address) if work == "launch" else driver(*calls[work])) == "SUCCESS"
    driver.success("cuMemFree", address)
    assert driver.synchronize() == "ILLEGAL_ADDRESS"


def test_a_copy_stays_within_one_allocation(driver: Driver) -> None:
    address, data = driver.allocate(), np.zeros(SIZE + 1, np.uint8)
    stream = driver.stream.value
    for size, start, expected in ((SIZE, 0, "SUCCESS"), (SIZE + 1, 0, "INVALID_VALUE"), (8, SIZE - 7, "INVALID_VALUE")):
        assert driver("cuMemcpyHtoDAsync", address + start, data, size, stream) == expected
        assert driver("cuMemsetD8Async", address + start, 0, size, stream) == expected
        assert driver("cuMemcpyDtoDAsync", address, address + start, size, stream) == expected
        assert driver("cuMemcpyDtoHAsync", data, address + start, size, stream) == expected
    # Host memory is not the device's.
    assert driver("cuMemcpyHtoDAsync", address, driver.allocate(), 8, stream) == "INVALID_VALUE"
    assert driver("cuMemcpyDtoHAsync", driver.allocate(), address, 8, stream) == "INVALID_VALUE"
    assert driver("cuMemFree", address + 4) == "INVALID_VALUE"
    assert driver("cuMemAlloc", ctypes.c_uint64(), 0) == "INVALID_VALUE"
    assert driver("cuMemAlloc", ctypes.c_uint64(), 5 << 30) == "OUT_OF_MEMORY"


@pytest.mark.parametrize("misuse", ["host memory", "freed", "behind", "far behind"])
def test_a_kernel_stays_within_allocations_and_every_call_fails_after_a_fault(driver: Driver, misuse: str) -> None:
    address, host = driver.allocate(), np.zeros(4, np.uint32)
    index = {"behind": SIZE // 4, "far behind": 1024}.get(misuse, 0)
    if misuse == "freed":
        driver.success("cuMemFree", address)
    assert driver.launch(host.ctypes.data if misuse == "host memory" else address, index) == "SUCCESS"
    assert driver.synchronize() == "ILLEGAL_ADDRESS"
    for name, *arguments in (
        ("cuMemAlloc", ctypes.c_uint64(), 8),
        ("cuMemFree", address),
        ("cuStreamCreate", ctypes.c_void_p(), 1),
        ("cuStreamBeginCapture", driver.stream.value, RELAXED),
        ("cuModuleUnload", driver.module.value),
        ("cuDevicePrimaryCtxRetain", ctypes.c_void_p(), 7),
        ("cuCtxSetCurrent", driver.context.value),
        ("cuDevicePrimaryCtxRelease", 7),
    ):
        assert driver(name, *arguments) == "ILLEGAL_ADDRESS", name


def test_new_memory_is_nan(driver: Driver) -> None:
    assert set(downloaded(driver, driver.allocate(), SIZE // 4)) == {0xFFFFFFFF}


def test_work_behind_a_fault_does_not_run(driver: Driver) -> None:
    address, found = driver.allocate(), np.zeros(1, np.uint32)
    assert driver.launch(address, SIZE // 4) == "SUCCESS"
    driver.success("cuMemcpyDtoHAsync", found, address, 4, driver.stream.value)
    assert driver.synchronize() == "ILLEGAL_ADDRESS"
    assert found[0] == 0xDDDDDDDD


def test_streams_and_events_of_other_kinds_are_not_emulated(driver: Driver) -> None:
    """Such streams would wait for the legacy default stream, and such events would measure times."""
    for name in ("cuStreamCreate", "cuEventCreate"):
        assert driver(name, ctypes.c_void_p(), 0) == "NOT_SUPPORTED"
        assert driver(name, ctypes.c_void_p(), 8) == "INVALID_VALUE"


def test_a_launch_keeps_to_the_limits_of_a_grid(driver: Driver) -> None:
    address = driver.allocate()
    for grid, expected in (((0, 1), "INVALID_VALUE"), ((1, 65536), "INVALID_VALUE"), ((1, 1), "SUCCESS")):
        assert driver.launch(address, grid=grid) == expected


def test_a_cubin_of_a_later_major_version_is_not_loaded(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ctypes.c_void_p()
    assert driver("cuModuleLoadData", module, image(8)) == "SUCCESS"
    assert driver("cuModuleGetFunction", ctypes.c_void_p(), module.value, b"pu") == "NOT_FOUND"
    monkeypatch.setenv("NEARFAR_CUDA_VERSION", "12090")
    assert driver("cuModuleLoadData", module, image(7)) == "SUCCESS"
    assert driver("cuModuleLoadData", module, image(8)) == "INVALID_IMAGE"
    assert driver("cuModuleLoadData", module, b"not a cubin") == "INVALID_IMAGE"


# --- captures ---


def test_captured_work_runs_at_each_launch_of_its_graph(driver: Driver) -> None:
    address = driver.allocate()
    driver.success("cuMemsetD8Async", address, 0, SIZE, driver.stream.value)
    executable = driver.executable(address)
    assert downloaded(driver, address)[0] == 0
    driver.success("cuGraphUpload", executable.value, driver.stream.value)
    driver.success("cuGraphLaunch", executable.value, driver.stream.value)
    assert downloaded(driver, address)[0] == 7


@pytest.mark.parametrize(
    "call",
    [
        *("synchronize", "query", "wait", "ask", "copy", "copy back", "pageable copy", "allocate", "free"),
        *("allocate pinned", "free pinned", "load", "unload", "create stream", "launch graph"),
    ],
)
def test_a_forbidden_call_invalidates_the_capture_until_it_is_ended(driver: Driver, call: str) -> None:
    address, data, stream = driver.allocate(), np.zeros(4, np.uint8), driver.stream.value
    executable, pinned, module, event = (
        driver.executable(address),
        ctypes.c_uint64(),
        ctypes.c_void_p(),
        ctypes.c_void_p(),
    )
    driver.success("cuMemAllocHost", pinned, 64)
    driver.success("cuModuleLoadData", module, image(7))
    driver.success("cuEventCreate", event, EVENT_FLAGS)
    driver.success("cuEventRecord", event.value, stream)
    calls: dict[str, tuple[Any, ...]] = {
        "synchronize": ("cuStreamSynchronize", stream),
        "query": ("cuStreamQuery", stream),
        "wait": ("cuEventSynchronize", event.value),
        "ask": ("cuEventQuery", event.value),
        "copy": ("cuMemcpyHtoD", address, data, 4),
        "copy back": ("cuMemcpyDtoH", data, address, 4),
        "pageable copy": ("cuMemcpyHtoDAsync", address, data, 4, stream),
        "allocate": ("cuMemAlloc", ctypes.c_uint64(), 8),
        "free": ("cuMemFree", driver.allocate()),
        "allocate pinned": ("cuMemAllocHost", ctypes.c_uint64(), 8),
        "free pinned": ("cuMemFreeHost", pinned.value),
        "load": ("cuModuleLoadData", ctypes.c_void_p(), image(7)),
        "unload": ("cuModuleUnload", module.value),
        "create stream": ("cuStreamCreate", ctypes.c_void_p(), 1),
        "launch graph": ("cuGraphLaunch", executable.value, stream),
    }
    driver.begin_capture()
    assert driver.launch(address) == "SUCCESS"
    assert driver(*calls[call]) == "STREAM_CAPTURE_UNSUPPORTED"
    assert driver.launch(address) == "STREAM_CAPTURE_INVALIDATED"
    assert driver("cuEventRecord", event.value, stream) == "STREAM_CAPTURE_INVALIDATED"
    assert driver("cuStreamBeginCapture", stream, RELAXED) == "ILLEGAL_STATE"
    assert driver.end_capture() == ("STREAM_CAPTURE_INVALIDATED", None)
    assert driver.end_capture() == ("ILLEGAL_STATE", None)
    assert driver(*calls[call]) == "SUCCESS"
    assert driver.launch(address) == "SUCCESS"
    assert driver.synchronize() == "SUCCESS"


@pytest.mark.parametrize(
    ("mode", "own", "other"),
    [
        (GLOBAL, "STREAM_CAPTURE_UNSUPPORTED", "STREAM_CAPTURE_UNSUPPORTED"),
        (THREAD_LOCAL, "STREAM_CAPTURE_UNSUPPORTED", "SUCCESS"),
        (RELAXED, "SUCCESS", "SUCCESS"),
    ],
)
def test_a_captures_mode_states_which_threads_may_allocate(driver: Driver, mode: int, own: str, other: str) -> None:
    def allocate() -> str:
        driver("cuCtxSetCurrent", driver.context.value)
        return driver("cuMemAlloc", ctypes.c_uint64(), 8)

    driver.begin_capture(mode)
    assert on_another_thread(allocate) == other
    assert (driver.end_capture()[0] == "SUCCESS") == (other == "SUCCESS")
    driver.begin_capture(mode)
    assert allocate() == own
    assert (driver.end_capture()[0] == "SUCCESS") == (own == "SUCCESS")


@pytest.mark.parametrize("call", ["synchronize", "query", "launch graph", "upload graph", "begin"])
def test_no_mode_lets_a_stream_that_captures_be_waited_for_or_capture_again(driver: Driver, call: str) -> None:
    stream, executable = driver.stream.value, driver.executable(driver.allocate())
    calls: dict[str, tuple[Any, ...]] = {
        "synchronize": ("cuStreamSynchronize", stream),
        "query": ("cuStreamQuery", stream),
        "launch graph": ("cuGraphLaunch", executable.value, stream),
        "upload graph": ("cuGraphUpload", executable.value, stream),
        "begin": ("cuStreamBeginCapture", stream, RELAXED),
    }
    driver.begin_capture(RELAXED)
    assert driver(*calls[call]) == ("ILLEGAL_STATE" if call == "begin" else "STREAM_CAPTURE_UNSUPPORTED")
    assert driver.end_capture()[0] == "STREAM_CAPTURE_INVALIDATED"


def test_a_thread_ends_its_own_captures(driver: Driver) -> None:
    def end() -> str:
        driver("cuCtxSetCurrent", driver.context.value)
        return driver.end_capture()[0]

    driver.begin_capture(THREAD_LOCAL)
    assert on_another_thread(end) == "STREAM_CAPTURE_WRONG_THREAD"
    assert driver.end_capture()[0] == "STREAM_CAPTURE_INVALIDATED"
    driver.begin_capture(RELAXED)
    assert on_another_thread(end) == "SUCCESS"


def test_events_of_a_capture_are_not_waited_for_and_other_streams_stay_out(driver: Driver) -> None:
    before, captured, other = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    driver.success("cuStreamCreate", other, 1)
    for event in (before, captured):
        driver.success("cuEventCreate", event, EVENT_FLAGS)
    driver.success("cuEventRecord", before.value, other.value)
    driver.begin_capture()
    driver.success("cuEventRecord", captured.value, driver.stream.value)
    assert driver("cuEventSynchronize", captured.value) == "CAPTURED_EVENT"
    assert driver.end_capture()[0] == "STREAM_CAPTURE_INVALIDATED"
    driver.begin_capture()
    assert driver("cuStreamWaitEvent", driver.stream.value, before.value, 0) == "STREAM_CAPTURE_ISOLATION"
    assert driver.end_capture()[0] == "STREAM_CAPTURE_INVALIDATED"
    driver.begin_capture()
    assert driver("cuCtxSynchronize") == "STREAM_CAPTURE_UNSUPPORTED"
    assert driver.end_capture()[0] == "STREAM_CAPTURE_INVALIDATED"


def test_a_stream_waits_for_an_event_of_another(driver: Driver) -> None:
    address, event, other = driver.allocate(), ctypes.c_void_p(), ctypes.c_void_p()
    driver.success("cuStreamCreate", other, 1)
    driver.success("cuEventCreate", event, EVENT_FLAGS)
    assert driver.launch(address, value=5) == "SUCCESS"
    driver.success("cuEventRecord", event.value, driver.stream.value)
    found = np.zeros(1, np.uint32)
    driver.success("cuStreamWaitEvent", other.value, event.value, 0)
    driver.success("cuMemcpyDtoHAsync", found, address, 4, other.value)
    driver.success("cuStreamSynchronize", other.value)
    assert found[0] == 5

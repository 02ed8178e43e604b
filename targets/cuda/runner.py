"""Run a CUDA bundle's cubins through NVIDIA's driver, without TVM and without a compiler.

A batch is one copy of its inputs from pinned memory, its launches (one graph if every sequence decodes), and one small
copy of each output back into pinned memory. With a persistent kernel, one launch computes a decode step of few
sequences, instead of a graph. A thread waits for the outputs while the caller continues. Token ids stay on the
device from step to step by slot.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.bundle.manifest import GENERATE
from nearfar.compiler.ir.pages import DRAFT_PAGES, KEPT_PAGES, PAGE_DIMS, SOURCE_PAGES, STATES
from nearfar.compiler.runtime.base_runner import ArrayLayout
from nearfar.compiler.runtime.batch import Array, Batch, Chunk, make_batch
from nearfar.compiler.runtime.errors import DeviceError
from nearfar.compiler.runtime.page_bytes import UnitBlock
from nearfar.compiler.runtime.patches import AnyBatch
from nearfar.compiler.runtime.plan_runner import PlanRunner
from nearfar.compiler.runtime.runner import Limits, Result
from nearfar.compiler.runtime.variant import choose_activation

from .arch import require_device
from .decode_graphs import bucket_of, bucket_sizes, pad_batch
from .driver import Bytes, Driver, NvidiaDriver
from .graph_cache import GraphCache, GraphStatistics
from .launches import Launches
from .memory import ALIGNMENT, DeviceMemory
from .page_transfers import PageTransfers
from .persistent import PersistentKernel, PersistentOptions, requested_options

# The most batches in flight; each has its own pinned memory.
IN_FLIGHT = 4
# The dims that are equal for all batches of a runner.
SAME_DIMS = ("P", "PW", "N", "M", STATES, DRAFT_PAGES, KEPT_PAGES, SOURCE_PAGES)


@dataclass(frozen=True, slots=True)
class Staging:
    """Pinned memory of one batch."""

    inputs: Bytes
    outputs: Bytes


@dataclass(frozen=True, slots=True)
class SubmittedBatch:
    """A batch in flight: the memory that receives its outputs, the function that raises an error if a persistent kernel
    gave up before the batch had ended, the function that converts the outputs, and the future for the result.
    """

    event: Any
    staging: Staging
    outputs: dict[str, Array]
    check: Callable[[], None]
    result: Callable[[dict[str, Array]], Any]
    future: Future[Any]


def open_runner(bundle: Bundle, limits: Limits) -> CudaRunner:
    return CudaRunner(bundle, limits=limits)


def check_machine(bundle: Bundle) -> None:
    """Raises DeviceError if this machine cannot run the bundle."""
    driver = NvidiaDriver()
    try:
        require_device(bundle.path, bundle.manifest.arch, driver)
    finally:
        driver.close()


class CudaRunner(PlanRunner):
    """``activation`` None means the bundle's first dtype. ``persistent``: decode steps of few sequences are a launch of
    `PersistentKernel` each, if the bundle and the GPU allow it; None: only if the environment asks for it. Raises
    DeviceError if this machine cannot run the bundle.

    Calls come from one thread at a time. A failure on the device becomes the DeviceError of a future.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        limits: Limits | None = None,
        activation: str | None = None,
        driver: Driver | None = None,
        persistent: PersistentOptions | None = None,
    ) -> None:
        super().__init__(bundle, limits or Limits(), choose_activation(bundle.manifest, activation, bundle.path))
        self._driver = driver or NvidiaDriver()
        try:
            require_device(bundle.path, self.manifest.arch, self._driver)
            # One page and one slot of states more than each pool has, for the sequences that pad a graph's batch.
            more = {dim: group.pages + 1 for dim, group in zip(PAGE_DIMS, self.groups, strict=False)}
            more |= {KEPT_PAGES: self.groups[0].pages + 1} if self.limits.draft_pages else {}
            held = {**self.largest, **more, STATES: self.largest[STATES] + 1}
            self._memory = DeviceMemory(self._driver, bundle, self.activation, held, self._room)
            self._launches = Launches(self._driver, bundle, self.activation, self._memory.addresses)
            self._free: SimpleQueue[Staging] = SimpleQueue()
            output_bytes = max(sum(self._output_bytes(plan).values()) for plan in self.manifest.plans)
            for _ in range(IN_FLIGHT):
                inputs, outputs = (
                    self._driver.allocate_pinned(self._memory.arena_bytes),
                    self._driver.allocate_pinned(output_bytes + ALIGNMENT),
                )
                self._free.put(Staging(inputs, outputs))
        except BaseException:
            self._driver.close()
            raise
        self._sizes = bucket_sizes(min(self.limits.tokens, self.limits.sequences, self.limits.rows))
        generates = GENERATE in self.manifest.plans
        self._graphs = self._graph_cache() if generates else None
        self._persistent: PersistentKernel | None = None
        self._sent: SimpleQueue[SubmittedBatch | None] = SimpleQueue()
        self._waiter = threading.Thread(target=self._wait_for_batches, name="cuda-waiter", daemon=True)
        self._waiter.start()
        persistent = persistent or requested_options()
        if generates and persistent is not None:
            try:
                self._persistent = self._tried(bundle, persistent)
            except BaseException:
                self._release()
                raise

    @property
    def device(self) -> str:
        return f"{self._driver.name} {self._driver.arch} ({self.activation})"

    @property
    def graph_statistics(self) -> GraphStatistics | None:
        """None for a bundle that does not generate."""
        return None if self._graphs is None else self._graphs.statistics

    @property
    def persistent_kernel(self) -> PersistentKernel | None:
        """None if decode steps are graphs."""
        return self._persistent

    def wait_for_graphs(self) -> None:
        """Wait until all graphs that recent steps needed, and are likely to need next, are captured."""
        if self._graphs is not None:
            self._graphs.settle()

    def _graph_cache(self) -> GraphCache:
        return GraphCache(self._driver, GENERATE, self._launches, self._sizes, self.largest["T"], self._same_dims)

    @property
    def _same_dims(self) -> dict[str, int]:
        return {dim: self.largest[dim] for dim in SAME_DIMS}

    def _tried(self, bundle: Bundle, options: PersistentOptions) -> PersistentKernel | None:
        """A persistent kernel for the numbers of sequences for which it computes the logits of the plan's own kernels,
        bit by bit, on pages that no sequence has yet; None if there are none.
        """
        kernel = PersistentKernel(
            self._driver,
            bundle,
            GENERATE,
            self.activation,
            self._launches,
            self._sizes,
            self._same_dims,
            options,
        )
        for size in tuple(kernel.programs):
            if size > min(group.pages for group in self.groups):
                kernel.refuse(size, "the pool has fewer pages")
                continue
            chunks = [Chunk([1 + page], 0, [page], [0]) for page in range(size)]
            batch = make_batch(chunks, self.manifest.page_size)
            expected = self.forward(batch).logits
            self._persistent = kernel
            try:
                if not np.array_equal(self.forward(batch).logits, expected, equal_nan=True):
                    kernel.refuse(size, "its trial had other logits than the plan's own kernels")
            except DeviceError as error:
                kernel.refuse(size, f"its trial failed: {error.message}")
                break
            finally:
                self._persistent = None
        # The next batch clears what a trial that gave up has left.
        return kernel if kernel.programs or kernel.gave_up else None

    def _write_row(self, name: str, slot: int, values: Array) -> None:
        self._driver.upload(self._memory.addresses[name] + slot * values.nbytes, values)

    def _copy_pages(self, pairs: Sequence[tuple[int, int]], group: int) -> None:
        for name in self.page_states(group):
            address, page_bytes = self._memory.addresses[name], self._memory.page_bytes(name)
            for source, destination in pairs:
                self._driver.copy(address + destination * page_bytes, address + source * page_bytes, page_bytes)

    @cached_property
    def _transfers(self) -> PageTransfers:
        # Most runners transfer no pages, so this allocates its memory on first use.
        return PageTransfers(self._driver, self._memory.addresses, self._unit_kinds)

    def _read_units(self, blocks: Sequence[UnitBlock]) -> Future[bytes]:
        return self._transfers.read(blocks)

    def _write_units(self, blocks: Sequence[UnitBlock], data: bytes) -> None:
        self._transfers.write(blocks, data)

    def _release(self) -> None:
        if "_transfers" in self.__dict__:
            self._transfers.close()
        if self._graphs is not None:
            self._graphs.close()
        self._sent.put(None)
        self._waiter.join()
        self._driver.close()

    # --- submitting a batch ---

    def _send(
        self,
        plan: str,
        batch: AnyBatch,
        dims: Mapping[str, int],
        result: Callable[[dict[str, Array]], Result],
    ) -> Future[Result]:
        """Submit the upload, the launches and the copies of the outputs."""
        future: Future[Result] = Future()
        # A batch in flight cannot be cancelled.
        future.set_running_or_notify_cancel()
        self._staging = staging = self._free.get()
        try:
            self._run(plan, batch, dims)
            outputs = self._download_outputs(plan, staging.outputs, dims)
            word = staging.outputs[-ALIGNMENT:][:4].view(np.uint32)
            check = self._persistent.watch(word) if self._persistent is not None else lambda: None
            event = self._driver.record()
        except Exception as error:
            # The stream may still read from the staging memory. If it cannot be waited for, the device has failed, and
            # later calls report why.
            with suppress(DeviceError):
                self._driver.wait(self._driver.record())
            self._free.put(staging)
            future.set_exception(error)
        else:
            self._sent.put(SubmittedBatch(event, staging, outputs, check, result, future))
        return future

    def _run(self, plan: str, batch: AnyBatch, dims: Mapping[str, int]) -> None:
        self._make_room(dims, self._grow)
        if self._persistent is not None and self._persistent.gave_up:
            # What kernels leave as zeros may not be zeros after a launch that did not end.
            self._memory.clear_zeroed()
            self._persistent = None
        bucket = None
        # Only the caller could pad its extra inputs. Chunks of pictures do not decode.
        decodes = isinstance(batch, Batch) and not batch.extra and batch.features is None
        if self._graphs is not None and plan == GENERATE and decodes:
            bucket = bucket_of(dims, self._sizes, self.largest["T"])
        inputs = self.manifest.plan(plan).inputs
        if self._graphs is None or bucket is None or not isinstance(batch, Batch):
            self._memory.upload_batch(inputs, self.arrays(plan, batch), self._staging.inputs)
            self._launches.launch(plan, dims)
        else:
            pages, states = [group.pages for group in self.groups], self.largest[STATES]
            padded = pad_batch(batch, bucket.sequences, pages, self.manifest.page_size, states)
            self._memory.upload_batch(inputs, self.arrays(plan, padded), self._staging.inputs)
            if self._persistent is None or not self._persistent.run(bucket):
                self._graphs.run(bucket)

    def _grow(self, room: Mapping[str, int]) -> None:
        """Replace the plan's buffers. Plans with graphs, which hold addresses, have pages, so their buffers do not
        grow.
        """
        self._memory.grow(room)
        self._launches.forget_addresses()

    def _wait_for_batches(self) -> None:
        """The waiting thread: wait for each batch in order and set the result of its future."""
        while (sent := self._sent.get()) is not None:
            try:
                self._driver.wait(sent.event)
                sent.check()
                result = sent.result({name: array.copy() for name, array in sent.outputs.items()})
            # The caller receives every error, and this thread continues.
            except Exception as error:
                sent.future.set_exception(error)
            else:
                sent.future.set_result(result)
            finally:
                self._free.put(sent.staging)

    # --- outputs ---

    def _output_bytes(self, plan: str) -> dict[str, int]:
        """The largest size of each small output in bytes, rounded up to the alignment of the next one."""
        entry = self.manifest.plan(plan)
        layouts = {
            role: self.layout(entry.buffers[entry.outputs[role]], self.largest) for role in self._small_outputs(plan)
        }
        return {role: -(-4 * int(np.prod(layout.shape)) // ALIGNMENT) * ALIGNMENT for role, layout in layouts.items()}

    def _download_outputs(self, plan: str, staging: Bytes, dims: Mapping[str, int]) -> dict[str, Array]:
        entry, outputs, start = self.manifest.plan(plan), {}, 0
        for role, size in self._output_bytes(plan).items():
            name = entry.outputs[role]
            layout = self.layout(entry.buffers[name], dims)
            outputs[role] = (
                staging[start : start + 4 * int(np.prod(layout.shape))].view(layout.dtype).reshape(layout.shape)
            )
            self._driver.download(outputs[role], self._memory.addresses[name])
            start += size
        return outputs

    def _read(self, name: str, layout: ArrayLayout) -> npt.NDArray[Any]:
        array = np.empty(layout.shape, layout.dtype)
        self._driver.download(array, self._memory.addresses[name])
        self._driver.wait(self._driver.record())
        return array

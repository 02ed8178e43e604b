"""Runs a CUDA bundle: cubins through NVIDIA's driver, without TVM and without a compiler.

A batch takes one copy of its inputs from pinned memory, its launches (one graph where every sequence decodes), and one small copy for each
output back into pinned memory. A thread waits for these; the caller goes on. Token ids stay on the device from step to step by slot.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.bundle.manifest import Manifest
from nearfar.compiler.errors import DeviceError
from nearfar.compiler.ir.expr import evaluate
from nearfar.compiler.runtime.batch import Array, Batch, FloatArray, Limits, Output, require_task, require_within
from nearfar.compiler.runtime.variant import choose_activation

from .decode_graphs import Bucket, bucket_of, bucket_sizes, filled_up
from .driver import Bytes, Driver, NvidiaDriver
from .launches import Launches
from .memory import ALIGNMENT, DeviceMemory

# Batches on their way at once; each has pinned memory of its own.
IN_FLIGHT = 4
SAMPLED = ("next_token_ids", "token_logprobs", "top_token_ids", "top_logprobs")


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch on its way: where its outputs come to, what is made of them, and who is told."""

    event: Any
    staging: Staging
    outputs: dict[str, Array]
    result: Callable[[dict[str, Array]], Any]
    future: Future[Any]


@dataclass(frozen=True, slots=True)
class Staging:
    """Pinned memory of one batch."""

    inputs: Bytes
    outputs: Bytes


def open_runner(bundle: Bundle, limits: Limits) -> CudaRunner:
    return CudaRunner(bundle, limits=limits)


class CudaRunner:
    """``activation`` None takes the bundle's first. Raises DeviceError where this machine cannot run the bundle.

    Calls come from one thread at a time.
    """

    def __init__(
        self, bundle: Bundle, *, limits: Limits | None = None, activation: str | None = None, driver: Driver | None = None
    ) -> None:
        self._manifest = bundle.manifest
        limits = limits or Limits()
        context = self._manifest.context
        self._num_pages = limits.pages or self._manifest.pages_for(context)
        self.limits = replace(limits, pages=self._num_pages)
        self._most = {
            "S": limits.tokens, "B": limits.sequences, "R": limits.rows, "P": self._num_pages, "T": context,
            "L": limits.sequences * self._manifest.pages_for(context), "N": limits.sequences, "A": limits.rows, "W": limits.rows,
            "M": limits.adapters, "G": limits.tokens,
        }  # fmt: skip
        self.activation = choose_activation(self._manifest, activation, bundle.path)
        self._driver = driver or NvidiaDriver()
        try:
            require_arch(self._manifest, self._driver, bundle.path)
            # One page more than the pool's, for the sequences that fill a graph's batch up.
            held = {**self._most, "P": self._num_pages + 1}
            self._memory = DeviceMemory(self._driver, bundle, self.activation, held)
            self._launches = Launches(self._driver, self._manifest, bundle.path, self.activation, self._memory.addresses)
            output_bytes = sum(self._output_size(name) for name in self._small_outputs())
            self._free: SimpleQueue[Staging] = SimpleQueue()
            for _ in range(IN_FLIGHT):
                inputs, outputs = self._driver.allocate_pinned(self._memory.arena_bytes), self._driver.allocate_pinned(output_bytes)
                self._free.put(Staging(inputs, outputs))
        except DeviceError:
            self._driver.close()
            raise
        self._sizes = bucket_sizes(min(limits.tokens, limits.sequences, limits.rows))
        self._graphs: dict[Bucket, Any] = {}
        self._sent: SimpleQueue[Sent | None] = SimpleQueue()
        self._waiter = threading.Thread(target=self._wait_for_batches, name="cuda-waiter", daemon=True)
        self._waiter.start()

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    @property
    def num_pages(self) -> int:
        return self._num_pages

    @property
    def device(self) -> str:
        return f"{self._driver.name} {self._driver.arch} ({self.activation})"

    def forward(self, batch: Batch) -> Output:
        return self.submit(batch).result()

    def submit(self, batch: Batch) -> Future[Output]:
        """Raises RequestError for a batch beyond the limits; what fails on the device is the future's DeviceError."""
        require_task(self._manifest, embeds=False)
        return self._send(batch, lambda outputs, dims: Output(**outputs, read_logits=lambda: self._read_logits(dims)))

    def embed(self, batch: Batch) -> FloatArray:
        require_task(self._manifest, embeds=True)
        embeddings: FloatArray = self._send(batch, lambda outputs, _: outputs["embeddings"]).result()
        return embeddings

    def write_state(self, name: str, slot: int, values: Array) -> None:
        self._driver.upload(self._memory.addresses[name] + slot * self._memory.state_row_bytes(name), np.ascontiguousarray(values))

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        for name in self._manifest.page_states():
            address, page_bytes = self._memory.addresses[name], self._memory.state_row_bytes(name)
            for source, destination in pairs:
                self._driver.copy(address + destination * page_bytes, address + source * page_bytes, page_bytes)

    def close(self) -> None:
        self._sent.put(None)
        self._waiter.join()
        self._driver.close()

    # --- a batch on its way ------------------------------------------------------------------------------------------------------

    def _send(self, batch: Batch, result: Callable[[dict[str, Any], dict[str, int]], Any]) -> Future[Any]:
        """Upload, launch, and let the outputs follow; ``result`` makes the future's result of these and the dims."""
        dims = batch.dims(self._num_pages, self._most["N"], self._most["M"])
        require_within(dims, self._most)
        future: Future[Any] = Future()
        # What is on its way cannot be cancelled.
        future.set_running_or_notify_cancel()
        staging = self._free.get()
        try:
            bucket = bucket_of(dims, self._sizes, self._manifest.context)
            if bucket is None:
                self._memory.upload_batch(batch, staging.inputs)
                self._launches.launch(dims)
            else:
                padded = filled_up(batch, bucket.sequences, self._num_pages, self._manifest.page_size)
                self._memory.upload_batch(padded, staging.inputs)
                self._driver.replay(self._graph(bucket, dims))
            outputs = self._download_outputs(staging.outputs, dims)
            event = self._driver.record()
        except Exception as error:
            self._free.put(staging)
            future.set_exception(error)
        else:
            self._sent.put(Sent(event, staging, outputs, lambda arrays: result(arrays, dims), future))
        return future

    def _graph(self, bucket: Bucket, dims: dict[str, int]) -> Any:
        if bucket not in self._graphs:
            self._driver.begin_capture()
            self._launches.launch(bucket.dims(dims))
            self._graphs[bucket] = self._driver.end_capture()
        return self._graphs[bucket]

    def _wait_for_batches(self) -> None:
        """The waiter's work: in order, wait for a batch and give its future what came of it."""
        self._driver.enter_thread()
        while (sent := self._sent.get()) is not None:
            try:
                self._driver.wait(sent.event)
                result = sent.result({name: array.copy() for name, array in sent.outputs.items()})
            # Whatever it is, the caller is told, and this thread goes on.
            except Exception as error:
                sent.future.set_exception(error)
            else:
                sent.future.set_result(result)
            finally:
                self._free.put(sent.staging)

    # --- outputs -----------------------------------------------------------------------------------------------------------------

    def _small_outputs(self) -> tuple[str, ...]:
        """What comes back with every batch."""
        return SAMPLED if self._manifest.embedding is None else ("embeddings",)

    def _output_size(self, output: str) -> int:
        """Bytes at most, up to where the next output may begin."""
        entry = self._manifest.plan.buffers[self._manifest.plan.outputs[output]]
        size = 4 * int(np.prod([evaluate(extent, self._most) for extent in entry.shape]))
        return -(-size // ALIGNMENT) * ALIGNMENT

    def _download_outputs(self, room: Bytes, dims: dict[str, int]) -> dict[str, Array]:
        outputs = {}
        start = 0
        for output in self._small_outputs():
            name = self._manifest.plan.outputs[output]
            entry = self._manifest.plan.buffers[name]
            shape = [evaluate(extent, dims) for extent in entry.shape]
            array = room[start : start + 4 * int(np.prod(shape))].view(entry.dtype).reshape(shape)
            self._driver.download(array, self._memory.addresses[name])
            outputs[output] = array
            start += self._output_size(output)
        return outputs

    def _read_logits(self, dims: dict[str, int]) -> FloatArray:
        name = self._manifest.plan.outputs["logits"]
        logits = np.empty([evaluate(extent, dims) for extent in self._manifest.plan.buffers[name].shape], np.float32)
        self._driver.download(logits, self._memory.addresses[name])
        self._driver.wait(self._driver.record())
        return logits


def require_arch(manifest: Manifest, driver: Driver, path: Path) -> None:
    """Raise DeviceError unless the GPU runs the bundle's cubins: it must be of the same generation, and no older."""
    compiled, found = ((arch[:-1], int(arch[-1])) for arch in ((manifest.arch or "").rstrip("af"), driver.arch))
    if compiled[0] != found[0] or compiled[1] > found[1]:
        raise DeviceError(
            f"{path}: was compiled for {manifest.arch}, this GPU ({driver.name}) is {driver.arch}; "
            f"compile the model with --target cuda --arch {driver.arch}"
        )

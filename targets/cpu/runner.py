"""Runs a CPU bundle: its kernels on this machine's threads, weights mapped from its files.

Everything is allocated once: pages, plan buffers at their largest, scratch. A worker thread takes what is asked for in order, so that the
thread that asks can go on; a batch is one call into the library, during which Python runs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.bundle.manifest import KernelEntry, Manifest, StepEntry
from nearfar.compiler.errors import DeviceError
from nearfar.compiler.ir.expr import evaluate
from nearfar.compiler.ir.rope import rope_table
from nearfar.compiler.runtime.batch import Array, Batch, FloatArray, Limits, Output, require_task, require_within
from nearfar.compiler.runtime.variant import choose_activation, choose_variant, stored_dtype

from ..threads import default_threads
from .levels import features, require
from .library import Launches, Library

# Vectors may reach behind the last element of a buffer; and they load faster where a cache line begins.
ALIGNMENT = 64


def open_runner(bundle: Bundle, limits: Limits) -> CpuRunner:
    return CpuRunner(bundle, limits=limits)


class CpuRunner:
    """``activation`` None takes the first that the bundle offers; ``threads`` None those of `default_threads`; ``allowed`` None all
    features of the machine. Raises DeviceError where this machine cannot run the bundle.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        limits: Limits | None = None,
        activation: str | None = None,
        threads: int | None = None,
        allowed: Collection[str] | None = None,
    ) -> None:
        self._manifest = bundle.manifest
        found = features()
        require(self._manifest.arch, found)
        self._features = found if allowed is None else found & set(allowed)
        self.activation = choose_activation(self._manifest, activation, bundle.path)
        limits = limits or Limits()
        self._num_pages = limits.pages or self._manifest.pages_for(self._manifest.context)
        self.limits = replace(limits, pages=self._num_pages)
        self._most = {
            "S": limits.tokens, "B": limits.sequences, "R": limits.rows, "P": self._num_pages,
            "L": self._num_pages * limits.sequences, "T": self._manifest.context,
            "N": limits.sequences, "A": limits.rows, "W": limits.rows, "M": limits.adapters, "G": limits.tokens,
        }  # fmt: skip
        self.threads = threads or default_threads()
        (file,) = {kernel.file for kernel in self._manifest.kernels.values()}
        self._library = Library(bundle.path / file)
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._allocate(bundle)
        self._prepared: dict[tuple[str, ...], tuple[Launches, npt.NDArray[np.intp]]] = {}
        # The distinct sizes that kernels take: dims.
        self._sizes = sorted({str(size) for kernel in self._manifest.kernels.values() for size in kernel.uniforms})
        self._worker = ThreadPoolExecutor(1, "nearfar-cpu")
        self._worker.submit(self._library.start_threads, self.threads).result()

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    @property
    def num_pages(self) -> int:
        return self._num_pages

    @property
    def device(self) -> str:
        level = next((name for name in ("avx512_vnni", "avx512", "avx2", "dotprod", "neon") if name in self._features), "")
        return f"{self._manifest.arch} with {level}, {self.threads} threads ({self.activation})"

    def forward(self, batch: Batch) -> Output:
        """The next tokens of the sampled rows. Raises RequestError for a batch larger than the limits given at the start."""
        return self.submit(batch).result()

    def submit(self, batch: Batch) -> Future[Output]:
        """As `forward`, on the worker; a batch beyond the limits is refused at once."""
        require_task(self._manifest, embeds=False)
        dims = self._dims(batch)
        return self._worker.submit(self._forward, batch, dims)

    def embed(self, batch: Batch) -> FloatArray:
        """The embeddings (R, E) of the sampled rows. Raises RequestError as `forward`."""
        require_task(self._manifest, embeds=True)
        dims = self._dims(batch)
        embeddings: FloatArray = self._worker.submit(self._embed, batch, dims).result()
        return embeddings

    def write_state(self, name: str, slot: int, values: Array) -> None:
        row = self._arrays[name][slot]
        assert values.shape == row.shape, (name, values.shape, row.shape)
        self._worker.submit(np.copyto, row, values.astype(row.dtype))

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        assert all(0 <= page < self._num_pages for pair in pairs for page in pair), pairs
        self._worker.submit(self._copy_pages, tuple(pairs))

    def close(self) -> None:
        """Wait for what has been asked for, then give the memory back."""
        self._worker.shutdown()
        self._prepared.clear()
        self._arrays.clear()

    def _dims(self, batch: Batch) -> dict[str, int]:
        """A batch's dims. Raises RequestError for those beyond the limits."""
        dims = batch.dims(self._num_pages, self._most["N"], self._most["M"])
        require_within(dims, self._most)
        return dims

    # --- memory ----------------------------------------------------------------------------------------------------------------

    def _allocate(self, bundle: Bundle) -> None:
        plan = self._manifest.plan
        shards = [np.memmap(bundle.path / shard.file, np.uint8, "r") for shard in self._manifest.shards]
        for name, weight in self._manifest.weights.items():
            for plane in weight.planes:
                data = shards[plane.shard][plane.offset : plane.offset + plane.size]
                self._arrays[f"{name}.{plane.name}" if weight.quantization else name] = data
        for name, constant in plan.constants.items():
            self._arrays[name] = aligned(rope_table(constant.inverse_frequencies, constant.shape[0], constant.scale))
        scratch = {f"scratch.{name}": entry for name, entry in self._manifest.scratch.items()}
        for name, entry in {**plan.buffers, **plan.states, **plan.inputs, **scratch}.items():
            shape = tuple(evaluate(size, self._most) for size in entry.shape)
            if np.prod(shape, dtype=np.int64) >= 2**31:
                raise DeviceError(
                    f"{bundle.path}: {name} would have {np.prod(shape, dtype=np.int64):,} elements; ask for fewer pages or rows"
                )
            self._arrays[name] = zeros(shape, self._dtype(entry.dtype))

    def _dtype(self, dtype: str) -> str:
        return stored_dtype(self.activation) if dtype == "activation" else dtype

    # --- work, on the worker's thread ------------------------------------------------------------------------------------------

    def _forward(self, batch: Batch, dims: dict[str, int]) -> Output:
        self._run(batch, dims)
        return Output(
            next_token_ids=self._read("next_token_ids", dims),
            token_logprobs=self._read("token_logprobs", dims),
            top_token_ids=self._read("top_token_ids", dims),
            top_logprobs=self._read("top_logprobs", dims),
            read_logits=lambda: self._worker.submit(self._read, "logits", dims).result(),
        )

    def _embed(self, batch: Batch, dims: dict[str, int]) -> FloatArray:
        self._run(batch, dims)
        embeddings: FloatArray = self._read("embeddings", dims)
        return embeddings

    def _run(self, batch: Batch, dims: dict[str, int]) -> None:
        arrays = batch.arrays()
        for name in self._manifest.plan.inputs:
            values = arrays[name]
            self._arrays[name].reshape(-1)[: values.size] = values.reshape(-1)
        launches, places = self._launches(dims)
        values_of_sizes = np.array([dims[size] for size in self._sizes], np.int64)
        self._library.run(launches, values_of_sizes[places])

    def _launches(self, dims: dict[str, int]) -> tuple[Launches, npt.NDArray[np.intp]]:
        """The launches of a batch, and of each of their scalars the place in ``_sizes``."""
        plan = self._manifest.plan
        chosen = {
            name: choose_variant(self._manifest, step, self.activation, self._features, dims).kernels
            for name, step in {step.variants: step for step in plan.steps}.items()
        }
        key = tuple(kernel for kernels in chosen.values() for kernel in kernels)
        if key not in self._prepared:
            calls, places = [], []
            for step in plan.steps:
                for name in chosen[step.variants]:
                    kernel = self._manifest.kernels[name]
                    calls.append((kernel.entry, self._pointers(step, kernel), len(kernel.uniforms)))
                    places += [self._sizes.index(str(size)) for size in kernel.uniforms]
            self._prepared[key] = self._library.prepare(calls), np.array(places, np.intp)
        return self._prepared[key]

    def _pointers(self, step: StepEntry, kernel: KernelEntry) -> list[int]:
        names = {**step.inputs, **step.outputs, "scratch": "scratch"}
        roles = ((names[binding.role], binding.plane) for binding in kernel.bindings)
        return [self._arrays[f"{name}.{plane}" if plane else name].ctypes.data for name, plane in roles]

    def _read(self, output: str, dims: dict[str, int]) -> Any:
        name = self._manifest.plan.outputs[output]
        shape = [evaluate(size, dims) for size in self._manifest.plan.buffers[name].shape]
        return self._arrays[name].reshape(-1)[: int(np.prod(shape))].reshape(shape).copy()

    def _copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        for name in self._manifest.page_states():
            for source, destination in pairs:
                self._arrays[name][destination] = self._arrays[name][source]


def zeros(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    """An array on a cache line, with room for a vector behind it. Pages that are never written take no memory."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 2 * ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def aligned(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array = zeros(values.shape, str(values.dtype))
    array[...] = values
    return array

"""Run a CPU bundle: its kernels run on this machine's threads.

Everything is allocated once: pages, plan buffers at their largest, scratch. A worker thread runs all calls in order, so
that the caller can continue; a caller that waits runs its call itself. A batch is one call into the library, which
releases Python's lock.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from threading import Lock, get_ident
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.bundle.manifest import GENERATE
from nearfar.compiler.runtime.base_runner import ArrayLayout
from nearfar.compiler.runtime.batch import Array
from nearfar.compiler.runtime.errors import DeviceError
from nearfar.compiler.runtime.page_bytes import UnitBlock, gather, require_size, scatter, unit_blocks
from nearfar.compiler.runtime.patches import AnyBatch
from nearfar.compiler.runtime.plan_runner import PlanRunner, bound_arrays, constant_tables, passing_entries
from nearfar.compiler.runtime.runner import Limits, Result, done
from nearfar.compiler.runtime.variant import KernelChoice, choose_activation

from ..threads import default_threads
from .layer_reads import FEWEST_TOKENS, LayerPart, LayerRead, layer_parts
from .levels import features, require, require_needs
from .library import Launches, Library
from .weight_memory import ALIGNMENT, weight_planes


def open_runner(bundle: Bundle, limits: Limits) -> CpuRunner:
    return CpuRunner(bundle, limits=limits)


def check_machine(bundle: Bundle) -> None:
    """Raises DeviceError if this machine cannot run the bundle."""
    require(bundle.manifest.arch, features())


class CpuRunner(PlanRunner):
    """``activation`` None means the first dtype that the bundle offers; ``threads`` None the number from
    `default_threads`; ``allowed`` None all features of the machine. Raises DeviceError if this machine cannot run the
    bundle.
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
        found = features()
        require(bundle.manifest.arch, found)
        require_needs(bundle.manifest)
        super().__init__(bundle, limits or Limits(), choose_activation(bundle.manifest, activation, bundle.path))
        self._features = found if allowed is None else found & set(allowed)
        self.threads = threads or default_threads()
        (file,) = {kernel.file for kernel in self.manifest.kernels.values()}
        self._library = Library.of_bundle(bundle, file)
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._allocate(bundle)
        self._choice = KernelChoice(self.manifest, self.activation, self._features)
        self._prepared: dict[tuple[str, int], tuple[Launches, npt.NDArray[np.intp], list[int]]] = {}
        # What is read part by part, of which batches. Batches are numbered as they are submitted, and as they begin.
        self._layer_reads: list[LayerRead] = []
        self._submitted = self._begun = 0
        # The distinct sizes that kernels receive: dims.
        self._sizes = sorted({str(size) for kernel in self.manifest.kernels.values() for size in kernel.uniforms})
        self._worker = ThreadPoolExecutor(1, "nearfar-cpu")
        # The worker's calls that have not ended, who may use the arrays, and the thread that does so instead of it.
        self._open: list[Callable[..., Any]] = []
        self._turn = Lock()
        self._caller: int | None = None
        self._process = os.getpid()
        self._library.start_threads(self.threads)

    @property
    def device(self) -> str:
        names = ("amx_bf16", "avx512_vnni", "avx512", "avx2", "dotprod", "neon")
        level = next((name for name in names if name in self._features), "")
        return f"{self.manifest.arch} with {level}, {self.threads} threads ({self.activation})"

    def _require_own_threads(self) -> None:
        """A fork has none of its parent's threads, so kernels would wait for them forever."""
        if os.getpid() != self._process:
            raise DeviceError(
                "the runner was opened before this process was forked, and has no threads in it; open it afterwards, "
                "or start processes with the method spawn"
            )

    def _in_order(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        self._require_own_threads()
        if self._caller == get_ident():
            return done(function(*arguments))

        def work() -> Result:
            with self._turn:
                try:
                    return function(*arguments)
                finally:
                    self._open.pop()

        self._open.append(function)
        return self._worker.submit(work)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._require_own_threads()
        # Waking the worker and then the caller takes 0.1 ms, if the weights have passed through the caches meanwhile.
        if self._open:
            yield
            return
        with self._turn:
            self._caller = get_ident()
            try:
                yield
            finally:
                self._caller = None

    def read_layers(self, units: Sequence[Sequence[int]]) -> list[Future[bytes]]:
        """As `read_pages`, but part by part, each as soon as the batch that was submitted last has computed it."""
        self._require_open()
        blocks = unit_blocks(self.manifest.model, self._unit_kinds, units)
        read = LayerRead(self._submitted, [part.of(blocks) for part in self._layer_parts])
        self._layer_reads.append(read)

        def finish() -> None:
            self._layer_reads.remove(read)
            read.copy(len(read.parts), self._arrays)

        self._in_order(finish)
        return read.futures

    def write_layers(self, units: Sequence[Sequence[int]], data: bytes) -> None:
        """Write what `read_layers` has read, one part after the other. Raises RequestError as `write_pages`."""
        self._require_open()
        blocks = unit_blocks(self.manifest.model, self._unit_kinds, units)
        require_size(self.manifest.model, blocks, data)
        self._write_units([each for part in self._layer_parts for each in part.of(blocks)], data)

    @cached_property
    def _layer_parts(self) -> list[LayerPart]:
        """Of a model that generates text."""
        return layer_parts(self._unit_kinds, self.manifest.plan(GENERATE).steps)

    def _send(
        self,
        plan: str,
        batch: AnyBatch,
        dims: Mapping[str, int],
        result: Callable[[dict[str, Array]], Result],
    ) -> Future[Result]:
        self._submitted += 1
        return super()._send(plan, batch, dims, result)

    def _release(self) -> None:
        self._worker.shutdown()
        with self._turn:
            self._library.stop_threads()
            self._prepared.clear()
            self._arrays.clear()

    def _allocate(self, bundle: Bundle) -> None:
        manifest = self.manifest
        self._arrays |= weight_planes(bundle)
        self._arrays |= {name: aligned(table) for name, table in constant_tables(manifest).items()}
        entries = {**passing_entries(manifest), **manifest.states, **manifest.inputs}
        for name, entry in entries.items():
            layout = self.layout(entry, self.largest)
            elements = math.prod(layout.shape)
            if elements >= 2**31:
                raise DeviceError(
                    f"{bundle.path}: {name} would have {elements:,} elements; request fewer pages or rows"
                )
            self._arrays[name] = zeros(layout.shape, layout.dtype)

    # --- in order ---

    def _run(self, plan: str, batch: AnyBatch, dims: Mapping[str, int]) -> None:
        self._begun += 1
        try:
            self._run_now(plan, batch, dims)
        except Exception as error:
            for read in self._reads_of_batch():
                read.fail(error)
            raise

    def _run_now(self, plan: str, batch: AnyBatch, dims: Mapping[str, int]) -> None:
        arrays = self.arrays(plan, batch)
        for name in self.manifest.plan(plan).inputs:
            values = arrays[name]
            self._arrays[name].reshape(-1)[: values.size] = values.reshape(-1)
        launches, indices, stops = self._launches(plan, dims)
        values_of_sizes = np.array([dims[size] for size in self._sizes], np.int64)
        if stops and dims["S"] < FEWEST_TOKENS:
            stops = []

        def reached(part: int) -> None:
            for read in self._reads_of_batch():
                read.copy(part + 1, self._arrays)

        self._library.run(launches, values_of_sizes[indices], stops, reached)

    def _reads_of_batch(self) -> list[LayerRead]:
        """Of the batch that runs now."""
        return [read for read in list(self._layer_reads) if read.number == self._begun]

    def _launches(self, plan: str, dims: Mapping[str, int]) -> tuple[Launches, npt.NDArray[np.intp], list[int]]:
        """The launches of a batch, the index in ``_sizes`` of each of their scalars, and after how many launches the
        batch has finished with each part of the pages.
        """
        entry = self.manifest.plan(plan)
        chosen = self._choice.of(plan, dims)
        # The same choice is the same object, which `_choice` keeps.
        key = plan, id(chosen)
        if key not in self._prepared:
            calls, indices, ends = [], [], []
            for step in entry.steps:
                for kernel in (self.manifest.kernels[name] for name in chosen[step.variants]):
                    pointers = [self._arrays[name].ctypes.data for name in bound_arrays(self.manifest, step, kernel)]
                    calls.append((kernel.entry, pointers, len(kernel.uniforms)))
                    indices += [self._sizes.index(str(size)) for size in kernel.uniforms]
                ends.append(len(calls))
            stops = [ends[part.last_step] for part in self._layer_parts] if plan == GENERATE else []
            self._prepared[key] = self._library.prepare(calls), np.array(indices, np.intp), stops
        return self._prepared[key]

    def _read(self, name: str, layout: ArrayLayout) -> npt.NDArray[Any]:
        return self._arrays[name].reshape(-1)[: math.prod(layout.shape)].reshape(layout.shape).copy()

    def _write_row(self, name: str, slot: int, values: Array) -> None:
        self._arrays[name][slot] = values

    def _copy_pages(self, pairs: Sequence[tuple[int, int]], group: int) -> None:
        for name in self.page_states(group):
            for source, destination in pairs:
                self._arrays[name][destination] = self._arrays[name][source]

    def _read_units(self, blocks: Sequence[UnitBlock]) -> Future[bytes]:
        return self._in_order(gather, blocks, self._arrays)

    def _write_units(self, blocks: Sequence[UnitBlock], data: bytes) -> None:
        self._in_order(scatter, blocks, self._arrays, data)


def zeros(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    """An array aligned to a cache line, with space for a vector after it. Pages that are never written use no
    memory.
    """
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 2 * ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def aligned(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array = zeros(values.shape, str(values.dtype))
    array[...] = values
    return array

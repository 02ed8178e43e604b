"""Run an ONNX bundle on ONNX Runtime's CPU provider, with continuous batching: sequences come and go, each with its own
length.

ONNX Runtime has no pages there: its attention reads rows, each with its own cache. So a page of an export holds an
entire sequence, and is a row of `KvRows`. In a batch, sequences with one new token are one call, on adjacent rows. A
sequence with several is a separate call, because attention supports several new tokens after a past for a single row
only. Past and present share memory.

A worker thread runs requests in order, so that the calling thread can continue.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from nearfar.compiler.bundle.folder import ExportBundle
from nearfar.compiler.bundle.manifest import ExportManifest
from nearfar.compiler.runtime.base_runner import ArrayLayout, BaseRunner
from nearfar.compiler.runtime.batch import Array, Batch
from nearfar.compiler.runtime.errors import DeviceError
from nearfar.compiler.runtime.host_sampler import HostSampler
from nearfar.compiler.runtime.runner import Limits, Output, Result

from ..threads import default_threads
from .kv_rows import KvRows
from .rows_decoder import RowsDecoder
from .session import require_packages, require_runnable
from .text_runner import OnnxTextRunner


def open_runner(bundle: ExportBundle, limits: Limits) -> OnnxRunner | OnnxTextRunner:
    """A runner of text, or of embeddings or scores."""
    return (OnnxRunner if bundle.manifest.generates else OnnxTextRunner)(bundle, limits=limits)


def check_machine(bundle: ExportBundle) -> None:
    """Raises ToolError if a package is missing, and what `require_runnable` raises."""
    require_packages()
    require_runnable(bundle)


@dataclass(frozen=True, slots=True)
class NewTokens:
    """The new tokens of one sequence: its page, the tokens, the position of the first, its sampled rows by their index
    among the batch's sampled rows, and the slots of its states, (None, -1) if the model has none.
    """

    page: int
    token_ids: list[int]
    start: int
    samples: dict[int, int]
    slots: tuple[int | None, int]


class OnnxRunner(BaseRunner[ExportManifest]):
    """``threads`` None: NEARFAR_THREADS, or one per core. Raises the errors of `open_session`, and DeviceError for more
    pages than memory.
    """

    def __init__(self, bundle: ExportBundle, *, limits: Limits | None = None, threads: int | None = None) -> None:
        super().__init__(bundle.manifest, limits or Limits())
        self.threads = threads or default_threads()
        self._decoder = RowsDecoder(bundle, self.threads, self.limits)
        self._kv = self._allocate(bundle)
        self._sampler = HostSampler(self.manifest.spec.vocab_size, self.limits.sequences)
        self._worker = ThreadPoolExecutor(1, "nearfar-onnx")

    @property
    def device(self) -> str:
        return f"ONNX Runtime on the CPU, {self.threads} threads ({self.manifest.activation})"

    def _in_order(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        return self._worker.submit(function, *arguments)

    def _generate(self, batch: Batch, plan: str, dims: Mapping[str, int]) -> Future[Output]:  # noqa: ARG002
        return self._in_order(self._forward, batch)

    @property
    def _slot_states(self) -> Mapping[str, ArrayLayout]:
        return self._sampler.layouts

    def _write_row(self, name: str, slot: int, values: Array) -> None:
        self._sampler.write(name, slot, values)

    def _copy_pages(self, pairs: Sequence[tuple[int, int]], group: int) -> None:  # noqa: ARG002
        for source, destination in pairs:
            self._kv.copy(source, destination)

    def _release(self) -> None:
        self._worker.shutdown()
        self._decoder.close()
        self._kv.planes.clear()

    def _allocate(self, bundle: ExportBundle) -> KvRows:
        context = self.manifest.context
        dtype = "int8" if self.manifest.kv == "q8" else self.manifest.activation
        try:
            return KvRows(self._decoder.cache_shapes, self.num_pages, context, dtype)
        except MemoryError as error:
            raise DeviceError(
                f"{bundle.path}: there is no memory for the keys and values of {self.num_pages} sequences of "
                f"{context:,} tokens; "
                "allow fewer with --max-sequences or --kv-memory, or compile for a shorter context with --context"
            ) from error

    # --- work, on the worker's thread ---

    def _forward(self, batch: Batch) -> Output:
        sequences = self._sequences(batch)
        single = [each for each in sequences if len(each.token_ids) == 1]
        if single:
            self._decode(single)
        for each in sequences:
            if len(each.token_ids) > 1:
                self._prefill(each)
        return self._sampler.choose(batch, self._decoder.logits[: len(batch.sample_rows)])

    def _sequences(self, batch: Batch) -> list[NewTokens]:
        # Python's own numbers: for arrays as short as a decode step's, each numpy call takes longer than all of this.
        token_ids, bounds = self._sampler.token_ids(batch).tolist(), batch.seq_starts.tolist()
        pages, starts = batch.page_ids[batch.page_indptr[:-1]].tolist(), batch.positions[batch.seq_starts[:-1]].tolist()
        slots = [[None, -1]] * len(pages) if batch.state_slots is None else batch.state_slots.tolist()
        found = [
            NewTokens(page, token_ids[begin:end], start, {}, (read if start else None, write))
            for page, start, (read, write), (begin, end) in zip(pages, starts, slots, pairwise(bounds), strict=True)
        ]
        for sample, row in enumerate(batch.sample_rows.tolist()):
            index = bisect_right(bounds, row) - 1
            found[index].samples[sample] = row - bounds[index]
        return found

    def _decode(self, sequences: Sequence[NewTokens]) -> None:
        """One new token of each sequence, in one call."""
        kv = self._kv
        rows = kv.span([each.page for each in sequences])
        taken = {kv.row(each.page): each for each in sequences}
        others = [row for row in rows if row not in taken]
        with kv.fillers(others) as filler_positions:
            filled = dict(zip(others, filler_positions, strict=True))
            token_ids = [taken[row].token_ids if row in taken else [0] for row in rows]
            positions = [taken[row].start if row in taken else filled[row] for row in rows]
            samples = {sample: kv.row(each.page) - rows.start for each in sequences for sample in each.samples}
            slots = [taken[row].slots if row in taken else None for row in rows]
            self._decoder.run(kv.planes, rows, token_ids, positions, samples, slots)
        for row, each in taken.items():
            kv.wrote(row, each.start + 1)

    def _prefill(self, sequence: NewTokens) -> None:
        """Several new tokens of one sequence."""
        row, end = self._kv.row(sequence.page), sequence.start + len(sequence.token_ids)
        rows, slots = range(row, row + 1), [sequence.slots]
        self._decoder.run(self._kv.planes, rows, [sequence.token_ids], [end - 1], sequence.samples, slots)
        self._kv.wrote(row, end)

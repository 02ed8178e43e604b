"""Run an ONNX bundle of an embedding model or a classifier on ONNX Runtime's CPU provider: complete texts, padded to
the longest of a batch.

A worker thread runs batches in order, so that the calling thread can continue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np

from nearfar.compiler.arch.encoder import TEXT_INPUTS
from nearfar.compiler.bundle.entries import InputEntry
from nearfar.compiler.bundle.folder import ExportBundle
from nearfar.compiler.bundle.manifest import ExportManifest
from nearfar.compiler.runtime.base_runner import ArrayLayout, BaseRunner
from nearfar.compiler.runtime.batch import Array, Batch, FloatArray
from nearfar.compiler.runtime.inputs import require_texts
from nearfar.compiler.runtime.runner import Limits, Result

from ..threads import default_threads
from .session import open_session

# The inputs of a batch; types of tokens are optional, and `require_texts` checks them.
INPUTS = {
    name: InputEntry.model_validate({"shape": shape, "dtype": dtype})
    for name, (shape, dtype) in TEXT_INPUTS.items()
    if name != "token_types"
}


class OnnxTextRunner(BaseRunner[ExportManifest]):
    """``threads`` None: NEARFAR_THREADS, or one per core. Raises the errors of `open_session`."""

    def __init__(self, bundle: ExportBundle, *, limits: Limits | None = None, threads: int | None = None) -> None:
        super().__init__(bundle.manifest, limits or Limits())
        self.threads = threads or default_threads()
        self._session = open_session(bundle, self.threads)
        self._names = {each.name for each in self._session.get_inputs()}
        self._worker = ThreadPoolExecutor(1, "nearfar-onnx")

    @property
    def device(self) -> str:
        return f"ONNX Runtime on the CPU, {self.threads} threads ({self.manifest.activation})"

    def _inputs(self, plan: str) -> Mapping[str, InputEntry]:  # noqa: ARG002
        return INPUTS

    def _accept(self, batch: Batch, plan: str) -> Mapping[str, int]:
        dims = super()._accept(batch, plan)
        require_texts(self.manifest, batch)
        return dims

    def _encode(self, plan: str, batch: Batch, dims: Mapping[str, int]) -> Future[FloatArray]:  # noqa: ARG002
        return self._in_order(self._run, batch)

    def _in_order(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        return self._worker.submit(function, *arguments)

    def _run(self, batch: Batch) -> FloatArray:
        bounds = list(pairwise(batch.seq_starts.tolist()))
        shape = len(bounds), max(stop - start for start, stop in bounds)
        mask, ids, types = (np.zeros(shape, np.int64) for _ in range(3))
        for row, (start, stop) in enumerate(bounds):
            mask[row, : stop - start], ids[row, : stop - start] = 1, batch.token_ids[start:stop]
            if batch.token_types is not None:
                types[row, : stop - start] = batch.token_types[start:stop]
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        classifier = self.manifest.classifier
        (found,) = self._session.run(
            ["sentence_embedding" if classifier is None else "logits"],
            {name: value for name, value in feeds.items() if name in self._names},
        )
        rows: FloatArray = np.asarray(found, np.float32)
        return rows[mask.astype(bool)] if classifier is not None and classifier.per_token else rows

    def _generate(self, batch: Batch, plan: str, dims: Mapping[str, int]) -> NoReturn:  # noqa: ARG002
        raise AssertionError(self.manifest.plan_names)

    @property
    def _slot_states(self) -> Mapping[str, ArrayLayout]:
        return {}

    def _write_row(self, name: str, slot: int, values: Array) -> NoReturn:  # noqa: ARG002
        raise AssertionError(name)

    def _copy_pages(self, pairs: Any, group: int) -> None:
        """There are no pages."""

    def _release(self) -> None:
        self._worker.shutdown()

"""Runs an MLX folder: our graph on MLX's kernels, with Metal on a Mac and on the CPU elsewhere.

The same files that mlx-lm loads, but batches are ragged, logits come for any row, and the residual stream stays float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

import numpy as np

from nearfar.compiler.arch import by_model_type
from nearfar.compiler.bundle.folder import ExportBundle
from nearfar.compiler.bundle.manifest import ExportManifest
from nearfar.compiler.errors import DeviceError
from nearfar.compiler.quant import by_name
from nearfar.compiler.runtime.batch import Array, Batch, FloatArray, Limits, Output, done, require_task, require_within
from nearfar.compiler.runtime.host_sampler import HostSampler

from .forward import Forward, require_known
from .framework import load_mlx
from .packing import Packing, kv_group
from .pages import Pages, spans_of
from .weights import load_weights


def open_runner(bundle: ExportBundle, limits: Limits) -> MlxRunner:
    return MlxRunner(bundle, limits)


class MlxRunner:
    """Raises ToolError if MLX is not installed, UnsupportedModel for an op that `forward.py` lacks, and DeviceError if the model does not
    fit into memory.
    """

    def __init__(self, bundle: ExportBundle, limits: Limits) -> None:
        self._mx = load_mlx()
        self._manifest = bundle.manifest
        self._num_pages = limits.pages or self._manifest.pages_for(self._manifest.context)
        self.limits = replace(limits, pages=self._num_pages)
        self._most = {
            "S": limits.tokens, "B": limits.sequences, "R": limits.rows, "P": self._num_pages, "L": self._num_pages * limits.sequences,
            "T": self._manifest.context, "N": limits.sequences, "A": limits.rows, "W": limits.rows, "M": 0, "G": 0,
        }  # fmt: skip
        # MLX's CPU kernels sum float16 in float16, which is less exact and many times slower than float32.
        self.activation = self._manifest.activation if self._mx.default_device() == self._mx.Device(self._mx.gpu) else "float32"
        spec, context = self._manifest.spec, self._manifest.context
        graph = by_model_type(spec.model_type).forward(spec, context, context)
        packing = Packing(by_name(self._manifest.quantization, self._manifest.group_size), self.activation)
        dtype = getattr(self._mx, self.activation)
        require_known(graph)
        self._forward = Forward(graph, load_weights(bundle, graph.parameters, packing.group, dtype), dtype)
        states = [name for name, state in graph.states.items() if state.shape[0] == "P"]
        group = kv_group(spec.head_dim) if self._manifest.kv == "q8" else None
        self._pages = Pages(dict.fromkeys(states, group), self._num_pages)
        self._sampler = HostSampler(spec.vocab_size, limits.sequences)

    @property
    def manifest(self) -> ExportManifest:
        return self._manifest

    @property
    def num_pages(self) -> int:
        return self._num_pages

    @property
    def device(self) -> str:
        name = self._mx.device_info().get("device_name", "an unnamed device")
        return f"MLX {self._mx.__version__} on {name} ({self.activation})"

    def forward(self, batch: Batch) -> Output:
        """The next tokens of the sampled rows. Raises RequestError for a batch larger than the limits given at the start."""
        require_within(batch.dims(self._num_pages, self.limits.sequences), self._most)
        mx, spans = self._mx, spans_of(batch)
        given = {"token_ids": self._sampler.token_ids(batch), "positions": batch.positions, "sample_rows": batch.sample_rows}
        logits = self._forward.run({name: mx.array(values) for name, values in given.items()}, spans, self._pages)
        try:
            mx.eval(logits, *self._pages.written(spans))
        except RuntimeError as error:
            raise DeviceError(f"{self.device}: {error}; ask for fewer sequences or shorter ones") from error
        rows = np.zeros((0, self._manifest.spec.vocab_size), np.float32) if logits is None else np.array(logits)
        return self._sampler.choose(batch, rows)

    def submit(self, batch: Batch) -> Future[Output]:
        return done(self.forward(batch))

    def embed(self, batch: Batch) -> FloatArray:  # noqa: ARG002
        """Raises RequestError: these bundles generate text."""
        require_task(self._manifest, embeds=True)
        raise AssertionError(self._manifest.embedding)

    def write_state(self, name: str, slot: int, values: Array) -> None:
        self._sampler.write(name, slot, values)

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._pages.copy(pairs)

    def close(self) -> None:
        self._pages.clear()
        self._mx.clear_cache()

"""The reference runner: any bundle's plan, step by step, with the numpy functions of `ops.py`. Slow, plain, and right by definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

import numpy as np

from ..bundle.folder import Bundle
from ..bundle.manifest import BufferEntry, Manifest, StepEntry
from ..errors import DeviceError
from ..ir.expr import evaluate
from ..ir.ops import OPS, Array
from ..ir.rope import rope_table
from ..quant.base import FloatArray
from .batch import Array as BatchArray
from .batch import Batch, Limits, Output, done, require_task


class ReferenceRunner:
    """``activation`` is the dtype in which activations and KV are stored; None takes float32 where the bundle offers it.

    Of the limits it keeps to ``pages``, ``sequences`` and ``adapters`` only; the rest of a batch may be of any size.
    """

    def __init__(self, bundle: Bundle, *, limits: Limits | None = None, activation: str | None = None) -> None:
        self._bundle, self._manifest = bundle, bundle.manifest
        # numpy has no bfloat16: float32 stands in for it. int8 rounds within projections, which are exact here.
        offered = ["float32" if entry.dtype in ("bfloat16", "int8") else entry.dtype for entry in self._manifest.activations]
        self.activation = activation or ("float32" if "float32" in offered else offered[0])
        if self.activation not in offered:
            raise DeviceError(f"{bundle.path}: was compiled for {', '.join(offered)} activations, not for {self.activation}")
        limits = limits or Limits(sequences=8)
        self._num_pages, self._num_slots = limits.pages or self._manifest.pages_for(self._manifest.context), limits.sequences
        self.limits = replace(limits, pages=self._num_pages)
        plan = self._manifest.plan
        self._states = {
            name: self._zeros(state, {"P": self._num_pages, "N": self._num_slots, "M": limits.adapters})
            for name, state in plan.states.items()
        }
        self._constants = {
            name: rope_table(entry.inverse_frequencies, entry.shape[0], entry.scale) for name, entry in plan.constants.items()
        }
        self._weights: dict[str, FloatArray] = {}

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    @property
    def num_pages(self) -> int:
        return self._num_pages

    @property
    def device(self) -> str:
        return f"numpy {np.__version__} ({self.activation})"

    def forward(self, batch: Batch) -> Output:
        require_task(self._manifest, embeds=False)
        outputs = self._outputs(batch)
        logits = outputs.pop("logits")
        return Output(**outputs, read_logits=lambda: logits)

    def submit(self, batch: Batch) -> Future[Output]:
        return done(self.forward(batch))

    def embed(self, batch: Batch) -> FloatArray:
        require_task(self._manifest, embeds=True)
        return self._outputs(batch)["embeddings"]

    def write_state(self, name: str, slot: int, values: BatchArray) -> None:
        self._states[name][slot] = values

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        for name in self._manifest.page_states():
            for source, destination in pairs:
                self._states[name][destination] = self._states[name][source]

    def close(self) -> None:
        self._weights.clear()

    def _outputs(self, batch: Batch) -> dict[str, Array]:
        values: dict[str, Array] = {**batch.arrays(), **self._states, **self._constants}
        dims = batch.dims(self._num_pages, self._num_slots, self.limits.adapters)
        for step in self._manifest.plan.steps:
            self._run(step, values, dims)
        return {role: values[name] for role, name in self._manifest.plan.outputs.items()}

    def _run(self, step: StepEntry, values: dict[str, Array], dims: Mapping[str, int]) -> None:
        op, buffers = OPS[step.op], self._manifest.plan.buffers
        inputs = {role: values[name] if name in values else self._weight(name) for role, name in step.inputs.items()}
        more = {role: self._zeros(buffers[name], dims) for role, name in step.outputs.items() if role != op.result}
        values |= {step.outputs[role]: array for role, array in more.items()}
        result = op.run({**inputs, **more}, step.attrs)
        if op.result is not None and result is not None:
            name = step.outputs[op.result]
            values[name] = result.astype(self._dtype(buffers[name].dtype))

    def _weight(self, name: str) -> FloatArray:
        if name not in self._weights:
            self._weights[name] = self._bundle.weight(name)
        return self._weights[name]

    def _zeros(self, entry: BufferEntry, dims: Mapping[str, int]) -> Array:
        return np.zeros([evaluate(size, dims) for size in entry.shape], self._dtype(entry.dtype))

    def _dtype(self, dtype: str) -> str:
        return self.activation if dtype == "activation" else dtype

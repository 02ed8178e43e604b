"""The reference runner: any bundle's plan, step by step, with the numpy functions of `ops.py`. Slow, plain, and right by definition."""

from __future__ import annotations

import numpy as np

from .batch import Batch, Output
from .bundle import Bundle
from .errors import DeviceError
from .expr import evaluate
from .manifest import Manifest, StepEntry
from .ops import OPS, Array
from .quant.base import FloatArray
from .rope import rope_table


class ReferenceRunner:
    """``activation`` is the dtype in which activations and KV are stored; None takes float32 where the bundle offers it."""

    def __init__(self, bundle: Bundle, *, num_pages: int | None = None, activation: str | None = None) -> None:
        self._bundle, self._manifest = bundle, bundle.manifest
        offered = [entry.dtype for entry in self._manifest.activations]
        self.activation = activation or ("float32" if "float32" in offered else offered[0])
        if self.activation not in offered:
            raise DeviceError(f"{bundle.path}: was compiled for {', '.join(offered)} activations, not for {self.activation}")
        self._num_pages = num_pages or self._manifest.pages_for(self._manifest.context)
        plan = self._manifest.plan
        self._states = {
            name: np.zeros([evaluate(size, {"P": self._num_pages}) for size in state.shape], self._dtype(state.dtype))
            for name, state in plan.states.items()
        }
        self._constants = {name: rope_table(entry.inverse_frequencies, entry.shape[0]) for name, entry in plan.constants.items()}
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
        values: dict[str, Array] = {**batch.arrays(), **self._states, **self._constants}
        for step in self._manifest.plan.steps:
            self._run(step, values)
        outputs = self._manifest.plan.outputs
        return Output(values[outputs["logits"]].astype(np.float32), values[outputs["next_token_ids"]])

    def close(self) -> None:
        self._weights.clear()

    def _run(self, step: StepEntry, values: dict[str, Array]) -> None:
        op = OPS[step.op]
        inputs = {role: values[name] if name in values else self._weight(name) for role, name in step.inputs.items()}
        result = op.run(inputs, step.attrs)
        if op.result is not None and result is not None:
            name = step.outputs[op.result]
            values[name] = result.astype(self._dtype(self._manifest.plan.buffers[name].dtype))

    def _weight(self, name: str) -> FloatArray:
        if name not in self._weights:
            self._weights[name] = self._bundle.weight(name)
        return self._weights[name]

    def _dtype(self, dtype: str) -> str:
        return self.activation if dtype == "activation" else dtype

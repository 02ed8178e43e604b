"""The reference runner: runs any bundle's plans step by step with the numpy functions of `ir/ops`. It is slow, simple,
and correct by definition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt

from ..bundle.entries import BufferEntry, PlanEntry, StepEntry
from ..bundle.folder import Bundle
from ..ir.ops import OPS, Array
from ..ir.pages import DRAFT_PAGES, KEPT_PAGES, PAGE_DIMS, SOURCE_PAGES, STATES
from ..quant.base import FloatArray
from .base_runner import ArrayLayout
from .batch import Array as BatchArray
from .errors import DeviceError
from .page_bytes import UnitBlock, gather, scatter
from .patches import AnyBatch
from .plan_runner import PlanRunner, constant_tables
from .runner import Limits, done

# Dims of memory that outlives a batch. All other dims may be of any size, because nothing is allocated for them.
PERSISTENT_DIMS = (*PAGE_DIMS, DRAFT_PAGES, KEPT_PAGES, SOURCE_PAGES, STATES, "N", "M", "G")


class ReferenceRunner(PlanRunner):
    """``activation`` is the dtype of stored activations and KV; None means float32 if the bundle offers it.

    Only the limits ``pages``, ``states``, ``sequences`` and ``adapters`` apply; the other dims of a batch may be of any
    size.
    """

    def __init__(self, bundle: Bundle, *, limits: Limits | None = None, activation: str | None = None) -> None:
        # numpy has no bfloat16: float32 replaces it. int8 rounds only inside projections, which are exact here.
        offered = [
            "float32" if entry.dtype in ("bfloat16", "int8") else entry.dtype for entry in bundle.manifest.activations
        ]
        chosen = activation or ("float32" if "float32" in offered else offered[0])
        if chosen not in offered:
            raise DeviceError(f"{bundle.path}: was compiled for {', '.join(offered)} activations, not for {chosen}")
        super().__init__(bundle, limits or Limits(sequences=8), chosen)
        any_size = np.iinfo(np.int32).max
        self._bundle = bundle
        self._states = {name: self._zeros(state, self.largest) for name, state in self.manifest.states.items()}
        self.largest = {
            dim: most if dim in PERSISTENT_DIMS and (dim != "G" or not most) else any_size
            for dim, most in self.largest.items()
        }
        self._constants = constant_tables(self.manifest)
        self._weights: dict[str, FloatArray] = {}
        self._outputs: dict[str, Array] = {}

    @property
    def device(self) -> str:
        return f"numpy {np.__version__} ({self.activation})"

    def _run(self, plan: str, batch: AnyBatch, dims: Mapping[str, int]) -> None:
        entry = self.manifest.plan(plan)
        values: dict[str, Array] = {**self.arrays(plan, batch), **self._states, **self._constants}
        for step in entry.steps:
            self._run_step(entry, step, values, dims)
        self._outputs = {name: values[name] for name in entry.outputs.values()}

    def _run_step(self, plan: PlanEntry, step: StepEntry, values: dict[str, Array], dims: Mapping[str, int]) -> None:
        op = OPS[step.op]
        inputs = {role: values[name] if name in values else self._weight(name) for role, name in step.inputs.items()}
        more = {role: self._zeros(plan.buffers[name], dims) for role, name in step.outputs.items() if role != op.result}
        values |= {step.outputs[role]: array for role, array in more.items()}
        result = op.run({**inputs, **more}, step.attrs)
        if op.result is not None and result is not None:
            name = step.outputs[op.result]
            values[name] = result.astype(self.layout(plan.buffers[name], dims).dtype)

    def _weight(self, name: str) -> FloatArray:
        if name not in self._weights:
            self._weights[name] = self._bundle.weight(name)
        return self._weights[name]

    def _read(self, name: str, layout: ArrayLayout) -> npt.NDArray[Any]:
        assert self._outputs[name].shape == layout.shape, (name, self._outputs[name].shape, layout)
        return self._outputs[name]

    def _write_row(self, name: str, slot: int, values: BatchArray) -> None:
        self._states[name][slot] = values

    def _copy_pages(self, pairs: Sequence[tuple[int, int]], group: int) -> None:
        for name in self.page_states(group):
            for source, destination in pairs:
                self._states[name][destination] = self._states[name][source]

    def _read_units(self, blocks: Sequence[UnitBlock]) -> Future[bytes]:
        return done(gather(blocks, self._states))

    def _write_units(self, blocks: Sequence[UnitBlock], data: bytes) -> None:
        scatter(blocks, self._states, data)

    def _release(self) -> None:
        for table in (self._weights, self._states, self._outputs):
            table.clear()

    def _zeros(self, entry: BufferEntry, dims: Mapping[str, int]) -> Array:
        layout = self.layout(entry, dims)
        return np.zeros(layout.shape, layout.dtype)

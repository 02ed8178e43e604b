"""Runs the plans of a bundle on any device. A device says how it runs a plan's steps, reads a buffer, writes a row and copies pages."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import cached_property
from typing import Any

import numpy.typing as npt

from ..bundle.folder import Bundle
from ..bundle.manifest import EMBED, GENERATE, BufferEntry, InputEntry, KernelEntry, Manifest, StepEntry
from ..errors import DeviceError
from ..ir.expr import evaluate
from ..ir.rope import rope_table
from .base_runner import BaseRunner, Room
from .batch import Array, Batch, FloatArray, Limits, Output, Result
from .variant import stored_dtype

# Logits are large: they leave the device only if somebody reads them.
LOGITS = "logits"
# Of one array: 4 TiB of float32.
MAX_ELEMENTS = 2**40


class PlanRunner(BaseRunner[Manifest]):
    """``activation`` is the dtype of activations."""

    def __init__(self, bundle: Bundle, limits: Limits, activation: str) -> None:
        super().__init__(bundle.manifest, limits)
        self.activation = activation

    def room(self, entry: BufferEntry, dims: Mapping[str, int]) -> Room:
        """The array of an entry for some dims."""
        return room_of(entry, self.activation, dims)

    def _inputs(self, plan: str) -> Mapping[str, InputEntry]:
        return self.manifest.plan(plan).inputs

    @cached_property
    def _slot_states(self) -> Mapping[str, Room]:
        return {
            name: self.room(entry, self.largest)
            for name, entry in self.manifest.states.items()
            if entry.shape[0] in ("N", "M")
        }

    def _generate(self, batch: Batch, dims: Mapping[str, int]) -> Future[Output]:
        def output(arrays: dict[str, Array]) -> Output:
            return Output(
                **arrays,  # type: ignore[arg-type]
                read_logits=lambda: self._in_order(self._read_output, GENERATE, LOGITS, dims).result(),
            )

        return self._send(GENERATE, batch, dims, output)

    def _embed(self, batch: Batch, dims: Mapping[str, int]) -> Future[FloatArray]:
        return self._send(EMBED, batch, dims, lambda arrays: arrays["embeddings"])  # type: ignore[return-value, arg-type]

    def _send(
        self, plan: str, batch: Batch, dims: Mapping[str, int], result: Callable[[dict[str, Array]], Result]
    ) -> Future[Result]:
        """Run a batch. ``result`` makes the future's result of the outputs that are read with every batch."""

        def work() -> Result:
            self._run(plan, batch, dims)
            return result({role: self._read_output(plan, role, dims) for role in self._small_outputs(plan)})

        return self._in_order(work)

    def _small_outputs(self, plan: str) -> list[str]:
        """The outputs that come back with every batch."""
        return [role for role in self.manifest.plan(plan).outputs if role != LOGITS]

    def _read_output(self, plan: str, role: str, dims: Mapping[str, int]) -> Any:
        entry = self.manifest.plan(plan)
        name = entry.outputs[role]
        return self._read(name, self.room(entry.buffers[name], dims))

    @abstractmethod
    def _run(self, plan: str, batch: Batch, dims: Mapping[str, int]) -> None:
        """Write a batch's inputs and run the steps of a plan."""

    @abstractmethod
    def _read(self, name: str, room: Room) -> npt.NDArray[Any]:
        """A copy of the first elements of a buffer, after the last run."""


def room_of(entry: BufferEntry, activation: str, dims: Mapping[str, int]) -> Room:
    dtype = stored_dtype(activation) if entry.dtype == "activation" else entry.dtype
    room = Room(tuple(evaluate(size, dims) for size in entry.shape), dtype)
    # In Python's integers, which do not wrap around: what follows counts with 64 bits.
    if math.prod(room.shape) > MAX_ELEMENTS:
        raise DeviceError(
            f"an array of shape {list(room.shape)} has more elements than any device holds; ask for fewer pages or rows"
        )
    return room


def constant_tables(manifest: Manifest) -> dict[str, FloatArray]:
    """The constants by name."""
    return {
        name: rope_table(entry.inverse_frequencies, entry.shape[0], entry.scale)
        for name, entry in manifest.constants.items()
    }


def scratch_entries(manifest: Manifest) -> dict[str, BufferEntry]:
    """The scratch buffers, named as `bound_arrays` names them."""
    return {f"scratch.{name}": entry for name, entry in manifest.scratch.items()}


def bound_arrays(manifest: Manifest, step: StepEntry, kernel: KernelEntry) -> list[str]:
    """The names of the arrays that a step binds to a kernel, in the kernel's order: "NAME.PLANE" of a weight, "scratch.NAME" of scratch."""
    names = {**step.inputs, **step.outputs, "scratch": "scratch"}
    arrays = []
    for binding in kernel.bindings:
        name = names[binding.role]
        # Kernels need not name the only plane of a vector.
        plane = binding.plane or ("w" if name in manifest.weights else None)
        arrays.append(f"{name}.{plane}" if plane else name)
    return arrays

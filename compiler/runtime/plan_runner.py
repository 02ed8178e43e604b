"""Run the plans of a bundle on any device. Each device implements how to run steps, read a buffer, write a row, and
copy, read and write pages.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import Any

import numpy.typing as npt

from ..bundle.entries import ITEM_BYTES, BufferEntry, InputEntry, KernelEntry, StepEntry
from ..bundle.folder import Bundle
from ..bundle.manifest import AUDIO, HEARING, VISION, Manifest
from ..ir.expr import evaluate
from ..ir.rope import rope_table
from .base_runner import ArrayLayout, BaseRunner
from .batch import Array, Batch, FloatArray
from .errors import DeviceError
from .host_tables import HostTables, require_known_tokens
from .inputs import batch_inputs, require_kept, require_sounds, require_sources, require_texts, require_windows
from .limits import require_within
from .page_bytes import UnitBlock, UnitKind, require_size, unit_blocks
from .patches import AnyBatch, PatchBatch, require_patches
from .runner import Limits, Output, Result, require_plan
from .variant import stored_dtype

# Logits are large: they are copied from the device only if they are read.
LOGITS = "logits"
# The most elements of one array: 4 TiB of float32.
MAX_ELEMENTS = 2**40
# The tokens of the first batches of complete texts that buffers have room for; larger batches make them grow.
FIRST_TOKENS = 256


class PlanRunner(BaseRunner[Manifest]):
    """``activation`` is the dtype of activations."""

    def __init__(self, bundle: Bundle, limits: Limits, activation: str) -> None:
        super().__init__(bundle.manifest, limits)
        self.activation = activation
        self._tables = HostTables(bundle)
        tokens = self.largest["S"] if self.manifest.paged else min(self.largest["S"], FIRST_TOKENS)
        # The dims of the largest batch for which the plan's buffers and scratch have room.
        self._room: Mapping[str, int] = {**self.largest, "S": tokens}

    def layout(self, entry: BufferEntry, dims: Mapping[str, int]) -> ArrayLayout:
        """The shape and dtype of an entry's array for these dims."""
        return layout_of(entry, self.activation, dims)

    def page_states(self, group: int) -> list[str]:
        """The states with a row for each page of a group."""
        return self.manifest.page_states(group, drafts=self.limits.draft_pages > 0)

    def _make_room(self, dims: Mapping[str, int], grow: Callable[[Mapping[str, int]], None]) -> None:
        """Call ``grow`` if buffers have no room for a batch, with dims of the next power of two of tokens, within the
        limits. If it fails, the buffers must be as before.
        """
        if dims["S"] > self._room["S"]:
            room = {**self._room, "S": min(self.largest["S"], 1 << (dims["S"] - 1).bit_length())}
            grow(room)
            self._room = room

    def _inputs(self, plan: str) -> Mapping[str, InputEntry]:
        return batch_inputs(self.manifest.plan(plan))

    def _accept(self, batch: Batch, plan: str) -> Mapping[str, int]:
        dims = super()._accept(batch, plan)
        require_known_tokens(self.manifest.model, self.manifest.plan(plan).gathered, batch.token_ids)
        if not self.manifest.paged:
            require_texts(self.manifest, batch)
        if batch.source is not None:
            require_sources(batch.source, dims, self.manifest.page_size)
        if plan == AUDIO:
            require_windows(self.manifest, batch)
        if plan == HEARING:
            require_sounds(self.manifest, batch)
        if batch.kept_rows is not None:
            require_kept(batch.kept_rows, dims, self.manifest.page_size)
        return dims

    def arrays(self, plan: str, batch: AnyBatch) -> dict[str, Array]:
        """The inputs of a plan by name: those of the batch, and those that are gathered for it."""
        entry = self.manifest.plan(plan)
        if isinstance(batch, PatchBatch):
            return batch.arrays(entry.inputs)
        return batch.arrays(entry.inputs) | self._tables.gather(entry.gathered, batch.token_ids)

    @cached_property
    def _slot_states(self) -> Mapping[str, ArrayLayout]:
        return {
            name: self.layout(entry, self.largest)
            for name, entry in self.manifest.states.items()
            if entry.shape[0] in ("N", "M", 1)
        }

    def read_pages(self, units: Sequence[Sequence[int]]) -> Future[bytes]:
        """See `Runner.read_pages`."""
        self._require_open()
        return self._read_units(unit_blocks(self.manifest.model, self._unit_kinds, units))

    def write_pages(self, units: Sequence[Sequence[int]], data: bytes) -> None:
        """See `Runner.write_pages`."""
        self._require_open()
        blocks = unit_blocks(self.manifest.model, self._unit_kinds, units)
        require_size(self.manifest.model, blocks, data)
        self._write_units(blocks, data)

    @cached_property
    def _unit_kinds(self) -> list[UnitKind]:
        """The pages of each group, and last the slots of states if the model keeps any."""
        pages = [
            UnitKind("page", group.pages, self._row_bytes(self.manifest.page_states(index)))
            for index, group in enumerate(self.groups)
        ]
        if not self.manifest.keeps_states:
            return pages
        return [*pages, UnitKind("slot", self.limits.states or 0, self._row_bytes(self.manifest.sequence_states))]

    def _row_bytes(self, names: Iterable[str]) -> Mapping[str, int]:
        """The bytes of one row of each state."""
        layouts = {name: self.layout(self.manifest.states[name], self.largest) for name in names}
        return {name: math.prod(layout.shape[1:]) * ITEM_BYTES[layout.dtype] for name, layout in layouts.items()}

    def _generate(self, batch: Batch, plan: str, dims: Mapping[str, int]) -> Future[Output]:
        def output(arrays: dict[str, Array]) -> Output:
            return Output(
                **arrays,  # type: ignore[arg-type]
                read_logits=lambda: self._in_order(self._read_output, plan, LOGITS, dims).result(),
            )

        return self._send(plan, batch, dims, output)

    def _encode(self, plan: str, batch: Batch, dims: Mapping[str, int]) -> Future[FloatArray]:
        (role,) = self.manifest.plan(plan).outputs
        return self._send(plan, batch, dims, lambda arrays: arrays[role])  # type: ignore[return-value, arg-type]

    def features(self, batch: PatchBatch) -> FloatArray:
        """See `Runner.features`."""
        vision, images = self.manifest.spec.vision, self.manifest.images
        self._require_open()
        require_plan(self.manifest, VISION)
        assert vision is not None, self.manifest.plan_names
        assert images is not None, self.manifest.plan_names
        require_patches(batch, vision, images.positions.taps)
        dims = batch.dims(self.largest, vision.block)
        require_within(dims, self.largest)
        with self._waiting():
            return self._send(VISION, batch, dims, lambda arrays: arrays["features"]).result()  # type: ignore[return-value]

    def _send(
        self,
        plan: str,
        batch: AnyBatch,
        dims: Mapping[str, int],
        result: Callable[[dict[str, Array]], Result],
    ) -> Future[Result]:
        """Run a batch. ``result`` computes the future's result from the outputs that are read with every batch."""

        def work() -> Result:
            self._run(plan, batch, dims)
            return result({role: self._read_output(plan, role, dims) for role in self._small_outputs(plan)})

        return self._in_order(work)

    def _small_outputs(self, plan: str) -> list[str]:
        """The outputs that are read back with every batch."""
        return [role for role in self.manifest.plan(plan).outputs if role != LOGITS]

    def _read_output(self, plan: str, role: str, dims: Mapping[str, int]) -> Any:
        entry = self.manifest.plan(plan)
        name = entry.outputs[role]
        return self._read(name, self.layout(entry.buffers[name], dims))

    @abstractmethod
    def _run(self, plan: str, batch: AnyBatch, dims: Mapping[str, int]) -> None:
        """Write a batch's inputs and run the steps of a plan."""

    @abstractmethod
    def _read_units(self, blocks: Sequence[UnitBlock]) -> Future[bytes]:
        """The bytes of units, after all earlier calls."""

    @abstractmethod
    def _write_units(self, blocks: Sequence[UnitBlock], data: bytes) -> None:
        """Write the bytes of units, after all earlier calls."""

    @abstractmethod
    def _read(self, name: str, layout: ArrayLayout) -> npt.NDArray[Any]:
        """A copy of the first elements of a buffer, after the last run."""


def layout_of(entry: BufferEntry, activation: str, dims: Mapping[str, int]) -> ArrayLayout:
    dtype = stored_dtype(activation) if entry.dtype == "activation" else entry.dtype
    layout = ArrayLayout(tuple(evaluate(size, dims) for size in entry.shape), dtype)
    # Check with Python's integers, which do not wrap around: later computations use 64 bits.
    if math.prod(layout.shape) > MAX_ELEMENTS:
        raise DeviceError(
            f"an array of shape {list(layout.shape)} has more elements than any device holds; request fewer pages or "
            f"rows"
        )
    return layout


def constant_tables(manifest: Manifest) -> dict[str, FloatArray]:
    """The constants by name."""
    return {
        name: rope_table(entry.inverse_frequencies, entry.shape[0], entry.scale, entry.first)
        for name, entry in manifest.constants.items()
    }


def passing_entries(manifest: Manifest) -> dict[str, BufferEntry]:
    """The plan's buffers and scratch, whose values pass from one step or kernel to the next."""
    return {**manifest.buffers, **scratch_entries(manifest)}


def scratch_entries(manifest: Manifest) -> dict[str, BufferEntry]:
    """The scratch buffers, named as `bound_arrays` names them."""
    return {f"scratch.{name}": entry for name, entry in manifest.scratch.items()}


def bound_arrays(manifest: Manifest, step: StepEntry, kernel: KernelEntry) -> list[str]:
    """The names of the arrays that a step binds to a kernel, in the kernel's order: "NAME.PLANE" for a weight,
    "scratch.NAME" for scratch.
    """
    names = {**step.inputs, **step.outputs, "scratch": "scratch"}
    arrays = []
    for binding in kernel.bindings:
        name = names[binding.role]
        # Kernels may omit the only plane of a vector.
        plane = binding.plane or ("w" if name in manifest.weights else None)
        arrays.append(f"{name}.{plane}" if plane else name)
    return arrays

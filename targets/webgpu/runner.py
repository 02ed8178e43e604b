"""Run a WebGPU bundle from Python, on wgpu: for tests, for `nearfar run` on desktops, and as the counterpart of the
TypeScript runtime.

Everything is allocated once: weights, pages, plan buffers at their largest, one arena for batch inputs and one for
uniforms. A forward pass writes the two arenas, encodes all steps into one compute pass, submits once and reads the
outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.compiler.bundle.entries import BufferEntry, KernelEntry, StepEntry
from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.ir.expr import evaluate
from nearfar.compiler.runtime.base_runner import ArrayLayout
from nearfar.compiler.runtime.batch import Array
from nearfar.compiler.runtime.page_bytes import UnitBlock
from nearfar.compiler.runtime.patches import AnyBatch
from nearfar.compiler.runtime.plan_runner import PlanRunner, bound_arrays, constant_tables, passing_entries
from nearfar.compiler.runtime.runner import Limits, done
from nearfar.compiler.runtime.variant import KernelChoice

from .device import MAX_GRID, features_of, find_adapter, for_naga, open_device, vendor_of

# WebGPU requires offsets of bindings to be multiples of 256 bytes.
ALIGNMENT = 256
# Some devices limit buffers to 256 MiB, and smaller buffers are easier to allocate.
MAX_TRANSFER_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Region:
    """A range of a GPU buffer, for a binding."""

    buffer: Any
    offset: int
    size: int


def open_runner(bundle: Bundle, limits: Limits) -> WebGPURunner:
    return WebGPURunner(bundle, limits=limits)


def check_machine(bundle: Bundle) -> None:
    """Raises DeviceError if this machine cannot run the bundle."""
    find_adapter(bundle.manifest, None, bundle.path)


class WebGPURunner(PlanRunner):
    """``activation`` None means the first dtype that the device can run. Raises DeviceError if it cannot run any."""

    def __init__(self, bundle: Bundle, *, limits: Limits | None = None, activation: str | None = None) -> None:
        import wgpu

        self._adapter_name, self._device, chosen = open_device(bundle.manifest, activation, bundle.path)
        super().__init__(bundle, limits or Limits(), chosen)
        self._flags = wgpu.BufferUsage
        self._bundle = bundle
        features = features_of(self._device.features, vendor_of(self._device.adapter.info))
        self._choice = KernelChoice(self.manifest, self.activation, features)
        self._regions: dict[str, Region] = {}
        self._allocate(bundle)
        self._pipelines: dict[str, Any] = {}
        self._groups: dict[tuple[str, int, str], Any] = {}
        # One slice of uniforms per kernel: they depend only on the batch's dims, not on the step that launches the
        # kernel.
        self._slices = {name: index * ALIGNMENT for index, name in enumerate(self.manifest.kernels)}
        self._uniforms = self._buffer(ALIGNMENT * len(self._slices), self._flags.UNIFORM | self._flags.COPY_DST)
        self._uniform_values = np.zeros(ALIGNMENT // 4 * len(self._slices), np.int32)

    @property
    def device(self) -> str:
        return f"{self._adapter_name} ({self.activation})"

    def _run(self, plan: str, batch: AnyBatch, dims: Mapping[str, int]) -> None:
        self._make_room(dims, self._grow)
        arrays = self.arrays(plan, batch)
        end = 0
        for name in self.manifest.plan(plan).inputs:
            values, start = arrays[name], self._offsets[name] // 4
            self._arena[start : start + values.size] = values.ravel().view(np.int32)
            end = max(end, start + values.size) if values.size else end
        self._device.queue.write_buffer(self._arena_buffer, 0, self._arena[:end])
        launches = list(self._launches(plan, dims))
        self._device.queue.write_buffer(self._uniforms, 0, self._uniform_values)
        encoder = self._device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        for pipeline, group, grid in launches:
            if all(grid):
                compute.set_pipeline(pipeline)
                compute.set_bind_group(0, group)
                compute.dispatch_workgroups(*grid)
        compute.end()
        self._device.queue.submit([encoder.finish()])

    def _read(self, name: str, layout: ArrayLayout) -> npt.NDArray[Any]:
        size = int(np.prod(layout.shape)) * np.dtype(layout.dtype).itemsize
        if not size:
            return np.zeros(layout.shape, layout.dtype)
        return np.frombuffer(self._device.queue.read_buffer(self._regions[name].buffer, 0, size), layout.dtype).reshape(
            layout.shape
        )

    def _write_row(self, name: str, slot: int, values: Array) -> None:
        self._device.queue.write_buffer(self._regions[name].buffer, slot * values.nbytes, values)

    def _copy_pages(self, pairs: Sequence[tuple[int, int]], group: int) -> None:
        encoder = self._device.create_command_encoder()
        regions = [self._regions[name] for name in self.page_states(group)]
        num_pages = self.groups[group].pages
        page_bytes = max(region.size for region in regions) // num_pages
        # A buffer cannot be copied onto itself.
        between = self._buffer(page_bytes, self._flags.COPY_SRC | self._flags.COPY_DST)
        for region in regions:
            size = region.size // num_pages
            for source, destination in pairs:
                encoder.copy_buffer_to_buffer(region.buffer, source * size, between, 0, size)
                encoder.copy_buffer_to_buffer(between, 0, region.buffer, destination * size, size)
        self._device.queue.submit([encoder.finish()])

    def _read_units(self, blocks: Sequence[UnitBlock]) -> Future[bytes]:
        parts, queue = [], self._device.queue
        for some in pieces_up_to(self._pieces(blocks), MAX_TRANSFER_BYTES):
            size = sum(piece.size for piece in some)
            between = self._buffer(size, self._flags.COPY_SRC | self._flags.COPY_DST)
            encoder, end = self._device.create_command_encoder(), 0
            for piece in some:
                encoder.copy_buffer_to_buffer(piece.buffer, piece.offset, between, end, piece.size)
                end += piece.size
            queue.submit([encoder.finish()])
            parts.append(bytes(queue.read_buffer(between, 0, size)))
            between.destroy()
        return done(b"".join(parts))

    def _write_units(self, blocks: Sequence[UnitBlock], data: bytes) -> None:
        start = 0
        for piece in self._pieces(blocks):
            self._device.queue.write_buffer(piece.buffer, piece.offset, data, start, piece.size)
            start += piece.size

    def _pieces(self, blocks: Sequence[UnitBlock]) -> list[Region]:
        """Where the bytes of units are, in their order."""
        return [
            Region(self._regions[name].buffer, unit * size, size)
            for block in blocks
            for unit in block.units
            for name, size in block.kind.sizes.items()
        ]

    def _release(self) -> None:
        for region in self._regions.values():
            region.buffer.destroy()
        self._regions.clear()
        self._uniforms.destroy()
        self._device.destroy()

    # --- memory ---

    def _allocate(self, bundle: Bundle) -> None:
        manifest, usage = self.manifest, self._flags
        storage = usage.STORAGE | usage.COPY_DST | usage.COPY_SRC
        for name, weight in manifest.weights.items():
            for plane in weight.planes:
                self._upload(f"{name}.{plane.name}", bundle.plane(name, plane.name))
        for name, table in constant_tables(manifest).items():
            self._upload(name, table)
        self._regions |= self._allocated(manifest.states, self.largest)
        self._regions |= self._allocated(passing_entries(manifest), self._room)
        # Large inputs are last: a batch writes the arena up to the end of its last input.
        large = manifest.large_inputs
        inputs = sorted(manifest.inputs.items(), key=lambda item: item[0] in large)
        layouts = {name: self.layout(entry, self.largest) for name, entry in inputs}
        # An empty array is bound too.
        sizes = {name: max(16, round_up(4 * int(np.prod(layout.shape)), 16)) for name, layout in layouts.items()}
        self._offsets: dict[str, int] = {}
        end = 0
        for name, size in sizes.items():
            self._offsets[name] = end
            end += round_up(size, ALIGNMENT)
        self._arena = np.zeros(end // 4, np.int32)
        self._arena_buffer = self._buffer(end, storage)
        self._regions |= {name: Region(self._arena_buffer, self._offsets[name], size) for name, size in sizes.items()}

    def _allocated(self, entries: Mapping[str, BufferEntry], dims: Mapping[str, int]) -> dict[str, Region]:
        storage, regions = self._flags.STORAGE | self._flags.COPY_DST | self._flags.COPY_SRC, {}
        for name, entry in entries.items():
            layout = self.layout(entry, dims)
            # An empty array is bound too.
            size = max(16, round_up(int(np.prod(layout.shape)) * np.dtype(layout.dtype).itemsize, 16))
            regions[name] = Region(self._buffer(size, storage), 0, size)
        return regions

    def _grow(self, room: Mapping[str, int]) -> None:
        """Replace the plan's buffers and scratch. Work that was submitted still uses the old ones."""
        larger = self._allocated(passing_entries(self.manifest), room)
        for name in larger:
            self._regions[name].buffer.destroy()
        self._regions |= larger
        self._groups.clear()

    def _upload(self, name: str, array: npt.NDArray[Any]) -> None:
        data = array.tobytes()
        data += bytes(-len(data) % 16)
        buffer = self._buffer(len(data), self._flags.STORAGE | self._flags.COPY_DST)
        self._device.queue.write_buffer(buffer, 0, data)
        self._regions[name] = Region(buffer, 0, len(data))

    def _buffer(self, size: int, usage: int) -> Any:
        return self._device.create_buffer(size=size, usage=usage)

    # --- steps ---

    def _launches(self, plan: str, dims: Mapping[str, int]) -> Iterator[tuple[Any, Any, tuple[int, int, int]]]:
        """Pipeline, bind group and workgroups of each kernel of a plan; writes its uniforms."""
        entry = self.manifest.plan(plan)
        chosen = self._choice.of(plan, dims)
        for index, step in enumerate(entry.steps):
            for name in chosen[step.variants]:
                kernel = self.manifest.kernels[name]
                values = np.array([evaluate(expr, dims) for expr in kernel.uniforms], np.int32)
                start = self._slices[name] // 4
                self._uniform_values[start : start + len(values)] = values
                if name not in self._pipelines:
                    self._pipelines[name] = self._pipeline(kernel)
                if (plan, index, name) not in self._groups:
                    self._groups[plan, index, name] = self._group(step, name)
                grid = spread(evaluate(kernel.grid[0], dims), evaluate(kernel.grid[1], dims))
                yield self._pipelines[name], self._groups[plan, index, name], grid

    def _pipeline(self, kernel: KernelEntry) -> Any:
        code = for_naga(self._bundle.file(kernel.file).read_text())
        module = self._device.create_shader_module(code=code)
        return self._device.create_compute_pipeline(
            layout="auto", compute={"module": module, "entry_point": kernel.entry}
        )

    def _group(self, step: StepEntry, name: str) -> Any:
        kernel = self.manifest.kernels[name]
        regions = [self._regions[array] for array in bound_arrays(self.manifest, step, kernel)]
        regions.append(Region(self._uniforms, self._slices[name], round_up(4 * len(kernel.uniforms), 16)))
        entries = [
            {"binding": i, "resource": {"buffer": region.buffer, "offset": region.offset, "size": region.size}}
            for i, region in enumerate(regions)
        ]
        return self._device.create_bind_group(layout=self._pipelines[name].get_bind_group_layout(0), entries=entries)


def pieces_up_to(pieces: Iterable[Region], size_bytes: int) -> Iterator[list[Region]]:
    """The pieces in lists of at most ``size_bytes`` together; a larger one is alone."""
    some: list[Region] = []
    size = 0
    for piece in pieces:
        if some and size + piece.size > size_bytes:
            yield some
            some, size = [], 0
        some.append(piece)
        size += piece.size
    if some:
        yield some


def spread(x: int, y: int) -> tuple[int, int, int]:
    """Workgroups in x, y and z: a kernel computes z * gridDim.x + x, and WebGPU allows at most 65,535 of each."""
    return min(x, MAX_GRID), y, -(-x // MAX_GRID)


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple

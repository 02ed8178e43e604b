"""Runs a WebGPU bundle from Python, on wgpu: for tests, for `nearfar run` on desktops, and as the twin of the TypeScript runtime.

Everything is allocated once: weights, pages, plan buffers at their largest, one arena for batch inputs and one for uniforms. A forward
pass writes the two arenas, encodes all steps into one compute pass, submits once and reads the outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.bundle.manifest import KernelEntry, Manifest, StepEntry
from nearfar.compiler.ir.expr import evaluate
from nearfar.compiler.ir.rope import rope_table
from nearfar.compiler.runtime.batch import Array, Batch, FloatArray, Limits, Output, done, require_task, require_within
from nearfar.compiler.runtime.variant import choose_variant

from .device import MAX_GRID, features_of, for_naga, open_device

# WebGPU wants offsets of bindings in multiples of 256 bytes.
ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Region:
    """A range of a GPU buffer, as a binding takes it."""

    buffer: Any
    offset: int
    size: int


def open_runner(bundle: Bundle, limits: Limits) -> WebGPURunner:
    return WebGPURunner(bundle, limits=limits)


class WebGPURunner:
    """``activation`` None takes the first dtype that the device can. Raises DeviceError when there is none."""

    def __init__(self, bundle: Bundle, *, limits: Limits | None = None, activation: str | None = None) -> None:
        import wgpu

        self._flags = wgpu.BufferUsage
        self._manifest, self._path = bundle.manifest, bundle.path
        limits = limits or Limits()
        self._num_pages = limits.pages or self._manifest.pages_for(self._manifest.context)
        self.limits = replace(limits, pages=self._num_pages)
        self._most = {
            "S": limits.tokens, "B": limits.sequences, "R": limits.rows, "P": self._num_pages,
            "L": self._num_pages * limits.sequences, "T": self._manifest.context,
            "N": limits.sequences, "A": limits.rows, "W": limits.rows, "M": 0, "G": 0,
        }  # fmt: skip
        self._adapter_name, self._device, self.activation = open_device(self._manifest, activation, bundle.path)
        self._features = features_of(self._device.features)
        self._regions: dict[str, Region] = {}
        self._allocate(bundle)
        self._pipelines: dict[str, Any] = {}
        self._groups: dict[tuple[int, str], Any] = {}
        # One slice of uniforms a kernel: they depend on the batch's dims alone, whichever step launches it.
        self._slices = {name: index * ALIGNMENT for index, name in enumerate(self._manifest.kernels)}
        self._uniforms = self._buffer(ALIGNMENT * len(self._slices), self._flags.UNIFORM | self._flags.COPY_DST)
        self._uniform_values = np.zeros(ALIGNMENT // 4 * len(self._slices), np.int32)

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    @property
    def num_pages(self) -> int:
        return self._num_pages

    @property
    def device(self) -> str:
        return f"{self._adapter_name} ({self.activation})"

    def forward(self, batch: Batch) -> Output:
        """The next tokens of the sampled rows. Raises RequestError for a batch larger than the limits given at the start."""
        require_task(self._manifest, embeds=False)
        dims = self._submit(batch)
        return Output(
            next_token_ids=self._read("next_token_ids", dims),
            token_logprobs=self._read("token_logprobs", dims),
            top_token_ids=self._read("top_token_ids", dims),
            top_logprobs=self._read("top_logprobs", dims),
            read_logits=lambda: self._read("logits", dims),
        )

    def submit(self, batch: Batch) -> Future[Output]:
        return done(self.forward(batch))

    def embed(self, batch: Batch) -> FloatArray:
        """The embeddings (R, E) of the sampled rows. Raises RequestError as `forward`."""
        require_task(self._manifest, embeds=True)
        embeddings: FloatArray = self._read("embeddings", self._submit(batch))
        return embeddings

    def write_state(self, name: str, slot: int, values: Array) -> None:
        self._device.queue.write_buffer(self._regions[name].buffer, slot * values.nbytes, values)

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        encoder = self._device.create_command_encoder()
        regions = [self._regions[name] for name in self._manifest.page_states()]
        page_bytes = max(region.size for region in regions) // self._num_pages
        # A buffer cannot be copied onto itself.
        between = self._buffer(page_bytes, self._flags.COPY_SRC | self._flags.COPY_DST)
        for region in regions:
            size = region.size // self._num_pages
            for source, destination in pairs:
                encoder.copy_buffer_to_buffer(region.buffer, source * size, between, 0, size)
                encoder.copy_buffer_to_buffer(between, 0, region.buffer, destination * size, size)
        self._device.queue.submit([encoder.finish()])

    def close(self) -> None:
        for region in self._regions.values():
            region.buffer.destroy()
        self._regions.clear()
        self._uniforms.destroy()
        self._device.destroy()

    def _submit(self, batch: Batch) -> dict[str, int]:
        """Send a batch on its way; its dims."""
        dims = batch.dims(self._num_pages, self._most["N"])
        require_within(dims, self._most)
        self._write_inputs(batch)
        launches = [launch for index, step in enumerate(self._manifest.plan.steps) for launch in self._launches(index, step, dims)]
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
        return dims

    # --- memory ----------------------------------------------------------------------------------------------------------------

    def _allocate(self, bundle: Bundle) -> None:
        plan, usage = self._manifest.plan, self._flags
        storage = usage.STORAGE | usage.COPY_DST | usage.COPY_SRC
        for name, weight in self._manifest.weights.items():
            for plane in weight.planes:
                self._upload(f"{name}.{plane.name}", bundle.plane(name, plane.name))
        for name, constant in plan.constants.items():
            self._upload(name, rope_table(constant.inverse_frequencies, constant.shape[0], constant.scale))
        scratch = {f"scratch.{name}": entry for name, entry in self._manifest.scratch.items()}
        for name, entry in {**plan.buffers, **plan.states, **scratch}.items():
            count = int(np.prod([evaluate(size, self._most) for size in entry.shape]))
            size = round_up(count * self._itemsize(entry.dtype), 16)
            self._regions[name] = Region(self._buffer(size, storage), 0, size)
        offset = 0
        places = {}
        for name, entry in plan.inputs.items():
            size = round_up(4 * int(np.prod([evaluate(extent, self._most) for extent in entry.shape])), 16)
            places[name] = (offset, size)
            offset += round_up(size, ALIGNMENT)
        self._arena = np.zeros(offset // 4, np.int32)
        arena = self._buffer(offset, storage)
        self._regions |= {name: Region(arena, start, size) for name, (start, size) in places.items()}

    def _upload(self, name: str, array: np.ndarray[Any, Any]) -> None:
        data = array.tobytes()
        data += bytes(-len(data) % 16)
        buffer = self._buffer(len(data), self._flags.STORAGE | self._flags.COPY_DST)
        self._device.queue.write_buffer(buffer, 0, data)
        self._regions[name] = Region(buffer, 0, len(data))

    def _buffer(self, size: int, usage: int) -> Any:
        return self._device.create_buffer(size=size, usage=usage)

    def _itemsize(self, dtype: str) -> int:
        return np.dtype(self.activation if dtype == "activation" else dtype).itemsize

    def _write_inputs(self, batch: Batch) -> None:
        arrays = batch.arrays()
        for name in self._manifest.plan.inputs:
            values = arrays[name]
            start = self._regions[name].offset // 4
            self._arena[start : start + values.size] = values.ravel().view(np.int32)
        self._device.queue.write_buffer(self._regions["token_ids"].buffer, 0, self._arena)

    def _read(self, output: str, dims: dict[str, int]) -> Any:
        name = self._manifest.plan.outputs[output]
        entry = self._manifest.plan.buffers[name]
        shape = [evaluate(size, dims) for size in entry.shape]
        size = int(np.prod(shape)) * 4
        if not size:
            return np.zeros(shape, entry.dtype)
        return np.frombuffer(self._device.queue.read_buffer(self._regions[name].buffer, 0, size), entry.dtype).reshape(shape)

    # --- steps -----------------------------------------------------------------------------------------------------------------

    def _launches(self, index: int, step: StepEntry, dims: dict[str, int]) -> Iterator[tuple[Any, Any, tuple[int, int, int]]]:
        """Pipeline, bind group and workgroups of each kernel of one step, its uniforms set."""
        for name in choose_variant(self._manifest, step, self.activation, self._features, dims).kernels:
            kernel = self._manifest.kernels[name]
            grid = spread(evaluate(kernel.grid[0], dims), evaluate(kernel.grid[1], dims))
            values = np.array([evaluate(expr, dims) for expr in kernel.uniforms], np.int32)
            start = self._slices[name] // 4
            self._uniform_values[start : start + len(values)] = values
            if name not in self._pipelines:
                self._pipelines[name] = self._pipeline(kernel)
            if (index, name) not in self._groups:
                self._groups[index, name] = self._group(step, name, self._pipelines[name])
            yield self._pipelines[name], self._groups[index, name], grid

    def _pipeline(self, kernel: KernelEntry) -> Any:
        code = for_naga(Path(self._path / kernel.file).read_text())
        module = self._device.create_shader_module(code=code)
        return self._device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": kernel.entry})

    def _group(self, step: StepEntry, kernel_name: str, pipeline: Any) -> Any:
        kernel = self._manifest.kernels[kernel_name]
        names = {**step.inputs, **step.outputs, "scratch": "scratch"}
        regions = []
        for binding in kernel.bindings:
            name = names[binding.role]
            regions.append(self._regions[f"{name}.{binding.plane}" if binding.plane else self._whole(name)])
        regions.append(Region(self._uniforms, self._slices[kernel_name], round_up(4 * len(kernel.uniforms), 16)))
        entries = [
            {"binding": i, "resource": {"buffer": region.buffer, "offset": region.offset, "size": region.size}}
            for i, region in enumerate(regions)
        ]
        return self._device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)

    def _whole(self, name: str) -> str:
        """Vectors are weights of one plane, which kernels bind under the weight's own name."""
        return f"{name}.w" if name in self._manifest.weights else name


def spread(x: int, y: int) -> tuple[int, int, int]:
    """Workgroups in x, y and z: a kernel takes z * gridDim.x + x, and WebGPU no more than 65,535 of each."""
    return min(x, MAX_GRID), y, -(-x // MAX_GRID)


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple

"""Running one kernel: a case names a template and an op, and holds arrays for every binding and what the op makes of them.

A case is lowered once and run at several sizes: on wgpu here, and on Dawn in Node by `run_kernels.mjs`, which takes all cases in one file.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tolerances import OF_KERNEL, relative_error

from nearfar.compiler.expr import evaluate
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.ops import Array
from nearfar.compiler.target import KernelSource
from nearfar.targets.webgpu.device import DEFAULT_LIMITS
from nearfar.targets.webgpu.lower import wgsl
from nearfar.targets.webgpu.runner import round_up, spread

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Run:
    """``arrays`` by role, with ".q" for a plane: inputs, and what outputs hold before. ``expected`` are outputs after the kernel."""

    dims: Mapping[str, int]
    arrays: Mapping[str, Array]
    expected: Mapping[str, Array]


@dataclass(frozen=True)
class Case:
    """``on_dawn``: run there too, on SwiftShader, which has no f16."""

    name: str
    build: Callable[[], Kernel]
    runs: Callable[[], Sequence[Run]]
    on_dawn: bool = False

    def lowered(self) -> LoweredCase:
        return LoweredCase(self.name, wgsl(self.build()), tuple(self.runs()))


@dataclass(frozen=True)
class LoweredCase:
    name: str
    kernel: KernelSource
    runs: tuple[Run, ...]

    def launch(self, run: Run) -> tuple[list[bytes], bytes, tuple[int, int, int]]:
        """The bindings' contents in order, the uniforms, and the workgroups in x, y and z."""
        contents = []
        for binding in self.kernel.bindings:
            data = run.arrays[f"{binding.role}.{binding.plane}" if binding.plane else binding.role].tobytes()
            contents.append(data + bytes(-len(data) % 16 if data else 16))
        uniforms = np.array([evaluate(expr, run.dims) for expr in self.kernel.uniforms], np.int32).tobytes()
        x, y = (evaluate(expr, run.dims) for expr in self.kernel.grid)
        return contents, uniforms + bytes(-len(uniforms) % 16), spread(x, y)

    def check(self, run: Run, outputs: Mapping[str, bytes]) -> None:
        """Compare what the kernel left in its outputs with what the op says."""
        for role, expected in run.expected.items():
            found = np.frombuffer(outputs[role], expected.dtype, expected.size).reshape(expected.shape)
            if expected.dtype.kind == "i":
                np.testing.assert_array_equal(found, expected)
                continue
            # Unused places of pages hold NaN before and after.
            assert (np.isnan(found) == np.isnan(expected)).all(), (self.name, role, run.dims)
            error = relative_error(np.nan_to_num(found), np.nan_to_num(expected))
            assert error < OF_KERNEL[str(expected.dtype)], (self.name, role, run.dims, error)


class Gpu:
    """One wgpu device with f16 and WebGPU's default limits."""

    def __init__(self) -> None:
        import wgpu

        self._usage = wgpu.BufferUsage
        adapters = [adapter for adapter in wgpu.gpu.enumerate_adapters_sync() if adapter.info["backend_type"] != "OpenGL"]
        adapter = min(adapters, key=lambda each: each.info["adapter_type"] == "CPU")
        self._device = adapter.request_device_sync(required_features=["shader-f16"], required_limits=DEFAULT_LIMITS)
        self._pipelines: dict[str, Any] = {}

    def run(self, case: LoweredCase, run: Run) -> dict[str, bytes]:
        """What the kernel leaves in the bindings that it writes, by role."""
        contents, uniforms, grid = case.launch(run)
        storage = self._usage.STORAGE | self._usage.COPY_SRC
        buffers = [self._device.create_buffer_with_data(data=data, usage=storage) for data in contents]
        buffers.append(self._device.create_buffer_with_data(data=uniforms, usage=self._usage.UNIFORM))
        pipeline = self._pipeline(case.kernel)
        entries = [{"binding": i, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}} for i, buffer in enumerate(buffers)]
        group = self._device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
        encoder = self._device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(*grid)
        compute.end()
        self._device.queue.submit([encoder.finish()])
        written = {
            binding.role: bytes(self._device.queue.read_buffer(buffer))
            for binding, buffer in zip(case.kernel.bindings, buffers, strict=False)
            if binding.access == "write"
        }
        for buffer in buffers:
            buffer.destroy()
        return written

    def close(self) -> None:
        self._device.destroy()

    def _pipeline(self, kernel: KernelSource) -> Any:
        if kernel.text not in self._pipelines:
            module = self._device.create_shader_module(code=kernel.text)
            self._pipelines[kernel.text] = self._device.create_compute_pipeline(
                layout="auto", compute={"module": module, "entry_point": kernel.entry}
            )
        return self._pipelines[kernel.text]


def run_on_dawn(cases: Sequence[LoweredCase], node: str, environment: Mapping[str, str], folder: Path) -> dict[str, list[dict[str, bytes]]]:
    """Run all cases in one Node process: for each case's name the outputs of its runs, by role."""
    requests = []
    for case in cases:
        runs = []
        for run in case.runs:
            contents, uniforms, grid = case.launch(run)
            runs.append({"contents": [encode(data) for data in contents], "uniforms": encode(uniforms), "grid": grid})
        access = [binding.access for binding in case.kernel.bindings]
        requests.append({"name": case.name, "code": case.kernel.text, "entry": case.kernel.entry, "access": access, "runs": runs})
    answers = call_node("run_kernels.mjs", requests, node, environment, folder)
    outputs = {}
    for case in cases:
        written = [binding.role for binding in case.kernel.bindings if binding.access == "write"]
        outputs[case.name] = [dict(zip(written, map(base64.b64decode, each), strict=True)) for each in answers[case.name]]
    return outputs


def validate(sources: Mapping[str, tuple[str, str]], node: str, environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """What Tint, Chrome's WGSL compiler, finds wrong with each source ("" for nothing). ``sources`` gives (code, entry) by name."""
    requests = [{"name": name, "code": code, "entry": entry} for name, (code, entry) in sources.items()]
    return dict(call_node("validate_wgsl.mjs", requests, node, environment, folder))


def call_node(script: str, requests: Any, node: str, environment: Mapping[str, str], folder: Path) -> Any:
    """Run a script of this folder on a JSON file; the JSON that it prints."""
    request_file, answer_file = folder / f"{script}.request.json", folder / f"{script}.answer.json"
    request_file.write_text(json.dumps(requests))
    with answer_file.open("wb") as answer:
        done = subprocess.run(
            [node, str(HERE / script), str(request_file)],
            env=dict(environment),
            stdout=answer,
            stderr=subprocess.PIPE,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(answer_file.read_text())


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def padded_to(array: Array, multiple: int) -> Array:
    """A flat array with zeros behind it."""
    return np.pad(array.ravel(), (0, round_up(array.size, multiple) - array.size))

"""Runs a variant's kernels. A case contains them, the arrays of every binding, and the op's results. A case is lowered
once and runs at several sizes: on wgpu here, and on Dawn in Node by `run_kernels.mjs`, which reads all cases from one
file.
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
from case_check import check_outputs

from nearfar.compiler.ir.expr import Expr, evaluate
from nearfar.compiler.ir.ops import Array
from nearfar.compiler.kernels.builder import Kernel
from nearfar.targets.webgpu.device import DEFAULT_LIMITS, for_naga, preferred_adapter
from nearfar.targets.webgpu.lower import WgslKernel, wgsl
from nearfar.targets.webgpu.runner import spread

HERE = Path(__file__).parent
# The features of wgpu's device: float16 and subgroups.
FEATURES = ("shader-f16", "subgroup")
# The time limit of a script for all of its cases.
NODE_SECONDS = 300.0


@dataclass(frozen=True)
class Run:
    """``arrays`` by role, with ".q" for a plane: inputs, and the previous contents of outputs. ``expected`` are outputs
    after the kernel. ``kv`` is the format of pages.
    """

    dims: Mapping[str, int]
    arrays: Mapping[str, Array]
    expected: Mapping[str, Array]
    kv: str = "activation"


@dataclass(frozen=True)
class Case:
    """``build`` makes a kernel, or several that run in order. ``dtype``: the dtype to which the kernel rounds operands,
    if it does. ``on_dawn``: also run on Dawn with SwiftShader, which has no f16. ``exhaustive``: only `make test-all`
    runs it.
    """

    name: str
    build: Callable[[], Kernel | Sequence[Kernel]]
    runs: Callable[[], Sequence[Run]]
    dtype: str | None = None
    on_dawn: bool = False
    exhaustive: bool = False

    def lowered(self) -> LoweredCase:
        kernels = tuple(map(wgsl, self.kernels()))
        scratch = {f"scratch.{name}": size for each in kernels for name, size in each.kernel.scratch.items()}
        return LoweredCase(self.name, kernels, scratch, tuple(self.runs()), self.dtype)

    def kernels(self) -> Sequence[Kernel]:
        built = self.build()
        return [built] if isinstance(built, Kernel) else built


@dataclass(frozen=True)
class Launch:
    """``bindings`` are numbers of buffers; ``grid`` counts workgroups in x, y and z."""

    bindings: tuple[int, ...]
    uniforms: bytes
    grid: tuple[int, int, int]


@dataclass(frozen=True)
class LoweredCase:
    name: str
    kernels: tuple[WgslKernel, ...]
    scratch: Mapping[str, Expr]
    runs: tuple[Run, ...]
    dtype: str | None

    @property
    def roles(self) -> tuple[str, ...]:
        """The buffers that the kernels bind, each once."""
        return tuple(dict.fromkeys(role for kernel in self.kernels for role in kernel.buffers))

    @property
    def written(self) -> tuple[str, ...]:
        written = {
            binding.role for kernel in self.kernels for binding in kernel.kernel.bindings if binding.access == "write"
        }
        return tuple(role for role in self.roles if role in written)

    def contents(self, run: Run) -> list[bytes]:
        """The previous contents of the buffers of `roles`; scratch is NaN."""
        scratch = {
            role: np.full(evaluate(elements, run.dims), np.nan, np.float32) for role, elements in self.scratch.items()
        }
        arrays = [{**run.arrays, **scratch}[role].tobytes() for role in self.roles]
        return [data + bytes(-len(data) % 16 if data else 16) for data in arrays]

    def launches(self, run: Run) -> list[Launch]:
        launches = []
        for kernel in self.kernels:
            bindings = tuple(map(self.roles.index, kernel.buffers))
            uniforms = np.array([evaluate(expr, run.dims) for expr in kernel.uniforms], np.int32).tobytes()
            x, y = (evaluate(expr, run.dims) for expr in kernel.kernel.grid)
            launches.append(Launch(bindings, uniforms + bytes(-len(uniforms) % 16), spread(x, y)))
        return launches

    def check(self, run: Run, outputs: Mapping[str, bytes]) -> None:
        """Compare the kernels' outputs with the op's result."""
        check_outputs((self.name, run.dims), self.dtype, run.expected, outputs, run.kv)


class Gpu:
    """One wgpu device with f16, subgroups and WebGPU's default limits."""

    def __init__(self) -> None:
        import wgpu

        self._usage = wgpu.BufferUsage
        adapter = preferred_adapter([FEATURES])
        assert adapter is not None
        self._device = adapter.request_device_sync(required_features=FEATURES, required_limits=DEFAULT_LIMITS)
        self._pipelines: dict[str, Any] = {}

    def run(self, case: LoweredCase, run: Run) -> dict[str, bytes]:
        """The buffers that the kernels wrote, by role."""
        storage = self._usage.STORAGE | self._usage.COPY_SRC
        buffers = [self._device.create_buffer_with_data(data=data, usage=storage) for data in case.contents(run)]
        uniforms = []
        encoder = self._device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        for kernel, launch in zip(case.kernels, case.launches(run), strict=True):
            uniforms.append(self._device.create_buffer_with_data(data=launch.uniforms, usage=self._usage.UNIFORM))
            bound = [*(buffers[i] for i in launch.bindings), uniforms[-1]]
            pipeline = self._pipeline(kernel)
            entries = [
                {"binding": i, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}
                for i, buffer in enumerate(bound)
            ]
            compute.set_pipeline(pipeline)
            compute.set_bind_group(
                0, self._device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
            )
            compute.dispatch_workgroups(*launch.grid)
        compute.end()
        self._device.queue.submit([encoder.finish()])
        written = {
            role: bytes(self._device.queue.read_buffer(buffers[case.roles.index(role)])) for role in case.written
        }
        for buffer in (*buffers, *uniforms):
            buffer.destroy()
        return written

    def close(self) -> None:
        self._device.destroy()

    def _pipeline(self, kernel: WgslKernel) -> Any:
        if kernel.text not in self._pipelines:
            module = self._device.create_shader_module(code=for_naga(kernel.text))
            self._pipelines[kernel.text] = self._device.create_compute_pipeline(
                layout="auto", compute={"module": module, "entry_point": kernel.entry}
            )
        return self._pipelines[kernel.text]


def run_on_dawn(
    cases: Sequence[LoweredCase],
    node: str,
    environment: Mapping[str, str],
    folder: Path,
    timeout_seconds: float = NODE_SECONDS,
) -> dict[str, list[dict[str, bytes]]]:
    """Run all cases in one Node process: for each case's name the outputs of its runs, by role."""
    requests = []
    for case in cases:
        runs = []
        for run in case.runs:
            launches = [
                {"bindings": each.bindings, "uniforms": encode(each.uniforms), "grid": each.grid}
                for each in case.launches(run)
            ]
            runs.append({"contents": [encode(data) for data in case.contents(run)], "launches": launches})
        kernels = [{"code": kernel.text, "entry": kernel.entry} for kernel in case.kernels]
        written = [case.roles.index(role) for role in case.written]
        requests.append({"name": case.name, "kernels": kernels, "written": written, "runs": runs})
    answers = call_node("run_kernels.mjs", requests, node, environment, folder, timeout_seconds)
    outputs = {}
    for case in cases:
        outputs[case.name] = [
            dict(zip(case.written, map(base64.b64decode, each), strict=True)) for each in answers[case.name]
        ]
    return outputs


def validate(
    sources: Mapping[str, tuple[str, str]], node: str, environment: Mapping[str, str], folder: Path
) -> dict[str, str]:
    """The errors of Tint, Chrome's WGSL compiler, for each source ("" for none). ``sources`` gives (code, entry) by
    name.
    """
    requests = [{"name": name, "code": code, "entry": entry} for name, (code, entry) in sources.items()]
    return dict(call_node("validate_wgsl.mjs", requests, node, environment, folder))


def call_node(
    script: str,
    requests: Any,
    node: str,
    environment: Mapping[str, str],
    folder: Path,
    timeout_seconds: float = NODE_SECONDS,
) -> Any:
    """Run a script of this folder on a JSON file; the JSON that it prints."""
    request_file, answer_file = folder / f"{script}.request.json", folder / f"{script}.answer.json"
    request_file.write_text(json.dumps(requests))
    with answer_file.open("wb") as answer:
        done = subprocess.run(
            [node, str(HERE / script), str(request_file)],
            env=dict(environment),
            stdout=answer,
            stderr=subprocess.PIPE,
            timeout=timeout_seconds,
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(answer_file.read_text())


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()

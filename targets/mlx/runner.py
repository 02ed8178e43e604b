"""Run an MLX folder of a text model: execute our graph with MLX's kernels, on Metal on a Mac and on the CPU elsewhere.

The files are those that mlx-lm loads, but batches are ragged, any row can have logits, and the residual stream is
float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import numpy as np

from nearfar.compiler.arch import by_model_type
from nearfar.compiler.bundle.folder import ExportBundle
from nearfar.compiler.bundle.manifest import ExportManifest
from nearfar.compiler.ir.graph import Graph
from nearfar.compiler.runtime.base_runner import ArrayLayout, BaseRunner
from nearfar.compiler.runtime.batch import Array, Batch
from nearfar.compiler.runtime.errors import DeviceError, UnsupportedModel
from nearfar.compiler.runtime.host_sampler import HostSampler
from nearfar.compiler.runtime.runner import Limits, Output

from .forward import Forward, require_known
from .framework import load_mlx
from .packing import kv_group
from .pages import Pages, sampled_spans, spans_of
from .weights import load_weights


def open_runner(bundle: ExportBundle, limits: Limits) -> MlxRunner:
    return MlxRunner(bundle, limits)


def check_machine(bundle: ExportBundle) -> None:
    """Raises ToolError if MLX is not installed, UnsupportedModel for an op that `forward.py` lacks."""
    load_mlx()
    require_text(bundle)
    require_known(graph_of(bundle.manifest))


def require_text(bundle: ExportBundle) -> None:
    """Raises UnsupportedModel for a model that reads more than text."""
    if bundle.manifest.transcribes:
        raise UnsupportedModel(
            f"{bundle.path}: reads sound, which the MLX runner does not compute; run the folder with mlx-whisper, or "
            "use --target webgpu, cpu or cuda",
            model_type=bundle.manifest.spec.model_type,
        )
    if bundle.manifest.spec.vision is not None:
        raise UnsupportedModel(
            f"{bundle.path}: sees pictures, which the MLX runner does not compute; run the folder with mlx-vlm, or use "
            "--target webgpu, cpu or cuda"
        )


def graph_of(manifest: ExportManifest) -> Graph:
    spec, context = manifest.spec, manifest.context
    return by_model_type(spec.model_type).forward(spec, context, context)


class MlxRunner(BaseRunner[ExportManifest]):
    """Raises ToolError if MLX is not installed, UnsupportedModel for an op that `forward.py` lacks, and DeviceError if
    the model does not fit into memory.
    """

    def __init__(self, bundle: ExportBundle, limits: Limits) -> None:
        self._mx = load_mlx()
        require_text(bundle)
        super().__init__(bundle.manifest, limits)
        # MLX's CPU kernels sum float16 in float16, which is less exact and many times slower than float32.
        self.activation = (
            self.manifest.activation if self._mx.default_device() == self._mx.Device(self._mx.gpu) else "float32"
        )
        graph = graph_of(self.manifest)
        dtype = getattr(self._mx, self.activation)
        require_known(graph)
        self._forward = Forward(graph, load_weights(bundle, graph.parameters, dtype), dtype)
        groups: dict[str, int | None] = {}
        for name, state in graph.states.items():
            if state.shape[0] == "P":
                head_dim = state.shape[-1]
                assert isinstance(head_dim, int)
                groups[name] = kv_group(head_dim) if self.manifest.kv == "q8" else None
        self._pages = Pages(groups, self.num_pages)
        self._sampler = HostSampler(self.manifest.spec.vocab_size, limits.sequences)

    @property
    def device(self) -> str:
        name = self._mx.device_info().get("device_name", "an unnamed device")
        return f"MLX {self._mx.__version__} on {name} ({self.activation})"

    def _generate(self, batch: Batch, plan: str, dims: Mapping[str, int]) -> Future[Output]:  # noqa: ARG002
        return self._in_order(self._forward_batch, batch)

    def _forward_batch(self, batch: Batch) -> Output:
        mx, spans = self._mx, spans_of(batch)
        given = {
            "token_ids": self._sampler.token_ids(batch),
            "positions": batch.positions,
            "sample_rows": batch.sample_rows,
            "sample_positions": batch.positions[batch.sample_rows],
        }
        inputs = {name: mx.array(values) for name, values in given.items()}
        logits = self._forward.run(inputs, spans, self._pages, sampled_spans(batch))
        try:
            mx.eval(logits, *self._pages.written(spans))
        except RuntimeError as error:
            raise DeviceError(f"{self.device}: {error}; request fewer sequences or shorter ones") from error
        rows = np.zeros((0, self.manifest.spec.vocab_size), np.float32) if logits is None else np.array(logits)
        return self._sampler.choose(batch, rows)

    @property
    def _slot_states(self) -> Mapping[str, ArrayLayout]:
        return self._sampler.layouts

    def _write_row(self, name: str, slot: int, values: Array) -> None:
        self._sampler.write(name, slot, values)

    def _copy_pages(self, pairs: Sequence[tuple[int, int]], group: int) -> None:  # noqa: ARG002
        self._pages.copy(pairs)

    def _release(self) -> None:
        self._pages.clear()
        self._mx.clear_cache()

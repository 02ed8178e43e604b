"""The table of the models that compile: for each published configuration its size, cost and targets.

`arch/published/` holds the configurations, as they were published or with the published values, those of encoders in a
folder of their own: tests count their parameters, too. Those of models with
states and of `lfm2_moe` are written from memory; transformers counts as many parameters as were published for LFM2.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from .. import quant
from ..arch import SUPPORTED
from ..arch.families import LARGE_ACTIVATIONS
from ..bundle.entries import ITEM_BYTES
from ..bundle.manifest import GENERATE
from ..formats.checkpoint import Checkpoint
from ..formats.huggingface import read_spec
from ..ir.graph import Graph
from ..ir.spec import ModelSpec
from ..names import EXPORTS, TARGETS
from ..passes import run_passes
from ..pipeline.context import DEFAULT_CONTEXT
from ..pipeline.export import choose_activation
from ..pipeline.graphs import PAGE_SIZE, graphs_of
from ..pipeline.target import ExportOptions, load_exporter, load_target
from ..pipeline.weights import lay_out_weights, shard_sizes, tensor_shapes
from ..runtime.errors import NearfarError, ToolError
from ..runtime.generate import PREFILL_CHUNK
from ..runtime.page_groups import pages_of_sequence
from .shapes import shape_checkpoint

QUANTIZATION = "q4f16"
LONG_CONTEXT = 32_768
# Layers of the model that is tried on an exporter: enough for one of each kind.
TRIED_LAYERS = 8


@dataclass(frozen=True, slots=True)
class Model:
    """A published model. Kernels are made for every model, so all compile for the TARGETS.

    ``weight_bytes``: in QUANTIZATION. ``steps_per_token``: of the plan for WebGPU. Most are one dispatch each; those
    that split keys of long contexts or bind too many buffers are two. ``kv_bytes``: for LONG_CONTEXT tokens in float16,
    or for as many as the model was trained for. ``exports``: the targets of EXPORTS that express it; None if their
    packages are not installed.
    """

    name: str
    model_type: str
    parameters: int
    weight_bytes: int
    steps_per_token: int
    num_layers: int
    kv_bytes: int
    exports: tuple[str, ...] | None

    @property
    def targets(self) -> tuple[str, ...]:
        return (*TARGETS, *(self.exports or ()))


def published() -> Iterator[tuple[str, Path]]:
    """The name and the file of each configuration, by family and size."""
    folder = Path(str(files("nearfar.compiler.arch") / "published"))
    return ((path.stem, path) for path in sorted(folder.glob("*.json")))


@cache
def model_table() -> tuple[Model, ...]:
    models = [measured(name, read_spec(path)) for name, path in published()]
    return tuple(sorted(models, key=lambda model: (SUPPORTED.index(model.model_type), model.parameters)))


def measured(name: str, spec: ModelSpec) -> Model:
    checkpoint = shape_checkpoint(Path(name), spec)
    target, quantization = load_target("webgpu"), quant.by_name(QUANTIZATION)
    graph = graphs_of(checkpoint, min(DEFAULT_CONTEXT, spec.max_position_embeddings))[GENERATE]
    fused = run_passes(graph, quantization, target.MAX_BINDING_BYTES, host_tables=target.HOST_TABLES)
    stored = lay_out_weights(fused.parameters, quantization, target.LAYOUT)
    return Model(
        name=name,
        model_type=spec.model_type,
        parameters=sum(map(math.prod, tensor_shapes(graph.parameters).values())),
        weight_bytes=sum(shard_sizes(stored)),
        steps_per_token=len(fused.nodes),
        num_layers=spec.num_layers,
        kv_bytes=_kv_bytes(spec),
        exports=_exports(spec),
    )


def _kv_bytes(spec: ModelSpec) -> int:
    """The memory of LONG_CONTEXT tokens in float16. Layers with a window hold only the pages within the largest of
    them.
    """
    context = min(LONG_CONTEXT, spec.max_position_embeddings)
    windows = [window for window in spec.windows if window is not None and window < context]
    pages = 0
    for layer in (layer for layer in range(spec.num_layers) if spec.kv_layer(layer) == layer):
        if "attention" not in spec.mixer(layer):
            continue
        window, (heads, head_dim) = spec.window(layer), spec.heads_of(layer)
        largest = None if window is None or window >= context else max(windows)
        pages += pages_of_sequence(largest, context, PAGE_SIZE, PREFILL_CHUNK) * heads * head_dim
    return 2 * ITEM_BYTES["float16"] * PAGE_SIZE * pages


def _exports(spec: ModelSpec) -> tuple[str, ...] | None:
    layers = min(spec.num_layers, TRIED_LAYERS)
    small = replace(
        spec,
        num_layers=layers,
        windows=spec.windows[:layers],
        unrotated=tuple(layer for layer in spec.unrotated if layer < layers),
        num_kv_shared_layers=min(spec.num_kv_shared_layers, 1),
    )
    checkpoint = shape_checkpoint(Path(spec.model_type), small)
    graphs = graphs_of(checkpoint, DEFAULT_CONTEXT)
    try:
        return tuple(target for target in EXPORTS if _expresses(target, checkpoint, graphs))
    except ToolError:
        return None


def _expresses(target: str, checkpoint: Checkpoint, graphs: Mapping[str, Graph]) -> bool:
    exporter, quantization = load_exporter(target), quant.by_name(QUANTIZATION)
    device = exporter.DEVICES[0] if exporter.DEVICES else None
    activation = choose_activation(
        None,
        quantization.activations,
        exporter.activations(device),
        device or target,
        is_large=checkpoint.spec.model_type in LARGE_ACTIVATIONS,
    )
    options = ExportOptions(quantization, activation, device, "activation", DEFAULT_CONTEXT)
    with tempfile.TemporaryDirectory(prefix="nearfar-") as folder:
        try:
            exporter.file_sizes(checkpoint, graphs, options, Path(folder))
        except ToolError:
            raise
        except NearfarError:
            return False
    return True

"""Export: convert a checkpoint to a folder that ONNX Runtime, its GenAI library and Transformers.js load unchanged.

onnx/model.onnx          one decoder graph (`decoder.py`), or one of embeddings or scores (`encoder.py`)
onnx/model.onnx_data     its large weights (`weights.py`), in further files _data_1, _data_2 .. beyond 2 GB
genai_config.json        the configuration for ONNX Runtime GenAI, if it can allocate the model's keys and values
config.json and others   as in the checkpoint, with the options for Transformers.js
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from nearfar.compiler.formats import Checkpoint
from nearfar.compiler.ir.graph import Graph
from nearfar.compiler.ir.ops import Array
from nearfar.compiler.ir.speech import SpeechSpec
from nearfar.compiler.passes.stack import stack_gates, stack_siblings
from nearfar.compiler.pipeline.target import ExportOptions
from nearfar.compiler.runtime.errors import RequestError, ToolError

from . import devices
from .every_row import with_every_row
from .genai_config import caches_alike, genai_allocates, one_shape, write_genai_config
from .huggingface_files import write_huggingface_files

if TYPE_CHECKING:
    from .emitter import Emitter

DEVICES, READS_TEXTS = devices.NAMES, True
MODEL_FILE = "onnx/model.onnx"


def activations(device: str | None) -> tuple[str, ...]:
    """The dtypes that activations may have on a device. Raises RequestError for a device without a suitable graph."""
    return devices.by_name(device or DEVICES[0]).activations


def export(
    checkpoint: Checkpoint, graph: Graph, options: ExportOptions, folder: Path, progress: Callable[[int, int], None]
) -> None:
    """Write the folder.

    Raises UnsupportedModel for ops that the graph cannot hold, RequestError or QuantizationError for input that ONNX
    Runtime's kernels do not support or run slowly, and ToolError if the packages onnx and onnxruntime are not
    installed.
    """
    require_packages()
    from .cache_scales import measure_scales
    from .weights import write_weights

    emitter = emit(checkpoint, graph, options)
    model = folder / MODEL_FILE
    model.parent.mkdir(parents=True)
    weights = write_weights(
        checkpoint, emitter.graph.parameters, list(emitter.stored.values()), options.quantization, model, progress
    )
    model.write_bytes(emitter.builder.model(weights).SerializeToString())
    if options.kv == "q8":
        scales = measure_scales(model, checkpoint, options.context, emitter.caches)
        emitter = emit(checkpoint, graph, options, scales)
        model.write_bytes(emitter.builder.model(weights).SerializeToString())
    write_small_files(checkpoint, graph, options, folder, data_files=len(list(model.parent.glob("*_data*"))))


def file_sizes(checkpoint: Checkpoint, graph: Graph, options: ExportOptions, folder: Path) -> dict[str, int]:
    """Bytes of every file that `export` would write, by path in the folder; the small ones are written into
    ``folder``.
    """
    require_packages()
    from .cache_scales import unit_scales
    from .weights import empty_weights

    emitter = emit(checkpoint, graph, options)
    model = folder / MODEL_FILE
    weights, data_sizes = empty_weights(list(emitter.stored.values()), model)
    if options.kv == "q8":
        emitter = emit(checkpoint, graph, options, unit_scales(emitter.builder.inputs))
    write_small_files(checkpoint, graph, options, folder, data_files=len(data_sizes))
    return {
        **{path.name: path.stat().st_size for path in folder.iterdir()},
        MODEL_FILE: emitter.builder.model(weights).ByteSize(),
        **{str(Path(MODEL_FILE).with_name(name)): size for name, size in data_sizes.items()},
    }


def require_packages() -> None:
    if find_spec("onnx") is None or find_spec("onnxruntime") is None:
        raise ToolError(
            "compiling for onnx needs the packages onnx and onnxruntime; install them with: pip install 'nearfar[onnx]'"
        )


def emit(
    checkpoint: Checkpoint, graph: Graph, options: ExportOptions, scales: Mapping[str, Array] | None = None
) -> Emitter:
    """The graph's nodes. ``scales``: the scales of 8-bit keys and values, once measured."""
    from .decoder import build_decoder
    from .emitter import Emitter
    from .encoder import build_encoder

    name = options.device or DEVICES[0]
    device = devices.by_name(name)
    if options.kv == "q8" and not device.int8_cache:
        raise RequestError(f"--kv q8: ONNX Runtime has no such attention for {name}; leave it out, or use --device cpu")
    if options.kv == "q8" and not checkpoint.spec.num_attention_layers:
        raise RequestError(f"--kv q8: {checkpoint.spec.model_type} keeps no keys and values; leave the option out")
    if options.kv == "q8" and not caches_alike(checkpoint.spec):
        raise RequestError(
            f"--kv q8: ONNX Runtime's constant scales are too coarse for {checkpoint.spec.model_type}, whose layers "
            "share keys and values or have heads of several sizes; leave it out, or use --target webgpu, cpu or cuda"
        )
    task = checkpoint.task
    if task is None:
        # ONNX Runtime's users have no plan of the heads that read the kept rows.
        graph = with_every_row(graph.with_nodes(node for node in graph.nodes if node.op != "keep_rows"))
    if device.stacks_projections:
        graph = stack_siblings(stack_gates(graph))
    emitter = Emitter(graph, checkpoint.spec, device, options.quantization, options.activation, scales or {})
    if task is None:
        build_decoder(emitter)
    else:
        assert not isinstance(task, SpeechSpec), "models of sound are refused earlier"
        build_encoder(emitter, task)
    return emitter


def write_small_files(
    checkpoint: Checkpoint, graph: Graph, options: ExportOptions, folder: Path, data_files: int
) -> None:
    if checkpoint.task is None and genai_allocates(checkpoint.spec):
        write_genai_config(folder, MODEL_FILE, checkpoint, options, one_shape(graph))
    write_huggingface_files(folder, checkpoint, options.device or DEVICES[0], data_files)

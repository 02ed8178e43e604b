"""Export: convert a checkpoint to a folder that ONNX Runtime, its GenAI library and Transformers.js load unchanged.

onnx/model.onnx          one decoder graph (`decoder.py`), or one of embeddings or scores (`encoder.py`)
onnx/model.onnx_data     its large weights (`weights.py`), in further files _data_1, _data_2 .. beyond 2 GB
genai_config.json        the configuration for ONNX Runtime GenAI, if it can allocate the model's keys and values
config.json and others   as in the checkpoint, with the options for Transformers.js

A model that sees pictures has three graphs instead of model.onnx: decoder_model_merged.onnx reads the rows of
embed_tokens.onnx (`embeddings.py`), among which the consumer places those of vision_encoder.onnx (`vision.py`). Gemma 4
also has an audio_encoder.onnx, which refuses sound (`deaf_ears.py`). A model of sound has two: encoder_model.onnx
(`listener.py`), to whose rows decoder_model_merged.onnx attends (`speech.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from nearfar.compiler.bundle.manifest import AUDIO, CLASSIFY, CTC, EMBED, GENERATE, VISION
from nearfar.compiler.formats import Checkpoint
from nearfar.compiler.ir.graph import Graph
from nearfar.compiler.ir.ops import Array
from nearfar.compiler.ir.spec import ModelSpec
from nearfar.compiler.ir.speech import CtcSpec, SpeechSpec
from nearfar.compiler.ir.tasks import EmbeddingSpec
from nearfar.compiler.passes.stack import stack_gates, stack_siblings
from nearfar.compiler.pipeline.target import ExportOptions
from nearfar.compiler.runtime.errors import RequestError, ToolError

from . import devices
from .every_row import with_every_row
from .genai_config import caches_alike, genai_allocates, one_shape, write_genai_config
from .huggingface_files import opens_ears, write_huggingface_files

if TYPE_CHECKING:
    from .emitter import Emitter

DEVICES = devices.NAMES
PLANS = (GENERATE, EMBED, CLASSIFY, VISION, AUDIO, CTC)
FOLDER, ENDING = "onnx", ".onnx"
# The names that optimum and Transformers.js give to graphs.
MODEL, DECODER, TABLE, TOWER = "model", "decoder_model_merged", "embed_tokens", "vision_encoder"
LISTENER, EARS = "encoder_model", "audio_encoder"


def activations(device: str | None) -> tuple[str, ...]:
    """The dtypes that activations may have on a device. Raises RequestError for a device without a suitable graph."""
    return devices.by_name(device or DEVICES[0]).activations


def notes(checkpoint: Checkpoint) -> tuple[str, ...]:  # noqa: ARG001
    """Nothing differs from the model."""
    return ()


def export(
    checkpoint: Checkpoint,
    graphs: Mapping[str, Graph],
    options: ExportOptions,
    folder: Path,
    progress: Callable[[int, int], None],
) -> None:
    """Write the folder.

    Raises UnsupportedModel for ops that the graph cannot hold, RequestError or QuantizationError for input that ONNX
    Runtime's kernels do not support or run slowly, and ToolError if the packages onnx and onnxruntime are not
    installed.
    """
    require_packages()
    from .cache_scales import measure_scales
    from .weights import write_weights

    emitters = emit(checkpoint, graphs, options)
    (folder / FOLDER).mkdir(parents=True)
    before, total = 0, sum(emitter.stored_elements for emitter in emitters.values())
    weights, data_files = {}, {}
    for name, emitter in emitters.items():
        model = file_of(folder, name)
        weights[name] = write_weights(
            checkpoint,
            emitter.graph.parameters,
            list(emitter.stored.values()),
            options.quantization,
            model,
            partial(report, progress, before, total),
        )
        model.write_bytes(emitter.builder.model(weights[name]).SerializeToString())
        data_files[name] = len(list(model.parent.glob(f"{model.name}_data*")))
        before += emitter.stored_elements
    if options.kv == "q8":
        model = file_of(folder, MODEL)
        scales = measure_scales(model, checkpoint, options.context, emitters[MODEL].caches)
        emitter = emit(checkpoint, graphs, options, scales)[MODEL]
        model.write_bytes(emitter.builder.model(weights[MODEL]).SerializeToString())
    write_small_files(checkpoint, graphs, options, folder, data_files)


def report(progress: Callable[[int, int], None], before: int, total: int, done: int, _: int) -> None:
    """Report the progress of one graph as that of all; ``before`` elements were finished earlier."""
    progress(before + done, total)


def file_sizes(
    checkpoint: Checkpoint, graphs: Mapping[str, Graph], options: ExportOptions, folder: Path
) -> dict[str, int]:
    """Bytes of every file that `export` would write, by path in the folder; the small ones are written into
    ``folder``.
    """
    require_packages()
    from .cache_scales import unit_scales
    from .weights import empty_weights

    emitters = emit(checkpoint, graphs, options)
    if options.kv == "q8":
        emitters = emit(checkpoint, graphs, options, unit_scales(emitters[MODEL].builder.inputs))
    sizes, data_files = {}, {}
    for name, emitter in emitters.items():
        weights, data_sizes = empty_weights(list(emitter.stored.values()), file_of(folder, name))
        sizes[f"{FOLDER}/{name}{ENDING}"] = emitter.builder.model(weights).ByteSize()
        sizes |= {f"{FOLDER}/{data_name}": size for data_name, size in data_sizes.items()}
        data_files[name] = len(data_sizes)
    write_small_files(checkpoint, graphs, options, folder, data_files)
    return {**{path.name: path.stat().st_size for path in folder.iterdir()}, **sizes}


def file_of(folder: Path, name: str) -> Path:
    return folder / FOLDER / f"{name}{ENDING}"


def require_packages() -> None:
    if find_spec("onnx") is None or find_spec("onnxruntime") is None:
        raise ToolError(
            "compiling for onnx needs the packages onnx and onnxruntime; install them with: pip install 'nearfar[onnx]'"
        )


def emit(
    checkpoint: Checkpoint,
    graphs: Mapping[str, Graph],
    options: ExportOptions,
    scales: Mapping[str, Array] | None = None,
) -> dict[str, Emitter]:
    """The nodes of each graph, by the name of its file. ``scales``: the scales of 8-bit keys and values, once
    measured.
    """
    from .deaf_ears import build_deaf_ears
    from .decoder import build_decoder
    from .embeddings import build_decoder_of_embeddings, build_embeddings, without_embeddings
    from .emitter import Emitter
    from .encoder import build_encoder
    from .listener import build_ctc, build_listener
    from .speech import build_speech_decoder, without_keys
    from .vision import build_vision

    name, spec, task = options.device or DEVICES[0], checkpoint.spec, checkpoint.task
    device = devices.by_name(name)
    if options.kv == "q8":
        check_cache(spec, device, name)

    def started(graph: Graph) -> Emitter:
        if device.stacks_projections:
            graph = stack_siblings(stack_gates(graph))
        return Emitter(graph, spec, device, options.quantization, options.activation, scales or {})

    if AUDIO in graphs:
        encoder, sources = without_keys(graphs[AUDIO])
        listener = started(encoder)
        build_listener(listener)
        decoder = started(with_every_row(graphs[GENERATE]))
        build_speech_decoder(decoder, graphs[AUDIO], sources)
        return {LISTENER: listener, DECODER: decoder}
    assert not isinstance(task, SpeechSpec), "a model of sound has a graph that reads it"
    if isinstance(task, CtcSpec):
        model = started(graphs[CTC])
        build_ctc(model, task)
        return {MODEL: model}
    if task is not None:
        model = started(graphs[EMBED if isinstance(task, EmbeddingSpec) else CLASSIFY])
        build_encoder(model, task)
        return {MODEL: model}
    # ONNX Runtime's users have no plan of the heads that read the kept rows.
    text = graphs[GENERATE]
    text = with_every_row(text.with_nodes(node for node in text.nodes if node.op != "keep_rows"))
    if VISION not in graphs:
        model = started(text)
        build_decoder(model)
        return {MODEL: model}
    assert checkpoint.images is not None
    tower = started(graphs[VISION])
    build_vision(tower, checkpoint.images)
    table, decoder = started(text), started(without_embeddings(text))
    build_embeddings(table)
    build_decoder_of_embeddings(decoder)
    emitters = {TOWER: tower, TABLE: table, DECODER: decoder}
    if opens_ears(checkpoint):
        emitters[EARS] = Emitter(Graph(), spec, device, options.quantization, options.activation)
        build_deaf_ears(emitters[EARS])
    return emitters


def check_cache(spec: ModelSpec, device: devices.Device, name: str) -> None:
    """Raises RequestError for a model or a device without keys and values of 8 bits."""
    if not device.int8_cache:
        raise RequestError(f"--kv q8: ONNX Runtime has no such attention for {name}; leave it out, or use --device cpu")
    if spec.vision is not None:
        raise RequestError("--kv q8: the scales are measured on texts, and this model sees pictures; leave it out")
    if not spec.num_attention_layers:
        raise RequestError(f"--kv q8: {spec.model_type} keeps no keys and values; leave the option out")
    if not caches_alike(spec):
        raise RequestError(
            f"--kv q8: ONNX Runtime's constant scales are too coarse for {spec.model_type}, whose layers share keys "
            "and values or have heads of several sizes; leave it out, or use --target webgpu, cpu or cuda"
        )


def write_small_files(
    checkpoint: Checkpoint,
    graphs: Mapping[str, Graph],
    options: ExportOptions,
    folder: Path,
    data_files: Mapping[str, int],
) -> None:
    """``data_files``: the number of files of external data of each graph."""
    if checkpoint.task is None and checkpoint.spec.vision is None and genai_allocates(checkpoint.spec):
        model_file = f"{FOLDER}/{MODEL}{ENDING}"
        write_genai_config(folder, model_file, checkpoint, options, one_shape(graphs[GENERATE]))
    write_huggingface_files(folder, checkpoint, options.device or DEVICES[0], data_files)

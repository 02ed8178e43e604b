"""Export for MLX: write a folder that mlx-lm loads unchanged, or mlx-vlm for a model with towers.

config.json, tokenizer files       `config.py`, of models with towers `vlm.py`, of Whisper for mlx-whisper `whisper.py`
model.safetensors (or shards)      `names.py`, `towers.py`, `packing.py`, `shards.py`
model.safetensors.index.json
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nearfar.compiler.bundle.manifest import AUDIO, GENERATE, HEARING, VISION
from nearfar.compiler.formats import Checkpoint
from nearfar.compiler.formats.images import PREPROCESSOR_FILE, PROCESSOR_FILE
from nearfar.compiler.formats.json_file import read_json_object
from nearfar.compiler.formats.videos import VIDEO_FILE
from nearfar.compiler.ir.graph import Graph, Parameter
from nearfar.compiler.pipeline.target import ExportOptions

from . import vlm, whisper
from .config import shared_keys, write_config, write_tokenizer
from .names import FolderTensors, folder_tensors
from .packing import Packing, kv_group
from .shards import INDEX_FILE, index_text, lay_out, write_shards
from .towers import vlm_tensors

# One folder runs on every device that MLX supports.
DEVICES = ()
PLANS = (GENERATE, VISION, HEARING, AUDIO)
# The files of a model with towers that mlx-vlm reads as they are.
COPIED = (PREPROCESSOR_FILE, PROCESSOR_FILE, VIDEO_FILE, "chat_template.jinja", "chat_template.json")
# What is not copied from the config.json of such a model.
REPLACED = ("dtype", "torch_dtype", "quantization", "quantization_config")


def activations(device: str | None) -> tuple[str, ...]:  # noqa: ARG001
    """The dtypes that activations may have."""
    return ("float16", "bfloat16", "float32")


def notes(checkpoint: Checkpoint) -> tuple[str, ...]:
    return vlm.notes(checkpoint) if checkpoint.spec.vision is not None else ()


def export(
    checkpoint: Checkpoint,
    graphs: Mapping[str, Graph],
    options: ExportOptions,
    folder: Path,
    progress: Callable[[int, int], None],
) -> None:
    """Write the folder. Raises RequestError, UnsupportedModel or QuantizationError for input that mlx-lm and mlx-vlm do
    not support.
    """
    job = prepare(checkpoint, graphs, options)
    write_small_files(job, options, folder)
    write_shards(job.stored, job.tensors, job.packing, folder, progress)


def file_sizes(
    checkpoint: Checkpoint, graphs: Mapping[str, Graph], options: ExportOptions, folder: Path
) -> dict[str, int]:
    """Bytes of every file that `export` would write, by name; the small ones are written into ``folder``."""
    job = prepare(checkpoint, graphs, options)
    write_small_files(job, options, folder)
    shards = lay_out(job.tensors, job.packing)
    if job.tensors.file is None:
        (folder / INDEX_FILE).write_text(index_text(shards))
    small = {path.name: path.stat().st_size for path in folder.iterdir()}
    return {**small, **{shard.file: shard.size_bytes for shard in shards}}


@dataclass(frozen=True, slots=True)
class Job:
    """A folder's tensors, read from the checkpoint ``stored``, and how they are packed. ``model``: that of mlx-vlm,
    None for a text model.
    """

    stored: Checkpoint
    tensors: FolderTensors
    packing: Packing
    model: vlm.VisionLanguageModel | None


def prepare(checkpoint: Checkpoint, graphs: Mapping[str, Graph], options: ExportOptions) -> Job:
    if options.kv == "q8":
        # This is a run-time option: our runner reads it from the manifest, and mlx-lm has an option.
        for layer in range(checkpoint.spec.num_layers):
            kv_group(checkpoint.spec.heads_of(layer)[1])
    packing = Packing(options.quantization, options.activation)
    if checkpoint.speech is not None:
        return Job(*whisper.whisper_tensors(checkpoint, graphs), packing, None)
    if checkpoint.spec.vision is None:
        return Job(checkpoint, folder_tensors(graphs[GENERATE].parameters, checkpoint.spec), packing, None)
    model = vlm.vision_language_model(checkpoint, options.activation, options.context)
    stored, tensors = vlm_tensors(model, checkpoint, graphs, options.quantization)
    return Job(stored, tensors, packing, model)


def write_small_files(job: Job, options: ExportOptions, folder: Path) -> None:
    """Write all files except the weights."""
    checkpoint, packing = job.stored, job.packing
    if checkpoint.speech is not None:
        whisper.write_config(checkpoint, packing, folder)
        write_tokenizer(checkpoint, folder)
        return
    modules = stored_modules(job.tensors.parameters, packing)
    if job.model is None:
        write_config(checkpoint.spec, packing, options.context, folder, modules)
        write_tokenizer(checkpoint, folder)
        return
    values = {
        key: value for key, value in read_json_object(checkpoint.path / "config.json").items() if key not in REPLACED
    }
    config = values | vlm.sections(job.model, checkpoint, values, options.context)
    config |= shared_keys(checkpoint.spec, packing, modules)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    write_tokenizer(checkpoint, folder)
    for name in COPIED:
        if (checkpoint.path / name).is_file():
            shutil.copyfile(checkpoint.path / name, folder / name)


def stored_modules(parameters: Iterable[Parameter], packing: Packing) -> dict[str, tuple[int, int]]:
    """Weights per group and bits per weight of the modules whose integers are the checkpoint's own, or that have
    another format than most.
    """
    found = {}
    for parameter in parameters:
        group = packing.group_of(parameter)
        if group is not None and (packing.keeps_codes(parameter) or group != packing.group):
            found[parameter.name.removesuffix(".weight")] = group
    return found

"""Export for MLX: write a folder that mlx-lm loads unchanged.

config.json, tokenizer files       `config.py`
model.safetensors (or shards)      `names.py`, `packing.py`, `shards.py`
model.safetensors.index.json
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from nearfar.compiler.bundle.manifest import GENERATE
from nearfar.compiler.formats import Checkpoint
from nearfar.compiler.ir.graph import Graph
from nearfar.compiler.ir.spec import ModelSpec
from nearfar.compiler.pipeline.target import ExportOptions

from .config import write_config, write_tokenizer
from .names import folder_tensors
from .packing import Packing, kv_group
from .shards import INDEX_FILE, index_text, lay_out, write_shards

# One folder runs on every device that MLX supports.
DEVICES = ()
PLANS = (GENERATE,)


def activations(device: str | None) -> tuple[str, ...]:  # noqa: ARG001
    """The dtypes that activations may have."""
    return ("float16", "bfloat16", "float32")


def export(
    checkpoint: Checkpoint,
    graphs: Mapping[str, Graph],
    options: ExportOptions,
    folder: Path,
    progress: Callable[[int, int], None],
) -> None:
    """Write the folder. Raises RequestError, UnsupportedModel or QuantizationError for input that mlx-lm does not
    support.
    """
    graph = graphs[GENERATE]
    packing = write_small_files(checkpoint, graph, options, folder)
    write_shards(checkpoint, graph.parameters, packing, folder, progress)


def file_sizes(
    checkpoint: Checkpoint, graphs: Mapping[str, Graph], options: ExportOptions, folder: Path
) -> dict[str, int]:
    """Bytes of every file that `export` would write, by name; the small ones are written into ``folder``."""
    graph = graphs[GENERATE]
    packing = write_small_files(checkpoint, graph, options, folder)
    shards = lay_out(graph.parameters, checkpoint.spec, packing)
    (folder / INDEX_FILE).write_text(index_text(shards))
    small = {path.name: path.stat().st_size for path in folder.iterdir()}
    return {**small, **{shard.file: shard.size_bytes for shard in shards}}


def write_small_files(checkpoint: Checkpoint, graph: Graph, options: ExportOptions, folder: Path) -> Packing:
    """Write all files except the weights, and return how the weights are stored."""
    if options.kv == "q8":
        # This is a run-time option: our runner reads it from the manifest, and mlx-lm has an option.
        for layer in range(checkpoint.spec.num_layers):
            kv_group(checkpoint.spec.heads_of(layer)[1])
    packing = Packing(options.quantization, options.activation)
    write_config(checkpoint.spec, packing, options.context, folder, stored_modules(graph, checkpoint.spec, packing))
    write_tokenizer(checkpoint, folder)
    return packing


def stored_modules(graph: Graph, spec: ModelSpec, packing: Packing) -> dict[str, tuple[int, int]]:
    """Weights per group and bits per weight of the modules whose integers are the checkpoint's own."""
    found = {}
    for parameter in folder_tensors(graph.parameters, spec):
        group = packing.group_of(parameter) if packing.keeps_codes(parameter) else None
        if group is not None:
            found[parameter.name.removesuffix(".weight")] = group
    return found

"""Exporting for MLX: a folder that mlx-lm loads as it is.

config.json, tokenizer files       `config.py`
model.safetensors (or shards)      `packing.py`, `shards.py`; tensors and their names are the checkpoint's, which mlx-lm keeps
model.safetensors.index.json
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nearfar.compiler.formats import Checkpoint
from nearfar.compiler.ir.graph import Graph
from nearfar.compiler.pipeline.target import ExportOptions

from .config import write_config, write_tokenizer
from .packing import Packing, kv_group
from .shards import write_shards

# One folder runs wherever MLX does.
DEVICES = ()


def activations(device: str | None) -> tuple[str, ...]:  # noqa: ARG001
    """The dtypes that activations may have."""
    return ("float16", "bfloat16", "float32")


def export(checkpoint: Checkpoint, graph: Graph, options: ExportOptions, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write the folder. Raises RequestError, UnsupportedModel or QuantizationError for what mlx-lm does not run."""
    if options.kv == "q8":
        # A matter of who runs the folder: our runner finds it in the manifest, mlx-lm takes an option.
        kv_group(checkpoint.spec.head_dim)
    packing = Packing(options.quantization, options.activation)
    write_config(checkpoint.spec, packing, options.context, folder)
    write_tokenizer(checkpoint, folder)
    write_shards(checkpoint, graph.parameters, packing, folder, progress)

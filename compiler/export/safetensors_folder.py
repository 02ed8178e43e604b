"""Exports a bundle as a folder for transformers: config.json, model.safetensors, and the tokenizer's files.

The weights are floats: the integers times their scales. In float32 they are exact; float16 rounds most of them once
more, by at most 2^-11 of their size, and holds those of f16 bundles exactly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..bundle.folder import Bundle
from ..bundle.new_folder import new_folder
from ..formats.huggingface import SINGLE_FILE
from ..ir.spec import ModelSpec
from ..runtime.errors import QuantizationError
from ..runtime.text.tokenizer_files import TokenizerFiles
from .bundle_tensors import BundleTensor, bundle_tensors
from .checkpoint_config import checkpoint_config, end_ids

Dtype = Literal["float16", "float32"]
Progress = Callable[[int, int], None]
CONFIG_FILE = "config.json"
NAMES = {"float16": "F16", "float32": "F32"}
# Elements of a block of rows, which is in memory at once.
BLOCK_ELEMENTS = 2 << 20


def export_safetensors(
    bundle: Bundle,
    output: Path,
    dtype: Dtype = "float16",
    *,
    force: bool = False,
    progress: Progress = lambda *_: None,
    note: Callable[[str], None] = lambda _: None,
) -> Mapping[str, int]:
    """Write the folder. Returns the number of tensors of each dtype.

    Raises UnsupportedModel for a model that transformers cannot express, QuantizationError for weights that the dtype
    cannot hold, BundleError and OutputError. After an error, no partial output remains.
    """
    spec = bundle.manifest.spec
    config = checkpoint_config(spec, dtype, str(bundle.path))
    tensors = bundle_tensors(bundle)
    files = bundle.tokenizer_files()
    generation = {"bos_token_id": spec.bos_token_id, "eos_token_id": end_ids(spec)}
    with new_folder(output, force=force, marker=CONFIG_FILE) as folder:
        write_json(folder / CONFIG_FILE, config)
        write_json(
            folder / "generation_config.json", {k: value for k, value in generation.items() if value is not None}
        )
        (folder / "tokenizer.json").write_bytes(files.content)
        write_json(folder / "tokenizer_config.json", tokenizer_config(files, spec.max_position_embeddings))
        shapes = {name: stored_shape(name, tensor, spec) for name, tensor in tensors.items()}
        error = write_safetensors(folder / SINGLE_FILE, tensors, shapes, dtype, progress)
    if error:
        note(f"float16 rounds weights, by at most {error:.2g} of a tensor's largest; --dtype float32 is exact")
    return {dtype: len(tensors)}


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def tokenizer_config(files: TokenizerFiles, length: int) -> dict[str, Any]:
    values = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": length,
        **{key: getattr(files, key) for key in ("bos_token", "eos_token", "pad_token", "unk_token")},
        "add_bos_token": files.add_bos_token,
        "chat_template": files.chat_template,
    }
    return {key: value for key, value in values.items() if value is not None}


def stored_shape(name: str, tensor: BundleTensor, spec: ModelSpec) -> tuple[int, ...]:
    """The shape in a checkpoint, in which a convolution (channels, 1, taps) is not flat."""
    if spec.states is None or not name.endswith("conv1d.weight"):
        return tensor.shape
    return tensor.shape[0] // spec.states.taps, 1, spec.states.taps


def write_safetensors(
    path: Path,
    tensors: Mapping[str, BundleTensor],
    shapes: Mapping[str, tuple[int, ...]],
    dtype: Dtype,
    progress: Progress,
) -> float:
    """Write the tensors with these shapes, a block of rows at a time. Returns the largest error of rounding, relative
    to the largest magnitude of its tensor. https://github.com/huggingface/safetensors#format
    """
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + int(np.prod(tensor.shape)) * np.dtype(dtype).itemsize
        entries[name] = {"dtype": NAMES[dtype], "shape": list(shapes[name]), "data_offsets": [start, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    total, done, worst = sum(int(np.prod(tensor.shape)) for tensor in tensors.values()), 0, 0.0
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name, tensor in tensors.items():
            largest = error = 0.0
            step = max(1, BLOCK_ELEMENTS // int(np.prod(tensor.shape[1:])))
            for first in range(0, tensor.shape[0], step):
                values = tensor.rows(np.arange(first, min(first + step, tensor.shape[0])))
                with np.errstate(over="ignore"):
                    rounded = values.astype(np.dtype(dtype).newbyteorder("<"))
                if not np.isfinite(rounded).all():
                    raise QuantizationError(f"{name}: has values that float16 cannot hold; use --dtype float32")
                largest = max(largest, float(np.abs(values).max()))
                error = max(error, float(np.abs(rounded.astype(np.float32) - values).max()))
                file.write(np.ascontiguousarray(rounded).data)
                done += values.size
                progress(done, total)
            worst = max(worst, error / largest if largest else 0.0)
    return worst

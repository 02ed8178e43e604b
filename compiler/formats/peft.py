"""Reads LoRA adapters that PEFT wrote (adapter_config.json, adapter_model.safetensors) into the form of a bundle's
states.

https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from ..bundle.manifest import LoraEntry, Manifest
from ..errors import CheckpointError, RequestError, UnsupportedModel
from ..quant.base import FloatArray
from .json_file import read_json_object
from .safetensors_file import SafetensorsTensor, read_safetensors

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
TENSOR = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<letter>[AB])\.weight")
# Keys that can change the mathematics, and the values with which they do not.
PLAIN: dict[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "fan_in_fan_out": (False, None),
    "lora_bias": (False, None),
    "bias": ("none", None),
    "modules_to_save": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, [], {}),
}


def read_adapter(folder: Path, manifest: Manifest) -> dict[str, FloatArray]:
    """One slot's rows of every state of `LoraEntry.states`: A (parts * rank, K), B (N, rank), with the adapter's scale
    in B.

    Modules that the adapter does not change stay zero. Raises RequestError for a bundle without adapters and for an
    adapter with a larger rank or of another model, UnsupportedModel for methods other than plain LoRA, and
    CheckpointError for missing or broken files.
    """
    if manifest.lora is None:
        raise RequestError(f"{manifest.model}: does not accept LoRA adapters; compile it with --lora-rank")
    rank, scale = read_config(folder, manifest.lora)
    matrices: dict[tuple[str, str], SafetensorsTensor] = {}
    for name, tensor in read_safetensors(folder / WEIGHTS).items():
        match = TENSOR.fullmatch(name)
        if match is None:
            raise UnsupportedModel(
                f"{folder / WEIGHTS}: tensor {name!r} is not a LoRA matrix; only adapters of projections are supported"
            )
        if match["module"] not in manifest.lora.modules:
            known = ", ".join(sorted({module.rsplit(".", 1)[1] for module in manifest.lora.modules}))
            raise RequestError(
                f"{folder}: adapts {match['module']}, which {manifest.model} does not have; "
                f"adapters can change {known} of its layers"
            )
        matrices[match["module"], match["letter"]] = tensor
    return fill_states(folder, manifest, rank, scale, matrices)


def read_config(folder: Path, lora: LoraEntry) -> tuple[int, float]:
    """The adapter's rank, and the factor of its contribution."""
    file = folder / CONFIG
    config = read_json_object(file)
    if config.get("peft_type") != "LORA":
        raise UnsupportedModel(f"{file}: peft_type is {config.get('peft_type')!r}; supported: LORA")
    for key, plain in PLAIN.items():
        if config.get(key) not in plain:
            raise UnsupportedModel(f"{file}: {key} {config[key]!r} is not supported; train the adapter without it")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        raise CheckpointError(f"{file}: r {rank!r} and lora_alpha {alpha!r} must be numbers, r at least 1")
    if rank > lora.rank:
        raise RequestError(
            f"{file}: has rank {rank}, but the bundle accepts ranks up to {lora.rank}; "
            f"compile it with --lora-rank {rank}"
        )
    return rank, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def fill_states(
    folder: Path, manifest: Manifest, rank: int, scale: float, matrices: dict[tuple[str, str], SafetensorsTensor]
) -> dict[str, FloatArray]:
    assert manifest.lora is not None
    shapes = {name: manifest.states[name].shape[1:] for name in manifest.lora.states}
    states: dict[str, FloatArray] = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}  # type: ignore[arg-type]
    for name, letter in matrices:
        parts = manifest.lora.modules[name]
        tensor, other = matrices[name, letter], matrices.get((name, "B" if letter == "A" else "A"))
        if other is None:
            raise CheckpointError(
                f"{folder / WEIGHTS}: {name} has lora_{letter} but not the other matrix; the file is incomplete"
            )
        rows = max(part.first_row + part.stop - part.start for part in parts)
        expected = (rank, states[parts[0].a].shape[1]) if letter == "A" else (rows, rank)
        if tensor.shape != expected:
            raise RequestError(
                f"{folder / WEIGHTS}: {tensor.name} has shape {list(tensor.shape)}, but {manifest.model} needs "
                f"{list(expected)}; the adapter was trained for another model"
            )
        values = tensor.rows(0, tensor.shape[0])
        for part in parts:
            if letter == "A":
                first = part.part * manifest.lora.rank
                states[part.a][first : first + rank] = values
            else:
                first, last = part.first_row, part.first_row + part.stop - part.start
                part_rows = values[first:last] if part.pairs is None else values[part.pairs.stored_rows(first, last)]
                states[part.b][part.start : part.stop, :rank] = part_rows * np.float32(scale * part.factor)
    return states

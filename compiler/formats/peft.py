"""Reads LoRA adapters that PEFT wrote (adapter_config.json, adapter_model.safetensors) into the form of a bundle's
states.

https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..bundle.manifest import Manifest
from ..quant.base import FloatArray
from ..runtime.errors import CheckpointError, RequestError, UnsupportedModel, reason_of
from .json_file import read_json_object
from .multimodal import text_name
from .safetensors_file import SafetensorsTensor, read_safetensors

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# A pattern of PEFT that is the name of modules, or the end of one: no other regular expression is supported.
MODULE_NAME = re.compile(r"(?P<whole>\^?)(?P<name>\w+(?:\\?\.\w+)*)", re.ASCII)
TENSOR = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<letter>[AB])\.weight")
# Keys that say how an adapter was trained and which modules it has, beside those that are read.
KNOWN = {
    *("peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "task_type", "auto_mapping"),
    *("peft_version", "base_model_name_or_path", "revision", "inference_mode", "target_modules", "exclude_modules"),
    *("layers_to_transform", "layers_pattern", "lora_dropout", "megatron_config", "megatron_core", "loftq_config"),
    *("eva_config", "corda_config", "lora_ga_config", "velora_config", "qalora_group_size", "ensure_weight_tying"),
    "runtime_config",
}
# Values of other keys that leave the mathematics as they are. Ways to initialize that are not listed, such as PiSSA's,
# change the weights of the model, to which PEFT adds the matrices.
PLAIN: dict[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "init_lora_weights": (True, "gaussian", "eva", "orthogonal", "mica"),
}


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """``ranks`` and ``alphas``: those of single modules, by patterns; the first one that fits counts. ``stabilized``:
    the scale divides by the rank's square root (rsLoRA).
    """

    rank: int
    alpha: float
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    stabilized: bool

    @property
    def widest(self) -> int:
        """The largest rank of a module."""
        return max([self.rank, *self.ranks.values()])

    def of(self, module: str) -> tuple[int, float]:
        """The rank of a module, and the factor of its contribution."""
        rank = next((each for pattern, each in self.ranks.items() if fits(pattern, module)), self.rank)
        alpha = next((each for pattern, each in self.alphas.items() if fits(pattern, module)), self.alpha)
        return rank, alpha / (math.sqrt(rank) if self.stabilized else rank)


def fits(pattern: str, module: str) -> bool:
    match = MODULE_NAME.fullmatch(pattern)
    assert match is not None, pattern
    name = match["name"].replace("\\", "")
    return module == name or (not match["whole"] and module.endswith(f".{name}"))


def read_adapter(folder: Path, manifest: Manifest) -> dict[str, FloatArray]:
    """One slot's rows of every state of `LoraEntry.states`: A (parts * rank, K), B (N, rank), with the adapter's scale
    in B.

    Modules that the adapter does not change stay zero. Raises RequestError for a bundle without adapters and for an
    adapter with a larger rank or of another model, UnsupportedModel for methods other than plain LoRA, and
    CheckpointError for missing or broken files.
    """
    if manifest.lora is None:
        raise RequestError(f"{manifest.model}: does not accept LoRA adapters; compile it with --lora-rank")
    config = read_config(folder)
    if config.widest > manifest.lora.rank:
        raise RequestError(
            f"{folder / CONFIG}: has rank {config.widest}, but the bundle accepts ranks up to {manifest.lora.rank}; "
            f"compile it with --lora-rank {config.widest}"
        )
    matrices = read_matrices(folder)
    for module, _ in matrices:
        if text_name(module) not in manifest.lora.modules:
            known = ", ".join(sorted({each.rsplit(".", 1)[1] for each in manifest.lora.modules}))
            raise RequestError(
                f"{folder}: adapts {module}; of {manifest.model}, adapters can change {known} of its layers alone"
            )
    return fill_states(folder, manifest, config, matrices)


def read_matrices(folder: Path) -> dict[tuple[str, str], SafetensorsTensor]:
    """By module and letter, without their values. Raises CheckpointError, and UnsupportedModel for tensors that are no
    matrices of a projection, such as those of an embedding.
    """
    matrices: dict[tuple[str, str], SafetensorsTensor] = {}
    for name, tensor in read_safetensors(folder / WEIGHTS).items():
        match = TENSOR.fullmatch(name)
        # The projection to the vocabulary is computed by a kernel of its own, and often shares the embedding's weights.
        if match is None or match["module"].rsplit(".", 1)[-1] == "lm_head":
            raise UnsupportedModel(
                f"{folder / WEIGHTS}: tensor {name!r} is not a LoRA matrix of a layer's projection, and no other is "
                "supported; train the adapter without it, or merge it into its model with PEFT's merge_and_unload"
            )
        matrices[match["module"], match["letter"]] = tensor
    return matrices


def adapter_id(folder: Path) -> str:
    """The hash of what `read_adapter` reads: the SHA-256 of the SHA-256 of both files in hexadecimal digits, one a
    line. Raises CheckpointError.
    """
    digests = []
    for name in (CONFIG, WEIGHTS):
        try:
            with (folder / name).open("rb") as file:
                digests.append(hashlib.file_digest(file, "sha256").hexdigest())
        except OSError as error:
            raise CheckpointError(f"{folder / name}: cannot be read: {reason_of(error)}") from error
    return hashlib.sha256("".join(f"{each}\n" for each in digests).encode()).hexdigest()


def read_config(folder: Path) -> AdapterConfig:
    """Raises CheckpointError, and UnsupportedModel for methods other than plain LoRA."""
    file = folder / CONFIG
    config = read_json_object(file)
    if config.get("peft_type") != "LORA":
        raise UnsupportedModel(f"{file}: peft_type is {config.get('peft_type')!r}; supported: LORA")
    for key, value in config.items():
        if value and key not in KNOWN and value not in PLAIN.get(key, ()):
            raise UnsupportedModel(
                f"{file}: {key} {value!r} is not supported; train the adapter without it, or merge it into its model "
                "with PEFT's merge_and_unload"
            )
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        raise CheckpointError(f"{file}: r {rank!r} and lora_alpha {alpha!r} must be numbers, r at least 1")
    ranks, alphas = (read_patterns(file, config, key) for key in ("rank_pattern", "alpha_pattern"))
    for pattern, each in ranks.items():
        if not isinstance(each, int) or each < 1:
            raise CheckpointError(f"{file}: rank_pattern {pattern!r} has {each!r}, but a rank is at least 1")
    return AdapterConfig(rank, alpha, ranks, alphas, bool(config.get("use_rslora")))


def read_patterns(file: Path, config: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The numbers of single modules."""
    patterns = {} if config.get(key) is None else config[key]
    if not isinstance(patterns, dict) or not all(isinstance(each, int | float) for each in patterns.values()):
        raise CheckpointError(f"{file}: {key} {patterns!r} must be an object with numbers")
    for pattern in patterns:
        if MODULE_NAME.fullmatch(pattern) is None:
            raise UnsupportedModel(
                f"{file}: {key} has {pattern!r}, which is not the name of a module; name each module instead"
            )
    return patterns


def fill_states(
    folder: Path, manifest: Manifest, config: AdapterConfig, matrices: dict[tuple[str, str], SafetensorsTensor]
) -> dict[str, FloatArray]:
    assert manifest.lora is not None
    shapes = {name: manifest.states[name].shape[1:] for name in manifest.lora.states}
    states: dict[str, FloatArray] = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}  # type: ignore[arg-type]
    for name, letter in matrices:
        parts, (rank, scale) = manifest.lora.modules[text_name(name)], config.of(name)
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

"""Opening a folder as transformers writes it: config.json, model.safetensors (whole or in shards), tokenizer.json -> Checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..arch import by_model_type
from ..bundle.manifest import MANIFEST_FILE
from ..errors import CheckpointError
from ..ir.spec import ModelSpec
from .checkpoint import Checkpoint
from .config import ConfigReader
from .json_file import read_json_object
from .safetensors_file import SafetensorsTensor, read_safetensors
from .sentence_transformers import read_embedding
from .spec_against_tensors import require_sizes, settle_head
from .tokenizer_files import read_tokenizer_files

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

# A name with a folder in it could lead anywhere on this machine.
_SHARD_NAME = re.compile(r"\w[\w.-]*\.safetensors")


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a folder. Reads and checks everything but the tensors' values.

    Raises CheckpointError for missing, corrupt or contradictory files, UnsupportedModel for models that we do not compile.
    """
    spec = _read_spec(path)
    embedding = read_embedding(path)
    tensors = _read_tensors(path)
    if embedding is not None and "embed_tokens.weight" in tensors:
        # Saved without a head, a model has no prefix that would tell it from one.
        tensors = {f"model.{name}": tensor for name, tensor in tensors.items()}
    require_sizes(path, spec, tensors)
    notes: list[str] = []
    if embedding is None and spec.tie_word_embeddings:
        spec, tensors = settle_head(path, spec, tensors, notes)
    return Checkpoint(path, spec, tensors, read_tokenizer_files(path, spec.vocab_size), embedding, tuple(notes))


def _read_spec(path: Path) -> ModelSpec:
    config_path = path / "config.json"
    if not config_path.is_file():
        if (path / "adapter_config.json").is_file():
            raise _bad(path, "holds an adapter (LoRA), not a model; merge it into its base model and save that")
        _refuse_a_bundle(path)
        raise _bad(path, "has no config.json; give a folder as transformers' save_pretrained writes it")
    config = ConfigReader(read_json_object(config_path), str(config_path))
    spec = by_model_type(config.text("model_type")).read_config(config)
    generation_path = path / "generation_config.json"
    if not generation_path.is_file():
        return spec
    generation = ConfigReader(read_json_object(generation_path), str(generation_path))
    generation_ids = generation.token_ids("eos_token_id")
    if any(token_id >= spec.vocab_size for token_id in generation_ids):
        raise generation.contradiction(
            "eos_token_id",
            f"'eos_token_id' is {list(generation_ids)}, outside of the vocabulary of {spec.vocab_size} (config.json)",
        )
    # Chat models often name only the end of a text in config.json, and the end of a turn too in generation_config.json.
    return replace(spec, eos_token_ids=tuple(dict.fromkeys((*spec.eos_token_ids, *generation_ids))))


def _read_tensors(path: Path) -> Mapping[str, SafetensorsTensor]:
    # As in transformers, the single file goes before an index.
    if (path / SINGLE_FILE).is_file():
        return read_safetensors(path / SINGLE_FILE)
    if (path / INDEX_FILE).is_file():
        return _read_shards(path)
    if any(path.glob("pytorch_model*.bin")) or any(path.glob("*.pth")):
        raise _bad(
            path,
            f"holds weights as PyTorch pickles only, which can run code when opened; load it with transformers and write {SINGLE_FILE} "
            "with save_pretrained(folder, safe_serialization=True)",
        )
    _refuse_a_bundle(path)
    raise _bad(path, f"has neither {SINGLE_FILE} nor {INDEX_FILE}; download the weights too")


def _read_shards(path: Path) -> Mapping[str, SafetensorsTensor]:
    index_path = path / INDEX_FILE
    shard_of = read_json_object(index_path).get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of:
        raise _bad(index_path, "'weight_map' must map tensor names to files; download it again")
    for name, file_name in shard_of.items():
        if not isinstance(file_name, str) or not _SHARD_NAME.fullmatch(file_name):
            raise _bad(
                index_path,
                f"tensor {name!r} is in {file_name!r}, expected the name of a .safetensors file beside the index",
            )
    tensors: dict[str, SafetensorsTensor] = {}
    for file_name in sorted(set(shard_of.values())):
        if not (path / file_name).is_file():
            raise _bad(path, f"shard {file_name} is missing, though {INDEX_FILE} lists it; download it")
        for name, tensor in read_safetensors(path / file_name).items():
            if name in tensors:
                raise _bad(
                    path,
                    f"tensor {name!r} is in both {tensors[name].path.name} and {file_name}; download the checkpoint again",
                )
            if name not in shard_of:
                raise _bad(
                    path,
                    f"tensor {name!r} of {file_name} is not in {INDEX_FILE}; their versions differ, download all files",
                )
            tensors[name] = tensor
    for name, file_name in shard_of.items():
        if name not in tensors or tensors[name].path.name != file_name:
            raise _bad(
                path, f"{INDEX_FILE} places tensor {name!r} in {file_name}, which does not hold it; download both again"
            )
    return tensors


def _refuse_a_bundle(path: Path) -> None:
    if (path / MANIFEST_FILE).is_file():
        raise _bad(path, "is a bundle already; give the checkpoint that it was made of")


def _bad(path: Path, message: str) -> CheckpointError:
    return CheckpointError(f"{path}: {message}", file=str(path))

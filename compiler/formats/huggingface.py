"""Opening a folder as transformers writes it: config.json, model.safetensors (whole or in shards), tokenizer.json -> Checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..arch import by_model_type
from ..bundle.manifest import MANIFEST_FILE
from ..errors import CheckpointError
from ..ir.spec import ModelSpec
from .checkpoint import Checkpoint, TokenizerFiles
from .config import ConfigReader
from .json_file import json_kind, read_json_object
from .safetensors_file import SafetensorsTensor, read_safetensors
from .sentence_transformers import read_embedding

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
    return Checkpoint(path, spec, tensors, _read_tokenizer_files(path, spec.vocab_size), embedding)


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
            "eos_token_id", f"'eos_token_id' is {list(generation_ids)}, outside of the vocabulary of {spec.vocab_size} (config.json)"
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
            raise _bad(index_path, f"tensor {name!r} is in {file_name!r}, expected the name of a .safetensors file beside the index")
    tensors: dict[str, SafetensorsTensor] = {}
    for file_name in sorted(set(shard_of.values())):
        if not (path / file_name).is_file():
            raise _bad(path, f"shard {file_name} is missing, though {INDEX_FILE} lists it; download it")
        for name, tensor in read_safetensors(path / file_name).items():
            if name in tensors:
                raise _bad(path, f"tensor {name!r} is in both {tensors[name].path.name} and {file_name}; download the checkpoint again")
            if name not in shard_of:
                raise _bad(path, f"tensor {name!r} of {file_name} is not in {INDEX_FILE}; their versions differ, download all files")
            tensors[name] = tensor
    for name, file_name in shard_of.items():
        if name not in tensors or tensors[name].path.name != file_name:
            raise _bad(path, f"{INDEX_FILE} places tensor {name!r} in {file_name}, which does not hold it; download both again")
    return tensors


def _read_tokenizer_files(path: Path, vocab_size: int) -> TokenizerFiles:
    tokenizer_json = path / "tokenizer.json"
    if not tokenizer_json.is_file():
        raise _bad(
            path,
            "has no tokenizer.json; write it with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)",
        )
    _check_tokenizer(tokenizer_json, vocab_size)
    config_path = path / "tokenizer_config.json"
    config = read_json_object(config_path) if config_path.is_file() else {}
    # Older checkpoints keep their special tokens in a file of their own; tokenizer_config.json wins where both speak.
    map_path = path / "special_tokens_map.json"
    specials = {**(read_json_object(map_path) if map_path.is_file() else {}), **config}
    add_bos_token = config.get("add_bos_token")
    if add_bos_token is not None and not isinstance(add_bos_token, bool):
        raise _bad(config_path, f"'add_bos_token' is {add_bos_token!r} ({json_kind(add_bos_token)}), expected true or false")
    return TokenizerFiles(
        tokenizer_json=tokenizer_json,
        chat_template=_read_chat_template(path, config),
        bos_token=_special_token(config_path, specials, "bos_token"),
        eos_token=_special_token(config_path, specials, "eos_token"),
        pad_token=_special_token(config_path, specials, "pad_token"),
        unk_token=_special_token(config_path, specials, "unk_token"),
        add_bos_token=add_bos_token,
    )


def _check_tokenizer(path: Path, vocab_size: int) -> None:
    from tokenizers import Tokenizer

    read_json_object(path)
    try:
        vocab = Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=True)
    except Exception as error:  # tokenizers raises bare Exception
        raise _bad(path, f"is no tokenizer that the tokenizers library can load: {error}; download it again") from error
    size = max(vocab.values(), default=-1) + 1
    if size > vocab_size:
        raise _bad(
            path,
            f"has token ids up to {size - 1}, but the model's vocabulary has {vocab_size} ('vocab_size' in config.json); "
            "take the tokenizer that belongs to this model",
        )


def _read_chat_template(path: Path, config: Mapping[str, Any]) -> str | None:
    """The template: chat_template.jinja, which transformers 5 writes, before tokenizer_config.json; of several the one named "default"."""
    template_path = path / "chat_template.jinja"
    if template_path.is_file():
        try:
            return template_path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise _bad(template_path, f"cannot be read: {error}; download it again") from error
    found = config.get("chat_template")
    if found is None or isinstance(found, str):
        return found
    where = path / "tokenizer_config.json"
    if not isinstance(found, list) or not all(
        isinstance(each, dict) and isinstance(each.get("name"), str) and isinstance(each.get("template"), str) for each in found
    ):
        raise _bad(where, "'chat_template' must be a string, or a list of objects with name and template; download it again")
    by_name: dict[str, str] = {each["name"]: each["template"] for each in found}
    if "default" not in by_name:
        raise _bad(where, f'\'chat_template\' names {", ".join(by_name) or "none"}, but no "default"; name the one to use "default"')
    return by_name["default"]


def _special_token(where: Path, specials: Mapping[str, Any], key: str) -> str | None:
    """A special token's text, which is a string or an object with its text under "content"."""
    value = specials.get(key)
    text = value.get("content") if isinstance(value, dict) else value
    if not isinstance(text, str) and value is not None:
        raise _bad(where, f"{key!r} is {value!r}, expected a string or an object with 'content'; download it again")
    return text


def _refuse_a_bundle(path: Path) -> None:
    if (path / MANIFEST_FILE).is_file():
        raise _bad(path, "is a bundle already; give the checkpoint that it was made of")


def _bad(path: Path, message: str) -> CheckpointError:
    return CheckpointError(f"{path}: {message}", file=str(path))

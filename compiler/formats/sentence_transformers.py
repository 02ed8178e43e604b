"""Reads the files of sentence-transformers for an embedding model: modules.json, and the configs of its modules.

modules.json lists the modules that process a text, each with its class ("type") and its folder ("path").
config_sentence_transformers.json has prompts, sentence_bert_config.json the length at which texts are cut.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..ir.tasks import DenseSpec, EmbeddingSpec, Pooling, PromptSpec
from ..runtime.errors import CheckpointError, UnsupportedModel
from .config import ConfigReader, is_integer
from .json_file import read_json, read_json_object

MODULES_FILE = "modules.json"
PROMPTS_FILE = "config_sentence_transformers.json"
# Of several names, sentence-transformers reads the first that exists.
LENGTH_FILES = (
    "sentence_bert_config.json", "sentence_roberta_config.json", "sentence_distilbert_config.json",
    "sentence_camembert_config.json", "sentence_albert_config.json", "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)  # fmt: skip
SUPPORTED = "Transformer, Pooling, then Dense layers, then Normalize or nothing"
POOLINGS: Mapping[str, Pooling] = {
    "lasttoken": "last_token",
    "mean": "mean",
    "mean_tokens": "mean",
    "cls": "cls",
    "cls_token": "cls",
    "max": "max",
    "max_tokens": "max",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
}
# The last part of the class's name -> `ops.op.ACTIVATIONS`.
DENSE_ACTIVATIONS = {"Identity": "none", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu"}
_FLAG = "pooling_mode_"
# A name that contains a folder could lead anywhere on this machine.
_FOLDER = re.compile(r"\w[\w.-]{0,99}")


@dataclass(frozen=True, slots=True)
class SentenceTransformer:
    """An embedding model's head. ``dense_folders`` hold the weights of its dense layers. ``lowercases``: texts are
    converted to lower case before they are encoded.
    """

    embedding: EmbeddingSpec
    dense_folders: tuple[str, ...] = ()
    lowercases: bool = False


def read_sentence_transformer(path: Path, row_size: int) -> SentenceTransformer | None:
    """How the model in a folder makes vectors of rows of ``row_size`` elements; None without modules.json, and for the
    modules of a CrossEncoder, which scores pairs.

    Raises CheckpointError for damaged or missing files, and UnsupportedModel for other modules, poolings and
    activations.
    """
    modules = read_modules(path)
    types = types_of(modules)
    if types in ([], ["Transformer"], ["Transformer", "LogitScore"]):
        return None
    normalizes = types[-1:] == ["Normalize"]
    rest = types[2 : len(types) - normalizes]
    if types[:2] != ["Transformer", "Pooling"] or any(kind != "Dense" for kind in rest):
        raise UnsupportedModel(
            f"{path / MODULES_FILE}: modules {', '.join(types)} are not supported; supported: {SUPPORTED}",
            modules=types,
        )
    folders = [_folder(path / MODULES_FILE, module) for module in modules[1 : 2 + len(rest)]]
    embedding = EmbeddingSpec(_read_pooling(_config(path, folders[0])), normalizes, row_size)
    size, layers = row_size, []
    for folder in folders[1:]:
        layers.append(_read_dense(_config(path, folder), folder, size))
        size = layers[-1].outputs
    prompts, default = read_prompts(path)
    embedding = replace(embedding, size=size, dense=tuple(layers), prompts=prompts, default_prompt=default)
    return SentenceTransformer(embedding, tuple(folders[1:]), read_length(path)[1])


def read_matryoshka(config: Mapping[str, Any], where: str, size: int) -> tuple[int, ...]:
    """The lengths to which a vector may be shortened, from 'matryoshka_dimensions' of config.json."""
    dimensions = config.get("matryoshka_dimensions")
    if dimensions is None:
        return ()
    valid = isinstance(dimensions, list) and all(is_integer(each) and 0 < each <= size for each in dimensions)
    if not valid:
        raise CheckpointError(
            f"{where}: 'matryoshka_dimensions' must be a list of integers of 1 to {size}; correct it", file=where
        )
    return tuple(sorted(set(dimensions)))


def with_activation(path: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config.json with the activation of scores that a newer CrossEncoder stores in a file of its own."""
    file = path / PROMPTS_FILE
    activation = read_json_object(file).get("activation_fn") if file.is_file() else None
    return config if activation is None else {**config, "sentence_transformers": {"activation_fn": activation}}


def read_modules(path: Path) -> list[dict[str, Any]]:
    """The entries of the modules.json in a folder; [] without one. Raises CheckpointError."""
    file = path / MODULES_FILE
    if not file.is_file():
        return []
    modules = read_json(file)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError(
            f"{file}: must be a list of objects with type and path; download it again", file=str(file)
        )
    return modules


def types_of(modules: Sequence[Mapping[str, Any]]) -> list[str]:
    """The modules' classes. Classes have moved between packages, but their names have not changed."""
    return [str(module.get("type")).rpartition(".")[2] for module in modules]


def module_config(path: Path, module: Mapping[str, Any]) -> ConfigReader:
    """The config.json of a module in a folder. Raises CheckpointError."""
    file = _config(path, _folder(path / MODULES_FILE, module))
    return ConfigReader(read_json_object(file), str(file))


def _folder(where: Path, module: Mapping[str, Any]) -> str:
    folder = str(module.get("path"))
    if not _FOLDER.fullmatch(folder):
        raise CheckpointError(
            f"{where}: 'path' is {folder[:80]!r}, expected the name of a folder beside it", file=str(where)
        )
    return folder


def _config(path: Path, folder: str) -> Path:
    config_path = path / folder / "config.json"
    if not config_path.is_file():
        raise CheckpointError(
            f"{config_path}: is missing, though {MODULES_FILE} names it; download it too", file=str(config_path)
        )
    return config_path


def _read_pooling(path: Path) -> Pooling:
    """The enabled mode: one flag per mode, or, in newer releases, one "pooling_mode" with a name or several."""
    config = read_json_object(path)
    mode: object = config.get("pooling_mode")
    modes: Sequence[object]
    if mode is not None:
        modes = mode if isinstance(mode, list) else [mode]
    else:
        modes = [name.removeprefix(_FLAG) for name, on in config.items() if name.startswith(_FLAG) and on is True]
    names = [str(each) for each in modes]
    if len(names) != 1 or names[0] not in POOLINGS:
        known = ", ".join(sorted(set(POOLINGS)))
        raise UnsupportedModel(
            f"{path}: pooling {' and '.join(names) or 'by no mode'} is not supported; supported: {known}", pooling=names
        )
    if config.get("include_prompt") is False:
        raise UnsupportedModel(
            f"{path}: 'include_prompt' is false, which leaves a prompt's tokens out of the mean, is not supported"
        )
    return POOLINGS[names[0]]


def _read_dense(path: Path, folder: str, inputs: int) -> DenseSpec:
    config = ConfigReader(read_json_object(path), str(path))
    found = config.integer("in_features")
    if found != inputs:
        raise config.contradiction("in_features", f"'in_features' is {found}, but the module before has {inputs}")
    name = config.text("activation_function", default="torch.nn.modules.activation.Tanh")
    activation = DENSE_ACTIVATIONS.get(name.rpartition(".")[2])
    if activation is None:
        known = ", ".join(DENSE_ACTIVATIONS)
        raise config.unsupported(
            "activation_function", f"'activation_function' is {name!r}, which is not supported; supported: {known}"
        )
    config.ignore("module_input_name", "module_output_name")
    dense = DenseSpec(
        module=folder,
        inputs=inputs,
        outputs=config.integer("out_features"),
        bias=config.flag("bias", default=True),
        activation=activation,
    )
    config.finish()
    return dense


def read_prompts(path: Path) -> tuple[tuple[PromptSpec, ...], str | None]:
    """The prompts, and the name of the default one."""
    file = path / PROMPTS_FILE
    if not file.is_file():
        return (), None
    config = read_json_object(file)
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise CheckpointError(f"{file}: 'prompts' must map names to texts; download it again", file=str(file))
    if default is not None and default not in prompts:
        raise CheckpointError(
            f"{file}: 'default_prompt_name' is {str(default)[:80]!r}, which is not a prompt; the prompts are "
            f"{', '.join(prompts) or 'none'}",
            file=str(file),
        )
    # sentence-transformers writes empty prompts for models without any.
    named = tuple(PromptSpec(name, text) for name, text in prompts.items() if text or name == default)
    return named, default


def read_length(path: Path) -> tuple[int | None, bool]:
    """The length at which texts are cut, and whether they are converted to lower case."""
    file, values = _transformer_config(path)
    config = ConfigReader({key: values.get(key) for key in ("max_seq_length", "do_lower_case")}, file)
    return config.optional_integer("max_seq_length"), config.optional_flag("do_lower_case") or False


def read_chat_options(path: Path) -> dict[str, Any]:
    """The options for rendering pairs with the chat template, which may be empty. Raises CheckpointError."""
    file, values = _transformer_config(path)
    section = values.get("processing_kwargs") or {}
    options = section.get("chat_template") or {} if isinstance(section, dict) else None
    if not isinstance(options, dict):
        raise CheckpointError(f"{file}: 'processing_kwargs' must map 'chat_template' to options; correct it", file=file)
    return options


def _transformer_config(path: Path) -> tuple[str, Mapping[str, Any]]:
    """The file with the options of the module Transformer, and its values; ("", {}) without one."""
    file = next((path / name for name in LENGTH_FILES if (path / name).is_file()), None)
    return ("", {}) if file is None else (str(file), read_json_object(file))

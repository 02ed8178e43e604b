"""Reads the files of sentence-transformers for an embedding model: modules.json, and the config of the pooling.

modules.json lists the modules that process a text, each with its class ("type") and its folder ("path").
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, UnsupportedModel
from ..ir.spec import EmbeddingSpec
from .json_file import read_json, read_json_object

MODULES_FILE = "modules.json"
SUPPORTED = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
_FLAG = "pooling_mode_"
# A name that contains a folder could lead anywhere on this machine.
_FOLDER = re.compile(r"\w[\w.-]{0,99}")


def read_embedding(path: Path) -> EmbeddingSpec | None:
    """How the model in a folder makes embeddings; None without modules.json, which means that it generates text.

    Raises CheckpointError for damaged or missing files, and UnsupportedModel for other modules and other poolings.
    """
    modules_path = path / MODULES_FILE
    if not modules_path.is_file():
        return None
    modules = _read_modules(modules_path)
    # Classes have moved between packages, but their names have not changed.
    types = [str(module.get("type")).rpartition(".")[2] for module in modules]
    if types not in SUPPORTED:
        raise UnsupportedModel(
            f"{modules_path}: modules {', '.join(types)} are not supported; "
            "supported: Transformer, Pooling, then Normalize or nothing",
            modules=types,
        )
    folder = str(modules[1].get("path"))
    if not _FOLDER.fullmatch(folder):
        raise CheckpointError(
            f"{modules_path}: 'path' is {folder[:80]!r}, expected the name of a folder beside it",
            file=str(modules_path),
        )
    pooling_path = path / folder / "config.json"
    if not pooling_path.is_file():
        raise CheckpointError(
            f"{pooling_path}: is missing, though {MODULES_FILE} names it; download it too", file=str(pooling_path)
        )
    pooling = _read_pooling(pooling_path)
    if pooling != ["lasttoken"]:
        raise UnsupportedModel(
            f"{pooling_path}: pooling {' and '.join(pooling) or 'by no mode'} is not supported; supported: lasttoken",
            pooling=pooling,
        )
    return EmbeddingSpec(pooling="last_token", normalize=types[-1] == "Normalize")


def _read_modules(path: Path) -> list[dict[str, Any]]:
    modules = read_json(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError(
            f"{path}: must be a list of objects with type and path; download it again", file=str(path)
        )
    return modules


def _read_pooling(path: Path) -> list[str]:
    """The enabled modes: one flag per mode, or, in newer releases, one "pooling_mode" with a name or several."""
    config = read_json_object(path)
    mode = config.get("pooling_mode")
    if mode is not None:
        return [str(each) for each in mode] if isinstance(mode, list) else [str(mode)]
    return [name.removeprefix(_FLAG) for name, on in config.items() if name.startswith(_FLAG) and on is True]

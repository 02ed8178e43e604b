"""What sentence-transformers writes beside a model that embeds: modules.json, and the pooling's own config -> EmbeddingSpec.

modules.json lists the modules that a text goes through, each with its class ("type") and its folder ("path").
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
# A name with a folder in it could lead anywhere on this machine.
_FOLDER = re.compile(r"\w[\w.-]{0,99}")


def read_embedding(path: Path) -> EmbeddingSpec | None:
    """How the model in a folder embeds; None where there is no modules.json, so that it generates text.

    Raises CheckpointError for files that are damaged or missing, UnsupportedModel for other modules and other poolings.
    """
    modules_path = path / MODULES_FILE
    if not modules_path.is_file():
        return None
    modules = _read_modules(modules_path)
    # Classes have moved between packages; their names have not changed.
    types = [str(module.get("type")).rpartition(".")[2] for module in modules]
    if types not in SUPPORTED:
        raise UnsupportedModel(
            f"{modules_path}: modules {', '.join(types)} are not supported; supported: Transformer, Pooling, then Normalize or nothing",
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
    found = read_json(path)
    if not isinstance(found, list) or not all(isinstance(module, dict) for module in found):
        raise CheckpointError(
            f"{path}: must be a list of objects with type and path; download it again", file=str(path)
        )
    return found


def _read_pooling(path: Path) -> list[str]:
    """The modes that are on: one flag each, or, as newer releases write it, one "pooling_mode" (a name, or several)."""
    config = read_json_object(path)
    mode = config.get("pooling_mode")
    if mode is not None:
        return [str(each) for each in mode] if isinstance(mode, list) else [str(mode)]
    return [name.removeprefix(_FLAG) for name, on in config.items() if name.startswith(_FLAG) and on is True]

"""Reads where a checkpoint comes from: its license and the models that it was made from, as its own files say.

They are the header of the model card, README.md (Hugging Face, "Model Cards"), the metadata of a GGUF file
(github.com/ggml-org/ggml, docs/gguf.md, "General"), and LICENSE files. What they do not say stays unknown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..bundle.entries import OriginEntry
from ..publish.licenses import LICENSE_FILES, recognized

CARD = "README.md"
# Cards are written by strangers.
MAX_CARD_BYTES = 4 << 20
MAX_LICENSE_BYTES = 1 << 18
MAX_TEXT = 300
MAX_BASE_MODELS = 16
_HEADER = re.compile(r"\A\s*---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
_HUB_ADDRESS = re.compile(r"https?://(?:www\.)?huggingface\.co/([\w.-]+/[\w.-]+)/?", re.ASCII)
_SNAPSHOT = re.compile(r"models--([\w.-]+?)--([\w.-]+)", re.ASCII)
NOTHING: Mapping[str, Any] = {}


def origin_of_folder(folder: Path) -> OriginEntry:
    """What the files of a folder say: its card, or if the card names no license, its LICENSE files."""
    card = card_header(folder / CARD)
    license_id, name = one_text(card.get("license")), one_text(card.get("license_name"))
    link, read_from = one_text(card.get("license_link")), [CARD] if card else []
    if license_id is None:
        for file in license_files(folder):
            found = recognized(file.read_text(encoding="utf-8", errors="replace"))
            if found is not None:
                license_id, read_from = found.id, [*read_from, file.name]
                break
    return _entry(folder, license_id, name, link, texts(card.get("base_model")), read_from)


def origin_of_gguf(metadata: Mapping[str, Any], path: Path) -> OriginEntry:
    """What the metadata of a GGUF file says, and what it does not say from the card beside the file."""
    beside = origin_of_folder(path.parent)

    def text(key: str) -> str | None:
        return one_text(metadata.get(f"general.{key}"))

    license_id, name, link = text("license"), text("license.name"), text("license.link")
    count = metadata.get("general.base_model.count")
    number = min(count, MAX_BASE_MODELS) if isinstance(count, int) else 0
    bases = [_base_of(text, index) for index in range(number)]
    models = [base for base in bases if base is not None]
    read_from = [path.name] if license_id is not None or models else []
    if license_id is None or not models:
        read_from += beside.read_from
    if license_id is None:
        license_id, name, link = beside.license, beside.license_name, beside.license_link
    return _entry(path.parent, license_id, name, link, models or beside.base_models, read_from)


def _base_of(text: Any, index: int) -> str | None:
    address = text(f"base_model.{index}.repo_url")
    if address is not None:
        match = _HUB_ADDRESS.fullmatch(address)
        return address if match is None else match[1]
    words = [text(f"base_model.{index}.{key}") for key in ("organization", "name")]
    return " ".join(word for word in words if word is not None) or None


def license_files(folder: Path) -> list[Path]:
    """The files that state the terms of a checkpoint, by name."""
    found = {path.name: path for pattern in LICENSE_FILES for path in folder.glob(pattern)}
    sizes = ((path, path.stat().st_size) for _, path in sorted(found.items()) if path.is_file())
    return [path for path, size in sizes if 0 < size <= MAX_LICENSE_BYTES]


def card_header(path: Path) -> Mapping[str, Any]:
    """The YAML at the start of a model card; empty without a header that can be read."""
    import yaml

    try:
        if path.stat().st_size > MAX_CARD_BYTES:
            return NOTHING
        match = _HEADER.match(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return NOTHING
    try:
        header = None if match is None else yaml.safe_load(match[1])
    except (yaml.YAMLError, ValueError, RecursionError):
        return NOTHING
    return header if isinstance(header, dict) else NOTHING


def texts(value: Any) -> list[str]:
    """The texts of a value that is one or a list of them."""
    values = value if isinstance(value, list) else [value]
    return [each.strip()[:MAX_TEXT] for each in values if isinstance(each, str) and each.strip()][:MAX_BASE_MODELS]


def one_text(value: Any) -> str | None:
    """Several licenses are one name: which of them applies to what, only the card's text says."""
    return " + ".join(texts(value)) or None


def _entry(
    folder: Path, license_id: str | None, name: str | None, link: str | None, models: list[str], read_from: list[str]
) -> OriginEntry:
    repository, revision = snapshot_of(folder)
    return OriginEntry(
        repository=repository, revision=revision, license=license_id, license_name=name, license_link=link,
        base_models=models, read_from=list(dict.fromkeys(read_from)),
    )  # fmt: skip


def model_name(model: str | Path) -> str:
    """What a model at a path, or of this name on the hub, is called: its folder's name, or for a folder in the hub's
    cache, which has that of a revision, the repository's.
    """
    path = Path(os.path.abspath(Path(model).expanduser()))
    repository, revision = snapshot_of(path)
    return repository.rpartition("/")[2] if repository is not None and path.name == revision else path.name


def snapshot_of(folder: Path) -> tuple[str | None, str | None]:
    """The repository and the revision of a folder in the hub's cache: models--OWNER--NAME/snapshots/REVISION."""
    for snapshot in (folder.absolute(), *folder.absolute().parents):
        match = _SNAPSHOT.fullmatch(snapshot.parent.parent.name)
        if snapshot.parent.name == "snapshots" and match is not None:
            return f"{match[1]}/{match[2]}", snapshot.name
    return None, None

"""Opens a checkpoint: a folder or a file on disk, or a repository on the Hugging Face Hub."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from ..bundle.file_name import require_inside
from ..nearest import did_you_mean_folder
from ..runtime.errors import CheckpointError
from .checkpoint import Checkpoint, Tensor

__all__ = ["Checkpoint", "Tensor", "load", "located"]


def load(model: str, ignore_keys: Collection[str] = (), *, text_only: bool = False) -> Checkpoint:
    """The checkpoint of a demo model (DEMOS), in a local folder or GGUF file, or in the Hub's repository of that name,
    which is downloaded or read from the Hub's cache; "owner/name:Q4_K_M" is one of a repository's GGUF files.
    ``ignore_keys``: unknown keys of its configuration that do not change the model's mathematics. ``text_only``: leave
    out the tower of a model that sees pictures.

    Raises CheckpointError if it does not exist or cannot be downloaded or read, and UnsupportedModel for models that we
    do not compile, or RequestError for a key that cannot be ignored.
    """
    from .stop_tokens import with_stops

    return with_stops(_open(located(model), ignore_keys, text_only=text_only))


def located(model: str) -> Path:
    """Where the files of a demo model, a local model or a stored model are, or those of a repository, which is
    downloaded or read from the Hub's cache. Raises CheckpointError.
    """
    from ..demo import DEMOS
    from .hub import download, hub_model

    if model in DEMOS:
        return DEMOS[model]

    # For impossible file names, the functions of os.path return False, whereas those of Path raise.
    path = os.path.expanduser(model)
    if os.path.exists(path):
        _require_utf8(model, os.path.realpath(path))
        return Path(path)
    from ..store.store import Store

    store = Store.of_user()
    stored = store.find(model)
    if stored is not None:
        files = store.path(stored)
        own = [name for name in ("quantization", "template", "adapter") if getattr(stored, name) is not None]
        if own:
            raise CheckpointError(
                f"{model}: has a {' and a '.join(own)} of its own, which nearfar run and nearfar serve apply; here, "
                f"pass its files, {files}, with options of your own",
                model=model,
            )
        return files
    repository = hub_model(model)
    if model.lower().endswith(".gguf") and (repository is None or repository.choice is None):
        raise CheckpointError(f"{model}: there is no such file{_beside(Path(path))}", model=model)
    if repository is None:
        raise CheckpointError(
            f"{model}: there is no such folder, and it is not the name of a repository (owner/name, such as "
            "Qwen/Qwen3-0.6B, or owner/name:Q4_K_M for a GGUF file)"
            f"{did_you_mean_folder(Path(path))}",
            model=model,
        )
    return download(repository)


def _open(path: Path, ignore_keys: Collection[str], *, text_only: bool) -> Checkpoint:
    from .gguf import SUFFIX, open_gguf
    from .gguf.names import choose_files
    from .huggingface import open_checkpoint
    from .mlc import CONFIG_FILE, open_mlc
    from .origin import origin_of_folder

    if path.is_dir():
        _require_own_texts(path)
        if (path / CONFIG_FILE).is_file() and not (path / "config.json").is_file():
            return replace(open_mlc(path, ignore_keys), origin=origin_of_folder(path))
        files = [] if (path / "config.json").is_file() else [file.name for file in path.glob("*.[gG][gG][uU][fF]")]
        if files:
            return open_gguf(path / choose_files(files, None, str(path))[0], ignore_keys)
        return replace(open_checkpoint(path, ignore_keys, text_only=text_only), origin=origin_of_folder(path))
    if path.suffix.lower() == SUFFIX:
        return open_gguf(path, ignore_keys)
    raise CheckpointError(
        f"{path}: is a file; pass a .gguf file, or the folder that contains config.json and model.safetensors",
        model=str(path),
    )


def _require_own_texts(path: Path) -> None:
    """Raise CheckpointError for a link out of the folder in place of a text, which would become part of the bundle. Of
    a file of weights, only its numbers do.
    """
    from .hub import wanted_files

    names = wanted_files([each.relative_to(path).as_posix() for each in (*path.glob("*"), *path.glob("*/*"))])
    require_inside(path, [name for name in names if not name.endswith((".safetensors", ".bin"))])


def _require_utf8(model: str, path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(
            f"{model!r}: its name is not UTF-8, which a bundle's manifest requires; rename it"
        ) from error


def _beside(path: Path) -> str:
    """The GGUF files in the folder of a missing GGUF file."""
    try:
        others = sorted(file.name for file in path.parent.glob("*.gguf"))
    except (OSError, ValueError):
        return ""
    return f"; {path.parent} has {', '.join(others[:8])}" if others else ""

"""Downloads models from the Hugging Face Hub into its cache. A lost connection continues where it stopped, and so does
a later run (`hub_resume.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from ..nearest import did_you_mean_folder
from ..publish.licenses import LICENSE_FILES
from ..runtime.errors import CheckpointError
from .gguf.names import choose_files
from .hub_resume import fetch_large_files
from .tokenizer_files import VOCABULARIES

# owner/name, or owner/name:choice, where the choice is a GGUF file or its quantization.
_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(\w[\w./-]*))?")
# All files that we read are in the top folder, except those of modules and templates.
_ALLOWED = ["*.safetensors", "*.json", "*.jinja", *VOCABULARIES, "params_shard_*.bin"]
# What states where a model comes from, and its terms.
_ORIGIN = ["README.md", *LICENSE_FILES]
# Only if there are no other weights.
_PYTORCH = ["pytorch_model*"]
_WEIGHTS = ("*.safetensors", "params_shard_*.bin")
# Some repositories contain the same weights a second time under other names. Folders that start with a digit contain
# modules of sentence-transformers, and additional_chat_templates contains chat templates.
_IGNORED = ["[!0-9a]*/*", "a[!d]*/*", "*/*.safetensors", "consolidated*"]
# Called with the bytes of a large file that are there, and all its bytes.
Progress = Callable[[int, int], None]


class HubModel(NamedTuple):
    """``choice``: a GGUF file of the repository, or the quantization that its name ends with; None: safetensors."""

    repository: str
    choice: str | None


def hub_model(name: str) -> HubModel | None:
    """Parse a name such as "Qwen/Qwen3-0.6B" or "Qwen/Qwen3-0.6B-GGUF:Q8_0"; None if it cannot be the name of a
    model.
    """
    match = _NAME.fullmatch(name)
    return None if match is None else HubModel(match[1], match[2])


def wanted_files(names: Sequence[str]) -> list[str]:
    """Those of a checkpoint's files that we read, or that state its terms."""
    patterns = [*_ALLOWED, *_ORIGIN]
    if not any(fnmatchcase(name, pattern) for name in names for pattern in _WEIGHTS):
        patterns += _PYTORCH
    return [
        name
        for name in sorted(names)
        if any(fnmatchcase(name, pattern) for pattern in patterns)
        and not any(fnmatchcase(name, pattern) for pattern in _IGNORED)
    ]


def in_cache(model: HubModel) -> bool:
    """Whether the hub's cache has a revision of the repository."""
    return any((_repository_folder(model) / "snapshots").glob("*"))


def remove_from_cache(model: HubModel, path: Path) -> int:
    """Remove the revision that ``path`` is in from the hub's cache, and what no other one of the repository needs.
    Returns the bytes.
    """
    import huggingface_hub

    folder = _repository_folder(model)
    if not path.is_relative_to(folder / "snapshots"):
        return 0
    revision = path.relative_to(folder / "snapshots").parts[0]
    found = huggingface_hub.scan_cache_dir(folder.parent).delete_revisions(revision)
    found.execute()
    return int(found.expected_freed_size)


def _repository_folder(model: HubModel) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=model.repository, repo_type="model")


def download(model: HubModel, progress: Progress = lambda *_: None) -> Path:
    """The folder with the files of a model, or its first GGUF file. Raises CheckpointError."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    repository, choice = model
    reason: Exception
    try:
        if choice is not None:
            return _download_gguf(repository, choice, progress)
        folder = _download_files(repository, [*_ALLOWED, *_ORIGIN], _IGNORED, progress=progress)
        if not any((folder / file).is_file() for file in ("config.json", "mlc-chat-config.json")):
            return _download_gguf(repository, None, progress)
        if not any(path for pattern in _WEIGHTS for path in folder.glob(pattern)):
            _download_files(repository, _PYTORCH, _IGNORED, progress=progress)
        return folder
    except CheckpointError:
        raise
    except GatedRepoError as error:
        reason, advice = error, "accept its terms on huggingface.co and log in with 'hf auth login'"
    except RepositoryNotFoundError as error:
        reason, advice = error, "check the name, and log in with 'hf auth login' if it is private"
    except Exception as error:  # The client raises its own errors, those of its HTTP library, and OSError.
        reason, advice = error, "check the network"
    summary = str(reason).strip().partition("\n")[0].rstrip(".") or type(reason).__name__
    raise CheckpointError(
        f"{repository}: is not a local folder, and could not be downloaded from the Hugging Face Hub: {summary}; "
        f"{advice}, or pass a local folder, which needs no network{did_you_mean_folder(Path(repository))}",
        model=repository,
    ) from reason


def _download_files(
    repository: str, allowed: Sequence[str], ignored: Sequence[str] = (), *, progress: Progress
) -> Path:
    import huggingface_hub

    fetch_large_files(repository, allowed, ignored, progress)
    return Path(
        huggingface_hub.snapshot_download(repository, allow_patterns=list(allowed), ignore_patterns=list(ignored))
    )


def _download_gguf(repository: str, choice: str | None, progress: Progress) -> Path:
    import huggingface_hub

    try:
        names = huggingface_hub.list_repo_files(repository)
    except Exception:
        # Files that were downloaded before need no network.
        try:
            cached = Path(huggingface_hub.snapshot_download(repository, local_files_only=True))
        except Exception:
            cached = None
        names = [] if cached is None else [path.relative_to(cached).as_posix() for path in cached.rglob("*.gguf")]
        if not names:
            raise
    files = choose_files(names, choice, f"{repository}:{choice}" if choice else repository)
    return _download_files(repository, [*files, *_ORIGIN], progress=progress) / files[0]

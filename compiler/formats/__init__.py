"""Opens a checkpoint: a folder on disk, or a repository on the Hugging Face Hub."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import CheckpointError
from ..nearest import did_you_mean_folder
from .checkpoint import Checkpoint, Tensor, TokenizerFiles

__all__ = ["Checkpoint", "Tensor", "TokenizerFiles", "load"]

# A repository is owner/name. All files that we read are in its top folder, except those of modules and templates.
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_ALLOWED = ["*.safetensors", "*.json", "*.jinja"]
# Some repositories contain the same weights a second time under other names. Folders that start with a digit contain
# modules of sentence-transformers, and additional_chat_templates contains chat templates.
_IGNORED = ["[!0-9a]*/*", "a[!d]*/*", "*/*.safetensors", "consolidated*"]


def load(model: str) -> Checkpoint:
    """The checkpoint in a local folder, or in the Hub's repository of that name, which is downloaded or read from the
    Hub's cache.

    Raises CheckpointError if it does not exist or cannot be downloaded or read, and UnsupportedModel for models that we
    do not compile.
    """
    from .huggingface import open_checkpoint

    # For names that no file can have, the functions of os.path return False, and those of Path raise.
    path = os.path.expanduser(model)
    if os.path.isdir(path):
        try:
            os.path.realpath(path).encode()
        except UnicodeEncodeError as error:
            raise CheckpointError(
                f"{model!r}: the folder's name is not UTF-8, which a bundle's manifest requires; rename it"
            ) from error
        return open_checkpoint(Path(path))
    if path.lower().endswith(".gguf"):
        raise CheckpointError(
            f"{model}: GGUF files are not supported; pass the Hugging Face folder that the file was made from",
            model=model,
        )
    if os.path.exists(path):
        raise CheckpointError(
            f"{model}: is a file; pass the folder that contains config.json and model.safetensors", model=model
        )
    if not _REPOSITORY.fullmatch(model):
        raise CheckpointError(
            f"{model}: there is no such folder, and it is not the name of a repository (owner/name, such as "
            "Qwen/Qwen3-0.6B)"
            f"{did_you_mean_folder(Path(path))}",
            model=model,
        )
    return open_checkpoint(_download(model))


def _download(repository: str) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    reason: Exception
    try:
        return Path(huggingface_hub.snapshot_download(repository, allow_patterns=_ALLOWED, ignore_patterns=_IGNORED))
    except GatedRepoError as error:
        reason, advice = error, "accept its terms on huggingface.co and log in with 'hf auth login'"
    except RepositoryNotFoundError as error:
        reason, advice = error, "check the name, and log in with 'hf auth login' if it is private"
    except Exception as error:  # The client raises its own errors, those of its HTTP library and those of the disk.
        reason, advice = error, "check the network"
    summary = str(reason).strip().partition("\n")[0].rstrip(".") or type(reason).__name__
    raise CheckpointError(
        f"{repository}: is not a local folder, and could not be downloaded from the Hugging Face Hub: {summary}; "
        f"{advice}, or pass a local folder, which needs no network{did_you_mean_folder(Path(repository))}",
        model=repository,
    ) from reason

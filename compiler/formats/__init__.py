"""Checkpoint formats: a folder on disk or a name on the Hugging Face Hub -> Checkpoint."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import CheckpointError
from ..nearest import did_you_mean_folder
from .checkpoint import Checkpoint, Tensor, TokenizerFiles

__all__ = ["Checkpoint", "Tensor", "TokenizerFiles", "load"]

# A repository is owner/name; everything that we read lies at its top.
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WANTED = ["*.safetensors", "*.json", "*.jinja"]
# Some repositories hold the same weights a second time under other names. Folders that start with a digit hold modules of
# sentence-transformers, and additional_chat_templates holds chat templates.
_UNWANTED = ["[!0-9a]*/*", "a[!d]*/*", "*/*.safetensors", "consolidated*"]


def load(model: str) -> Checkpoint:
    """The checkpoint in a local folder, or else in the Hub's repository of that name, which is downloaded (or taken from its cache).

    Raises CheckpointError when there is none, or it cannot be fetched or read; UnsupportedModel when we do not compile such a model.
    """
    from .huggingface import open_checkpoint

    # The functions of os.path say False, where those of Path raise, to names that no file can have.
    path = os.path.expanduser(model)
    if os.path.isdir(path):
        try:
            os.path.realpath(path).encode()
        except UnicodeEncodeError as error:
            raise CheckpointError(
                f"{model!r}: the folder's name is not UTF-8, which a bundle's manifest needs; rename it"
            ) from error
        return open_checkpoint(Path(path))
    if path.lower().endswith(".gguf"):
        raise CheckpointError(
            f"{model}: GGUF files are not supported; give the Hugging Face folder that it was made from", model=model
        )
    if os.path.exists(path):
        raise CheckpointError(
            f"{model}: is a file; give the folder that holds config.json and model.safetensors", model=model
        )
    if not _REPOSITORY.fullmatch(model):
        raise CheckpointError(
            f"{model}: there is no such folder, and it is not the name of a repository (owner/name, such as Qwen/Qwen3-0.6B)"
            f"{did_you_mean_folder(Path(path))}",
            model=model,
        )
    return open_checkpoint(_download(model))


def _download(repository: str) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    reason: Exception
    try:
        return Path(huggingface_hub.snapshot_download(repository, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except GatedRepoError as error:
        reason, advice = error, "accept its terms on huggingface.co and log in with 'hf auth login'"
    except RepositoryNotFoundError as error:
        reason, advice = error, "check the name, and log in with 'hf auth login' if it is private"
    except Exception as error:  # The client lets through errors of its HTTP library, of the disk, and its own.
        reason, advice = error, "check the network"
    summary = str(reason).strip().partition("\n")[0].rstrip(".") or type(reason).__name__
    raise CheckpointError(
        f"{repository}: there is no such local folder, and it could not be fetched from the Hugging Face Hub: {summary}; "
        f"{advice}, or give a local folder, which needs no network{did_you_mean_folder(Path(repository))}",
        model=repository,
    ) from reason

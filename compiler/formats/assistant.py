"""The checkpoint of an assistant: a small model that drafts the tokens of a model, and becomes a part of its bundle."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ..arch import ASSISTED, gemma4_assistant
from ..arch.gemma4_assistant import ASSISTANT
from ..runtime.errors import CheckpointError, UnsupportedModel
from . import located
from .checkpoint import Checkpoint
from .config import ConfigReader
from .huggingface import read_tensors
from .json_file import read_json_object

# The tensors of groups of tokens, which only choose whose logits are computed.
GROUPS = "masked_embedding."


def with_assistant(checkpoint: Checkpoint, assistant: str | None, ignore_keys: Collection[str] = ()) -> Checkpoint:
    """The checkpoint with the assistant in a local folder, or in the Hub's repository of that name; the same one if
    ``assistant`` is None. Raises CheckpointError, and UnsupportedModel if the assistant does not fit the model.
    """
    if assistant is None:
        return checkpoint
    spec = checkpoint.spec
    if spec.model_type not in ASSISTED or checkpoint.task is not None:
        raise UnsupportedModel(
            f"--assistant {assistant}: {checkpoint.path} cannot have an assistant; those that draft tokens belong to "
            f"models of {', '.join(ASSISTED)} that generate text",
            model_type=spec.model_type,
        )
    path = located(assistant)
    config_path = path / "config.json"
    if not config_path.is_file():
        raise CheckpointError(f"--assistant {path}: has no config.json; pass a folder that save_pretrained wrote")
    config = ConfigReader(read_json_object(config_path), str(config_path), ignore_keys)
    model_type = config.text("model_type")
    if model_type not in gemma4_assistant.DEFAULTS:
        raise UnsupportedModel(
            f"--assistant {path}: is a model of type {model_type}; supported: {', '.join(gemma4_assistant.DEFAULTS)}",
            model_type=model_type,
        )
    own = gemma4_assistant.read_config(config, spec)
    notes = checkpoint.notes
    if config.has("use_ordered_embeddings") and config.flag("use_ordered_embeddings"):
        notes += (
            f"{path}: the assistant's logits are computed for all tokens, not only for those of its best "
            "'centroid_intermediate_top_k' groups: a guess may be another token, and reads the whole head",
        )
    tensors = {
        f"{ASSISTANT}{name}": tensor for name, tensor in read_tensors(path).items() if not name.startswith(GROUPS)
    }
    return replace(
        checkpoint,
        tensors={**checkpoint.tensors, **tensors},
        notes=notes,
        assistant=own,
    )

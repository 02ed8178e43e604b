"""What a stored model changes of its bundle: the options to compile its checkpoint with, and the chat template."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..bundle.folder import Bundle, ExportBundle
from ..bundle.manifest import Description
from ..formats.peft import read_config
from ..runtime.text.tool_formats import tool_format
from .go_template import chat_template
from .model import StoredModel
from .store import Store


def exists(model: str) -> bool:
    """Whether a command's model is a path. A path comes before a stored model of the same name."""
    try:
        return os.path.exists(Path(model).expanduser())
    except (OSError, ValueError, RuntimeError):
        return False


def compile_fields(stored: StoredModel | None, store: Store, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of CompileOptions that a stored model sets and its user, with ``given``, does not. Raises
    CheckpointError for an adapter that cannot be read.
    """
    if stored is None:
        return {}
    fields: dict[str, Any] = {}
    if stored.quantization is not None and given.get("quantization") is None:
        fields["quantization"] = stored.quantization
    if stored.parameters.num_ctx is not None and given.get("context") is None:
        fields["context"] = stored.parameters.num_ctx
    adapter = store.adapter(stored)
    if adapter is not None:
        fields["lora_rank"] = max(given.get("lora_rank") or 0, read_config(adapter).widest)
    return fields


def with_template(bundle: Bundle | ExportBundle, stored: StoredModel | None) -> Bundle | ExportBundle:
    """The bundle with the chat template of a stored model. Raises RequestError for a template that cannot be read."""
    if stored is None or stored.template is None:
        return bundle
    entry = bundle.manifest.tokenizer
    own_bos = entry.bos_token is not None and stored.template.lstrip().startswith(entry.bos_token)
    adds_bos = entry.add_bos_token is True or "bos_token" in (entry.chat_template or "")
    jinja = chat_template(stored.template, marks=marks_of(bundle.manifest), begins=adds_bos and not own_bos)
    # Only pages read the tree of a template, and making it would run the template here.
    own = {"chat_template": jinja, "chat_tree": None, "tools": tool_format(jinja)}
    update = {"tokenizer": entry.model_copy(update=own)}
    if isinstance(bundle, Bundle):
        return replace(bundle, manifest=bundle.manifest.model_copy(update=update))
    return replace(bundle, manifest=bundle.manifest.model_copy(update=update))


def marks_of(manifest: Description) -> dict[str, str]:
    """What a chat template writes for a picture, a video or a sound, by the type of a message's part."""
    images, sounds = manifest.images, manifest.sounds
    marks = {} if images is None else {"image": images.prompt.mark}
    if images is not None and images.video is not None:
        marks["video"] = images.video.prompt.mark
    return marks if sounds is None else {**marks, "audio": sounds.prompt.mark}

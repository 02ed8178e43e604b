"""/v1/models, and the routes that change the models: /v1/models/load and /v1/models/unload (extensions),
/v1/load_lora_adapter and /v1/unload_lora_adapter as in vLLM.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .common import Items, Reply, Request

# A working path contains no NUL or line break, nor does a name that a log can show.
Name = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$")]


class ModelCard(Reply):
    """A name that requests may use. ``root`` is the model that answers, also for an alias; the ``parent`` of an adapter
    is its model.

    ``max_model_len`` is the longest sequence in tokens, and ``input_modalities`` what a prompt may contain; None if an
    upstream does not report it.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "nearfar"
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None
    input_modalities: list[Literal["text", "image", "audio", "video"]] | None = None


class ModelList(Reply):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class LoadRequest(Request):
    """``model``: a bundle's or checkpoint's folder, or a name that `nearfar serve` takes. ``name`` is its name in
    requests, by default the folder's name.
    """

    model: Name
    name: Name | None = None
    aliases: Items[Name] = Field(default_factory=list)


class UnloadRequest(Request):
    model: Name


class LoadAdapterRequest(Request):
    """``model``: the adapter's model; may be omitted if only one model is loaded (extension)."""

    lora_name: Name
    lora_path: Name
    model: Name | None = None


class UnloadAdapterRequest(Request):
    """``model``: the adapter's model, as in `LoadAdapterRequest` (extension). Another one is an error."""

    lora_name: Name
    model: Name | None = None

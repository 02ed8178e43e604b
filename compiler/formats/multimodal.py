"""The text model inside a checkpoint of a model of images or sound: its section of config.json and its tensors.

Transformers writes the text model's tensors as model.language_model.*; files of earlier versions, which most
repositories hold, have language_model.model.*.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

from .config import ConfigReader

# Outer model_types whose text model is a decoder of its own.
MODEL_TYPES = ("gemma3", "gemma4", "mistral3")
# Keys beside 'text_config' that only concern the other parts, or how transformers runs the model.
HARMLESS_KEYS = frozenset(
    {
        "_name_or_path", "architectures", "audio_config", "audio_token_id", "boa_token_id", "boa_token_index",
        "boi_token_id", "boi_token_index", "dtype", "eoa_token_id", "eoa_token_index", "eoi_token_id",
        "eoi_token_index", "image_token_id", "image_token_index", "initializer_range", "mm_tokens_per_image",
        "model_type", "multimodal_projector_bias", "projector_hidden_act", "spatial_merge_size", "torch_dtype",
        "transformers_version", "video_token_id", "vision_config", "vision_feature_layer",
        "vision_soft_tokens_per_image",
    }
)  # fmt: skip
PREFIXES = {"model.language_model.": "model.", "language_model.model.": "model.", "language_model.lm_head.": "lm_head."}
# The other parts, as complete modules, and the heads that predict several tokens ahead.
OTHER_PARTS = re.compile(
    r"(model\.)?(vision_tower|audio_tower|vision_model|visual|multi_modal_projector|embed_vision|embed_audio)\.|mtp\."
)

Tensor = TypeVar("Tensor")


def text_section(config: ConfigReader) -> ConfigReader | None:
    """The section of the text model; None if the model only processes text.

    Raises CheckpointError if the section is missing, UnsupportedModel for an unknown key beside it.
    """
    if config.text("model_type") not in MODEL_TYPES:
        return None
    section = config.section("text_config")
    if section is None:
        raise config.contradiction(
            "text_config", f"'text_config' is missing, but 'model_type' is {config.text('model_type')!r}"
        )
    for key in ("bos_token_id", "dtype", "eos_token_id", "pad_token_id", "tie_word_embeddings", "torch_dtype"):
        section.inherit(key, config)
    config.finish(HARMLESS_KEYS)
    return section


def text_tensors(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors of the text model under the names of a text-only checkpoint, and a note on those that are left
    out.
    """
    renamed: dict[str, Tensor] = {}
    left_out: Counter[str] = Counter()
    for name, tensor in tensors.items():
        part = OTHER_PARTS.match(name)
        if part is None:
            renamed[_text_name(name)] = tensor
        else:
            left_out[part[0].removeprefix("model.").rstrip(".")] += 1
    if not left_out:
        return renamed, []
    parts = ", ".join(f"{part} ({count} tensors)" for part, count in sorted(left_out.items()))
    return renamed, [f"only the text model is compiled; left out: {parts}"]


def text_modules(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Values of the text model's modules, under the names of a text-only checkpoint."""
    # The dot separates a module's name from the names of its tensors.
    return {_text_name(f"{name}.")[:-1]: value for name, value in values.items() if not OTHER_PARTS.match(f"{name}.")}


def _text_name(name: str) -> str:
    prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")
    return PREFIXES.get(prefix, "") + name.removeprefix(prefix)

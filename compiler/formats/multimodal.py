"""The text model inside a checkpoint of a model of images or sound: its section of config.json and its tensors.

Transformers writes the text model's tensors as model.language_model.* or model.text_model.*; files of earlier versions,
which most repositories hold, have language_model.model.*, or model.* beside visual.*.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from .checkpoint import put_renamed
from .config import ConfigReader
from .harmless_keys import HARMLESS_KEYS

# Outer model_types whose text model is a decoder of its own.
MODEL_TYPES = (
    "aya_vision", "cohere2_vision", "embedding_gemma2", "gemma3", "gemma4", "gemma4_unified", "idefics3", "internvl",
    "jev", "lfm2_vl", "llava", "llava_next", "llava_onevision", "mistral3", "qwen2_5_vl", "qwen2_vl", "qwen3_5",
    "qwen3_vl", "smolvlm", "voxtral",
)  # fmt: skip
# Those whose first versions have the text model's keys beside those of images, without 'text_config'.
FLAT = {"qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}
# Text models that compute what another decoder computes, because a text's tokens have one position: its model_type,
# and transformers' default of 'rope_theta'.
SAME_TEXT = {
    "qwen2_vl_text": ("qwen2", 1_000_000.0),
    "qwen2_5_vl_text": ("qwen2", 1_000_000.0),
    "qwen3_vl_text": ("qwen3", 500_000.0),
}
# Keys beside 'text_config' that only concern the other parts.
OUTER_KEYS = HARMLESS_KEYS | {
    "adapter_layer_norm_eps", "alignment_intermediate_size", "architectures", "audio_config", "audio_token_id",
    "boa_token_id", "boa_token_index", "boi_token_id", "boi_token_index", "do_image_splitting", "downsample_factor",
    "downsample_ratio", "encoder_patch_size", "eoa_token_id", "eoa_token_index", "eoi_token_id", "eoi_token_index",
    "hidden_size", "ignore_index", "image_grid_pinpoints", "image_seq_len", "image_seq_length", "image_token_id",
    "image_token_index", "max_image_tokens", "max_num_patches", "max_pixels_tolerance", "max_tiles", "min_image_tokens",
    "min_tiles", "mm_tokens_per_image", "model_type", "multimodal_projector_bias", "num_verbalizers", "offsets",
    "projector_bias", "projector_hidden_act", "projector_hidden_size", "projector_use_layernorm", "scale_factor",
    "softcap", "spatial_merge_size", "tile_size", "use_image_newline_parameter", "use_image_special_tokens",
    "use_thumbnail", "video_token_id", "video_token_index", "vision_aspect_ratio", "vision_config",
    "vision_end_token_id", "vision_feature_layer", "vision_feature_select_strategy", "vision_soft_tokens_per_image",
    "vision_start_token_id", "vision_token_id", "vocab_size",
}  # fmt: skip
# Keys of text models inside SmolVLM and Idefics 3, and inside Gemma 3 in folders of MLX, that concern the images.
IMAGE_KEYS = ("mm_tokens_per_image", "perceiver_config", "pixel_shuffle_factor")
# The name of 'rope_theta' in Gemma 3 that mlx-vlm reads.
MLX_THETA = "rope_global_base_freq"
SHARED_KEYS = ("bos_token_id", "dtype", "eos_token_id", "pad_token_id", "torch_dtype")
PREFIXES = {
    "backbone.embeddings.": "model.embed_tokens.",
    "backbone.": "model.",
    "model.language_model.": "model.",
    "model.text_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "language_model.": "model.",
}
# The other parts, as complete modules, and heads that predict several tokens ahead and are not compiled.
OTHER_PARTS = re.compile(
    r"(model\.)?(vision_tower|audio_tower|vision_model|visual|vision_embedder|multi_modal_projector|connector|embed_vision|"
    r"embed_audio)\.|(model\.)?image_newline$|model\.mtp_layers\."
)

Tensor = TypeVar("Tensor")


def text_values(values: Mapping[str, Any], where: str, skipped: Collection[str] = frozenset()) -> dict[str, Any] | None:
    """The text model's config.json; None if the model only processes text. ``skipped``: see `ConfigReader`.

    Raises CheckpointError if its section is missing, UnsupportedModel for an unknown key beside it.
    """
    config = ConfigReader(values, where, skipped)
    model_type = config.text("model_type")
    if model_type not in MODEL_TYPES:
        return None
    if config.section("text_config") is not None:
        text = dict(values["text_config"])
        text |= {key: values[key] for key in SHARED_KEYS if key not in text and values.get(key) is not None}
        # transformers ties the head if either says so.
        if values.get("tie_word_embeddings") is not None and text.get("tie_word_embeddings") in (None, False):
            text["tie_word_embeddings"] = values["tie_word_embeddings"]
        config.ignore(*SHARED_KEYS, "tie_word_embeddings")
        config.finish(OUTER_KEYS)
        # The text model of a decision model may be inside a model of images.
        inner = text_values(text, f"{where}: text_config", skipped)
        text = text if inner is None else inner
    elif model_type in FLAT:
        own = OUTER_KEYS - {"dtype", "hidden_size", "torch_dtype", "vocab_size"}
        text = {key: value for key, value in values.items() if key not in own}
        text["model_type"] = FLAT[model_type]
    else:
        raise config.contradiction("text_config", f"'text_config' is missing, but 'model_type' is {model_type!r}")
    return _without_image_keys(text)


def _without_image_keys(text: dict[str, Any]) -> dict[str, Any]:
    text = {key: value for key, value in text.items() if key not in IMAGE_KEYS}
    if text.get(MLX_THETA, ()) == text.get("rope_theta"):
        del text[MLX_THETA]
    if text.get("model_type") not in SAME_TEXT:
        return text
    model_type, theta = SAME_TEXT[text["model_type"]]
    ropes: dict[str, Any] = {
        key: _one_position(text[key]) for key in ("rope_parameters", "rope_scaling") if key in text
    }
    thetas = [text.get("rope_theta"), *(rope.get("rope_theta") for rope in ropes.values() if isinstance(rope, dict))]
    default = {"rope_theta": theta} if not any(thetas) else {}
    return {**text, **ropes, **default, "model_type": model_type}


def _one_position(rope: Any) -> Any:
    """A rotation by time, height and width, which are equal in a text, as the plain one."""
    if not isinstance(rope, dict):
        return rope
    plain = {key: value for key, value in rope.items() if key not in ("mrope_interleaved", "mrope_section")}
    return plain | {key: "default" for key in ("rope_type", "type") if plain.get(key) == "mrope"}


def text_tensors(tensors: Mapping[str, Tensor], *, sees: bool = False) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors of the text model under the names of a text-only checkpoint, and a note on those that are left
    out. ``sees``: those of the tower are compiled too. Raises CheckpointError for two that get one name.
    """
    renamed: dict[str, Tensor] = {}
    left_out: Counter[str] = Counter()
    for name, tensor in tensors.items():
        part = OTHER_PARTS.match(name)
        if part is None:
            put_renamed(renamed, text_name(name), name, tensor)
        else:
            left_out[part[0].removeprefix("model.").rstrip(".")] += 1
    if not left_out:
        return renamed, []
    parts = ", ".join(f"{part} ({count} tensor{'s' * (count > 1)})" for part, count in sorted(left_out.items()))
    compiled = "the text model and its tower are" if sees else "only the text model is"
    return renamed, [f"{compiled} compiled; left out: {parts}"]


def text_modules(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Values of the text model's modules, under the names of a text-only checkpoint."""
    # The dot separates a module's name from the names of its tensors.
    return {text_name(f"{name}.")[:-1]: value for name, value in values.items() if not OTHER_PARTS.match(f"{name}.")}


def text_name(name: str) -> str:
    """The name of a tensor or of a module below the model, in a text-only checkpoint."""
    prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")
    return PREFIXES.get(prefix, "") + name.removeprefix(prefix)
